//! The result of a check: a line of `doctor` or `configure`.

use serde::Serialize;

use super::{Finding, Kind, Severity};

/// The verdict of a check, in ascending severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The check found no problem.
    Ok,
    /// Information; no problem.
    Note,
    /// Unknown: the check could not run.
    CouldNotLook,
    /// Works, but degraded.
    Warn,
    /// A requested feature does not work.
    Fail,
}

impl Verdict {
    /// The mark in front of the observation.
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

/// One observation of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Observation {
    /// The verdict.
    pub verdict: Verdict,
    /// The observed fact; untrusted text.
    pub seen: String,
    /// The likely cause, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What to run or change, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// Whether [`Observations::explained`] sets the cause and fix to the usual ones of the check.
    #[serde(skip)]
    pub is_usual: bool,
}

impl Observation {
    /// A finding of this kind, for the log of a start; `None` unless the verdict is `Warn` or `Fail`, and both cause and fix
    /// are set.
    pub fn finding(self, kind: Kind) -> Option<Finding> {
        let severity = match self.verdict {
            Verdict::Fail => Severity::Error,
            Verdict::Warn => Severity::Warning,
            Verdict::Ok | Verdict::Note | Verdict::CouldNotLook => return None,
        };
        Some(Finding::new(kind, severity, self.seen, self.cause?, self.fix?))
    }
}

/// The observations of a check; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observations(Vec<Observation>);

impl Observations {
    fn plain(verdict: Verdict, seen: impl Into<String>) -> Self {
        Self(vec![Observation { verdict, seen: seen.into(), cause: None, fix: None, is_usual: false }])
    }

    fn usual(verdict: Verdict, seen: impl Into<String>) -> Self {
        Self(vec![Observation { verdict, seen: seen.into(), cause: None, fix: None, is_usual: true }])
    }

    /// The check found no problem.
    pub fn ok(seen: impl Into<String>) -> Self {
        Self::plain(Verdict::Ok, seen)
    }

    /// Information, or nothing to check.
    pub fn note(seen: impl Into<String>) -> Self {
        Self::plain(Verdict::Note, seen)
    }

    /// The check could not run, for this reason.
    pub fn could_not_look(why: impl Into<String>) -> Self {
        Self::plain(Verdict::CouldNotLook, why)
    }

    /// A note about a possible improvement, with the usual cause and fix of the check.
    pub fn usual_hint(seen: impl Into<String>) -> Self {
        Self::usual(Verdict::Note, seen)
    }

    /// A warning that something works, but degraded, with the usual cause and fix of the check.
    pub fn usual_warning(seen: impl Into<String>) -> Self {
        Self::usual(Verdict::Warn, seen)
    }

    /// A failure of a requested feature, with the usual cause and fix of the check.
    pub fn usual_fault(seen: impl Into<String>) -> Self {
        Self::usual(Verdict::Fail, seen)
    }

    /// An observation with a cause and a fix.
    pub fn with_fix(
        verdict: Verdict,
        seen: impl Into<String>,
        cause: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (cause, fix) = (Some(cause.into()), Some(fix.into()));
        Self(vec![Observation { verdict, seen: seen.into(), cause, fix, is_usual: false }])
    }

    /// A note about a possible improvement.
    pub fn hint(seen: impl Into<String>, cause: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::with_fix(Verdict::Note, seen, cause, fix)
    }

    /// Works, but degraded.
    pub fn warn(seen: impl Into<String>, cause: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::with_fix(Verdict::Warn, seen, cause, fix)
    }

    /// A requested feature does not work.
    pub fn fail(seen: impl Into<String>, cause: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::with_fix(Verdict::Fail, seen, cause, fix)
    }

    /// Joins the observations; `otherwise` if there are none.
    pub fn all(several: impl IntoIterator<Item = Self>, otherwise: impl FnOnce() -> Self) -> Self {
        let all: Vec<Observation> = several.into_iter().flat_map(|seen| seen.0).collect();
        if all.is_empty() { otherwise() } else { Self(all) }
    }

    /// The observations, or those that state why a check could not continue (`Err`).
    pub fn either(seen: Result<Self, Self>) -> Self {
        seen.unwrap_or_else(|instead| instead)
    }

    /// The same observations with the usual cause and fix of the check.
    #[must_use]
    pub fn explained(mut self, cause: &str, fix: &str) -> Self {
        for usual in self.0.iter_mut().filter(|observation| observation.is_usual) {
            (usual.cause, usual.fix) = (Some(cause.to_owned()), Some(fix.to_owned()));
        }
        self
    }

    /// The same observations with the fixes that `map` returns.
    pub fn map_fixes(mut self, map: impl Fn(&str) -> String) -> Self {
        let fixes = self.0.iter_mut().filter_map(|observation| observation.fix.as_mut());
        fixes.for_each(|fix| *fix = map(fix));
        self
    }

    /// The same observations with `fix` as the fix of each warning and failure. The fixes of notes remain unchanged.
    pub fn with_fix_of_faults(mut self, fix: &str) -> Self {
        for observation in &mut self.0 {
            if observation.verdict >= Verdict::Warn {
                observation.fix = Some(fix.to_owned());
            }
        }
        self
    }

    /// The worst verdict.
    pub fn verdict(&self) -> Verdict {
        self.0.iter().map(|observation| observation.verdict).max().unwrap_or(Verdict::Ok)
    }

    /// Whether a requested feature does not work.
    pub fn has_failed(&self) -> bool {
        self.verdict() == Verdict::Fail
    }

    /// All observations.
    pub fn observations(&self) -> &[Observation] {
        &self.0
    }
}

impl From<Finding> for Observations {
    fn from(Finding { severity, what, cause, fix, .. }: Finding) -> Self {
        match severity {
            Severity::Info => Self::hint(what, cause, fix),
            Severity::Warning => Self::warn(what, cause, fix),
            Severity::Error => Self::fail(what, cause, fix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_observation_is_the_verdict() {
        let all = |several: Vec<Observations>| Observations::all(several, || Observations::note("nothing"));
        assert_eq!(all(vec![]).verdict(), Verdict::Note);
        let cases = [
            (Observations::ok("a"), Verdict::Ok, '✓'),
            (Observations::note("a"), Verdict::Note, '-'),
            (Observations::usual_hint("a"), Verdict::Note, '-'),
            (Observations::hint("a", "b", "c"), Verdict::Note, '-'),
            (Observations::could_not_look("a"), Verdict::CouldNotLook, '?'),
            (Observations::usual_warning("a"), Verdict::Warn, '!'),
            (Observations::warn("a", "b", "c"), Verdict::Warn, '!'),
            (Observations::usual_fault("a"), Verdict::Fail, '✗'),
            (Observations::fail("a", "b", "c"), Verdict::Fail, '✗'),
        ];
        for (seen, verdict, mark) in cases {
            let joined = all(vec![Observations::ok("before"), seen.clone(), Observations::ok("after")]);
            assert_eq!((joined.verdict(), joined.verdict().mark()), (verdict, mark), "{seen:?}");
            assert_eq!((joined.observations().len(), joined.has_failed()), (3, verdict == Verdict::Fail));
            assert_eq!(Observations::either(Err(seen.clone())), seen);
        }
    }

    #[test]
    fn only_usual_observation_gets_cause_and_fix_of_check() {
        let seen =
            Observations::all([Observations::usual_warning("a"), Observations::warn("b", "own", "own fix")], || {
                Observations::ok("nothing")
            });
        let texts = |seen: &Observations| {
            let pair = |one: &Observation| {
                format!("{} {}", one.cause.as_deref().unwrap_or("-"), one.fix.as_deref().unwrap_or("-"))
            };
            seen.observations().iter().map(pair).collect::<Vec<_>>()
        };
        let explained = seen.explained("cause", "fix");
        assert_eq!(texts(&explained), ["cause fix", "own own fix"]);
        assert_eq!(texts(&explained.map_fixes(str::to_uppercase)), ["cause FIX", "own OWN FIX"]);
        let faults = Observations::all(
            [Observations::hint("a", "b", "c"), Observations::warn("a", "b", "c"), Observations::fail("a", "b", "c")],
            || Observations::ok("nothing"),
        );
        assert_eq!(texts(&faults.with_fix_of_faults("x")), ["b c", "b x", "b x"]);
    }

    #[test]
    fn problem_is_a_finding_of_its_severity() {
        let finding = |severity| Finding::new(Kind::Settings, severity, "a", "b", "c");
        for severity in [Severity::Warning, Severity::Error] {
            let seen = Observations::from(finding(severity)).observations()[0].clone();
            assert_eq!(seen.finding(Kind::Settings), Some(finding(severity)));
        }
        let hint = Observations::from(finding(Severity::Info)).observations()[0].clone();
        assert_eq!((hint.verdict, hint.finding(Kind::Settings)), (Verdict::Note, None));
    }
}
