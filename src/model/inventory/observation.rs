//! What a check saw, well or not: a line of `doctor` or of `configure`.

use serde::Serialize;

use super::{Finding, Kind, Severity};

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

impl Verdict {
    /// How it is shown before what was seen.
    pub const fn mark(self) -> char {
        match self {
            Self::Ok => '✓',
            Self::Note => '-',
            Self::CouldNotLook => '?',
            Self::Warn => '!',
            Self::Fail => '✗',
        }
    }
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

impl Observation {
    /// What a start says of it; `None` where all is well.
    pub fn finding(self) -> Option<Finding> {
        let severity = match self.verdict {
            Verdict::Fail => Severity::Error,
            Verdict::Warn => Severity::Warning,
            Verdict::Ok | Verdict::Note | Verdict::CouldNotLook => return None,
        };
        Some(Finding::new(Kind::Other, severity, self.seen, self.cause?, self.repair?))
    }
}

/// What a check saw: at least one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observations(Vec<Observation>);

impl Observations {
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

    /// One with a cause and a repair.
    pub fn with_repair(
        verdict: Verdict,
        seen: impl Into<String>,
        cause: impl Into<String>,
        repair: impl Into<String>,
    ) -> Self {
        let (cause, repair) = (Some(cause.into()), Some(repair.into()));
        Self(vec![Observation { verdict, seen: seen.into(), cause, repair }])
    }

    /// Nothing is wrong, and something can be done about it all the same.
    pub fn hint(seen: impl Into<String>, cause: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::with_repair(Verdict::Note, seen, cause, repair)
    }

    /// It works, with less than there could be.
    pub fn warn(seen: impl Into<String>, cause: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::with_repair(Verdict::Warn, seen, cause, repair)
    }

    /// Something that was asked for does not work.
    pub fn fail(seen: impl Into<String>, cause: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::with_repair(Verdict::Fail, seen, cause, repair)
    }

    /// These as one; `otherwise` where there is none.
    pub fn all(several: impl IntoIterator<Item = Self>, otherwise: impl FnOnce() -> Self) -> Self {
        let all: Vec<Observation> = several.into_iter().flat_map(|seen| seen.0).collect();
        if all.is_empty() { otherwise() } else { Self(all) }
    }

    /// What was seen by whoever could look, or said by whoever could not.
    pub fn either(seen: Result<Self, Self>) -> Self {
        seen.unwrap_or_else(|instead| instead)
    }

    /// The worst of it.
    pub fn verdict(&self) -> Verdict {
        self.0.iter().map(|observation| observation.verdict).max().unwrap_or(Verdict::Ok)
    }

    /// Whether something that was asked for does not work.
    pub fn has_failed(&self) -> bool {
        self.verdict() == Verdict::Fail
    }

    /// Everything that was seen.
    pub fn observations(&self) -> &[Observation] {
        &self.0
    }
}

impl From<Finding> for Observations {
    fn from(Finding { severity, what, cause, repair, .. }: Finding) -> Self {
        match severity {
            Severity::Info => Self::hint(what, cause, repair),
            Severity::Warning => Self::warn(what, cause, repair),
            Severity::Error => Self::fail(what, cause, repair),
        }
    }
}
