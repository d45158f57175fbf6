//! What a reload is made of.

use serde::{Deserialize, Serialize};

use crate::report::{Apply, Prepared};

use super::super::Moment;

/// How a reload ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Nothing was to do.
    Unchanged,
    /// The daemons run with the new files.
    Applied,
    /// The new configuration is not valid; nothing was touched.
    Refused,
    /// The daemons could not run with the new files, and run with the former ones.
    WentBack,
    /// The cluster is not as it should be; the log says why.
    Failed,
}

/// The reloads so far, for `status` and for those who wait for one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadSnapshot {
    /// How often one was asked for.
    pub asked: u64,
    /// Whether one is under way, or waits for its turn.
    pub running: bool,
    /// The last one that ended.
    pub last: Option<LastReload>,
}

/// A reload that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastReload {
    /// It serves the first so many that were asked for.
    pub serves: u64,
    /// When it ended, in milliseconds since slurminit started.
    pub at_ms: u64,
    /// How.
    pub outcome: Outcome,
    /// One line for a person.
    pub text: String,
}

/// What asks for a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// SIGHUP.
    Hangup,
    /// `slurminit reload`.
    Verb,
    /// Something was written in the operator's directory.
    Change,
}

/// Reloads, past and present.
#[derive(Debug, Default)]
pub(in super::super) struct Reload {
    pub(super) stage: Stage,
    pub(super) settle: Option<Moment>,
    /// The next one, if one was asked for and has not begun.
    pub(super) next: Option<Cause>,
    pub(super) asked: u64,
    /// How many of `asked` the one under way serves.
    pub(super) serves: u64,
    pub(super) last: Option<LastReload>,
}

/// Where a reload is.
#[derive(Debug, Default)]
pub(super) enum Stage {
    #[default]
    Idle,
    Preparing {
        until: Moment,
    },
    Reconfiguring {
        until: Moment,
        work: Work,
    },
    /// slurmd, then slurmctld, are told to end; nothing starts meanwhile.
    Stopping {
        work: Work,
        reopen: bool,
    },
    /// They start, and the node is waited for.
    Starting {
        until: Moment,
        work: Work,
    },
    /// It is applied; a daemon that dies of it can still show itself.
    Watching {
        until: Moment,
        work: Work,
    },
    /// The former files are being written.
    Restoring {
        until: Moment,
        work: Work,
        reopen: bool,
    },
}

/// A change under way.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) apply: Apply,
    pub(super) news: Vec<String>,
    pub(super) deferred: Vec<String>,
    pub(super) changed: Vec<String>,
    /// What the preparation before it decided.
    pub(super) former: Option<Prepared>,
    /// Whether the node could be used before.
    pub(super) was_usable: bool,
    pub(super) deaths: u32,
    /// Why the daemons get the former files; `None` on the way forth.
    pub(super) back: Option<String>,
    /// The unit that died of the new ones.
    pub(super) died: Option<usize>,
}

impl Reload {
    pub(in super::super) fn next_wake(&self) -> Option<Moment> {
        let stage = match &self.stage {
            Stage::Idle | Stage::Stopping { .. } => None,
            Stage::Preparing { until }
            | Stage::Reconfiguring { until, .. }
            | Stage::Starting { until, .. }
            | Stage::Watching { until, .. }
            | Stage::Restoring { until, .. } => Some(*until),
        };
        stage.into_iter().chain(self.settle).min()
    }

    /// Whether the node is on its way back.
    pub(in super::super) fn awaits_node(&self) -> bool {
        matches!(self.stage, Stage::Starting { .. })
    }

    /// Whether slurmctld and slurmd are being given new files: they are slow now, and each of these stages has a deadline of
    /// its own. Once they start again they are judged as ever.
    pub(in super::super) fn is_applying(&self) -> bool {
        matches!(self.stage, Stage::Reconfiguring { .. } | Stage::Stopping { .. } | Stage::Restoring { .. })
    }

    /// The container stops, which is more.
    pub(in super::super) fn cancel(&mut self) {
        (self.stage, self.settle, self.next) = (Stage::Idle, None, None);
    }

    pub(in super::super) fn snapshot(&self) -> ReloadSnapshot {
        let running = self.next.is_some() || !matches!(self.stage, Stage::Idle | Stage::Watching { .. });
        ReloadSnapshot { asked: self.asked, running, last: self.last.clone() }
    }
}

impl Work {
    /// What was new, what was done for it, and what is left for the next start.
    pub(super) fn text(&self, without_news: &str, with_news: &str) -> String {
        let mut text = match self.news.as_slice() {
            [] => without_news.to_owned(),
            news => format!("new: {}; {with_news}", news.join(", ")),
        };
        if !self.deferred.is_empty() {
            let tables = self.deferred.join(", ");
            text.push_str(&format!(
                "; not taken: {tables} of slurminit.toml counts from the next start of the container"
            ));
        }
        text
    }
}
