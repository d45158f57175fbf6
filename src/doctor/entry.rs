//! What an entry is, and what it answers. PURE.

use serde::Serialize;

use super::facts::{ContainerFacts, Facts, HostFacts, Start};
use crate::configure::assess::Check;
use crate::inventory::{Finding, Severity};

/// A symptom that users meet, and the check that tells whether it is there.
#[derive(Debug)]
pub struct Entry {
    /// Its name: `gpu-memory`.
    pub id: &'static str,
    /// What the user sees, in the words of programs and documents.
    pub symptoms: &'static [&'static str],
    /// What the check looks at.
    pub looks_at: &'static str,
    /// The usual cause.
    pub cause: &'static str,
    /// The usual repair, with its command.
    pub repair: &'static str,
    /// Where it can be looked at, and how.
    pub judge: Judge,
}

/// Where an entry can be looked at, and how.
#[derive(Clone, Copy, Debug)]
pub enum Judge {
    /// On the host and in the container.
    Anywhere(fn(&Facts) -> Answer),
    /// On the host only.
    Host(fn(&Facts, &HostFacts) -> Answer),
    /// In the container only.
    Container(fn(&Facts, &ContainerFacts) -> Answer),
    /// In the container, and so cheap that every start does it too.
    Start(fn(&Start<'_>) -> Answer),
}

/// How a check ended; the later, the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// As it must be.
    Ok,
    /// Good to know; nothing is wrong.
    Note,
    /// Nobody knows: the check could not be made.
    CouldNotLook,
    /// It works, with less than there could be.
    Warn,
    /// Something that was asked for does not work.
    Fail,
}

/// One thing that was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Observation {
    /// What it means.
    pub verdict: Verdict,
    /// What was seen; can hold hostile text.
    pub seen: String,
    /// Why it is like that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What repairs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair: Option<String>,
}

/// What an entry's check saw: at least one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer(Vec<Observation>);

impl Answer {
    fn plain(verdict: Verdict, seen: impl Into<String>) -> Self {
        Self(vec![Observation { verdict, seen: seen.into(), cause: None, repair: None }])
    }

    /// All is well.
    pub fn ok(seen: impl Into<String>) -> Self {
        Self::plain(Verdict::Ok, seen)
    }

    /// Nothing is wrong, and nothing was to be seen, or something is good to know.
    pub fn note(seen: impl Into<String>) -> Self {
        Self::plain(Verdict::Note, seen)
    }

    /// It could not be looked at, for this reason.
    pub fn could_not_look(why: impl Into<String>) -> Self {
        Self::plain(Verdict::CouldNotLook, why)
    }

    /// Something is not as it should be.
    pub fn trouble(
        verdict: Verdict,
        seen: impl Into<String>,
        cause: impl Into<String>,
        repair: impl Into<String>,
    ) -> Self {
        let (cause, repair) = (Some(cause.into()), Some(repair.into()));
        Self(vec![Observation { verdict, seen: seen.into(), cause, repair }])
    }

    /// [`Self::trouble`] that works with less than there could be.
    pub fn warn(seen: impl Into<String>, cause: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::trouble(Verdict::Warn, seen, cause, repair)
    }

    /// [`Self::trouble`] that keeps something from working.
    pub fn fail(seen: impl Into<String>, cause: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::trouble(Verdict::Fail, seen, cause, repair)
    }

    /// These answers as one; `otherwise` where there is none.
    pub fn all(answers: impl IntoIterator<Item = Self>, otherwise: impl FnOnce() -> Self) -> Self {
        let all: Vec<Observation> = answers.into_iter().flat_map(|answer| answer.0).collect();
        if all.is_empty() { otherwise() } else { Self(all) }
    }

    /// The worst of it.
    pub fn verdict(&self) -> Verdict {
        self.0.iter().map(|observation| observation.verdict).max().unwrap_or(Verdict::Ok)
    }

    /// Everything that was seen.
    pub fn observations(&self) -> &[Observation] {
        &self.0
    }
}

impl From<Finding> for Answer {
    fn from(Finding { severity, what, cause, repair }: Finding) -> Self {
        let verdict = match severity {
            Severity::Info => Verdict::Note,
            Severity::Warning => Verdict::Warn,
            Severity::Error => Verdict::Fail,
        };
        Self::trouble(verdict, what, cause, repair)
    }
}

impl From<Check> for Answer {
    fn from(check: Check) -> Self {
        match check {
            Check::Good(what) => Self::ok(what),
            Check::Note(what) => Self::note(what),
            Check::Trouble(finding) => finding.into(),
        }
    }
}
