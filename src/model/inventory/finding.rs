//! Messages for the operator, and the kind of each.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::message::Message;

/// A message for the operator, always with a cause and a fix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The subject.
    #[serde(default)]
    pub kind: Kind,
    /// The severity.
    pub severity: Severity,
    /// What was observed.
    pub what: String,
    /// The likely cause.
    pub cause: String,
    /// What to run or change.
    pub fix: String,
}

impl Finding {
    /// Creates a finding from its parts.
    pub fn new(
        kind: Kind,
        severity: Severity,
        what: impl Into<String>,
        cause: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { kind, severity, what: what.into(), cause: cause.into(), fix: fix.into() }
    }

    /// An informational finding.
    pub fn info(kind: Kind, what: impl Into<String>, cause: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(kind, Severity::Info, what, cause, fix)
    }

    /// A warning that the cluster works, but less well than expected.
    pub fn warning(kind: Kind, what: impl Into<String>, cause: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(kind, Severity::Warning, what, cause, fix)
    }

    /// An error: a requested feature does not work.
    pub fn error(kind: Kind, what: impl Into<String>, cause: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(kind, Severity::Error, what, cause, fix)
    }
}

impl Finding {
    /// The finding as a log message. `kind` is the event's kind, such as `start-refused`.
    pub fn message(&self, kind: impl Into<Cow<'static, str>>) -> Message {
        let Self { what, cause, fix, .. } = self;
        message!(kind, "{what}; cause: {cause}; fix: {fix}", what, cause, fix)
    }
}

/// Formats the finding as one line for a log.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message("").text)
    }
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Information; no problem.
    Info,
    /// The cluster runs, but less well than expected.
    Warning,
    /// A requested feature does not work.
    Error,
}

/// The subject of a finding, for programs; people read the text. Each kind belongs to an entry of `slurminit doctor`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the messages document the kinds")]
pub enum Kind {
    // GPUs and their drivers.
    AmdDevices,
    DriverFails,
    DriverNotLoaded,
    GpuDoesNotOpen,
    GpuGroups,
    GpuLeftOut,
    GpuLost,
    GpuNotGiven,
    GpuNotOffered,
    GpuType,
    Mig,
    NvmlLibrary,
    NvmlRefuses,
    NvmlVersions,
    // The container, and the files that slurminit writes there.
    Container,
    Files,
    // The configuration of Slurm.
    Gres,
    JobDevices,
    JobsNotHeld,
    OwnFiles,
    RealMemory,
    Settings,
    SlurmSecurity,
    // The checks of `slurminit doctor` that every start also runs. Each kind is named after its check.
    CudaLibraries,
    CudaVersion,
    Disk,
    ExposedSecrets,
    MemoryKills,
    MungeKey,
    OomGroup,
    Ports,
    Proxy,
    SavedState,
    VisibleDevices,
    /// Anything else, including kinds that only a newer slurminit has. Must be the last: a test counts up to it.
    #[default]
    #[serde(other)]
    Other,
}

shown_as_serialized!(Kind);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_unknown_or_missing_kind_as_other() {
        let read = |kind: &str| {
            let json = format!(r#"{{{kind}"severity":"error","what":"a","cause":"b","fix":"c"}}"#);
            serde_json::from_str::<Finding>(&json).unwrap().kind
        };
        assert_eq!(read(r#""kind":"nvml-versions","#), Kind::NvmlVersions);
        assert_eq!(read(r#""kind":"of-the-future","#), Kind::Other);
        assert_eq!(read(""), Kind::Other);
    }
}
