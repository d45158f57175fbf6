//! The state of reloads.

use serde::{Deserialize, Serialize};

use model::prepared::{Apply, Prepared};

use super::super::finishing::Helper;
use super::super::{Child, Moment};
use crate::UnitId;

/// How a reload ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// No daemon had to be reconfigured or restarted.
    Unchanged,
    /// The daemons run with the new files.
    Applied,
    /// The configuration was rejected, or the preparation failed or timed out; no daemon was changed.
    Refused,
    /// The cluster did not work with the new files. The previous ones were restored.
    #[serde(rename = "went-back")]
    RolledBack,
    /// The new files do not work, and the previous ones were not restored or do not work either; the cause is in the log.
    Failed,
}

/// Reloads so far, for `status` and for clients that wait for one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadSnapshot {
    /// How many reloads were requested.
    pub asked: u64,
    /// Whether a reload is running or queued.
    pub running: bool,
    /// The last reload that ended.
    pub last: Option<LastReload>,
}

/// A reload that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastReload {
    /// How many requests, counted from the start of slurminit, are served once this reload has ended.
    pub serves: u64,
    /// The end of the reload, in milliseconds since slurminit started.
    pub at_ms: u64,
    /// The outcome.
    pub outcome: Outcome,
    /// A readable description in one line.
    pub text: String,
}

/// What caused a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// SIGHUP.
    Hangup,
    /// `slurminit reload`.
    Verb,
    /// A file in the operator's directory was written, moved or deleted.
    Change,
}

/// The current reload, the next one and the last one.
#[derive(Debug, Default)]
pub(in super::super) struct Reload {
    pub(super) stage: Stage,
    pub(super) settle: Option<Moment>,
    /// The next reload, if one was requested and has not begun.
    pub(super) next: Option<Cause>,
    pub(super) request_count: u64,
    /// How many of the requests so far are served once the current reload has ended.
    pub(super) served_requests: u64,
    pub(super) last: Option<LastReload>,
}

/// The stage of a reload.
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
    /// slurmd, then slurmctld, are being stopped; neither starts meanwhile.
    Stopping {
        work: Work,
    },
    /// The daemons start, and the node must become usable or remain drained.
    Starting {
        until: Moment,
        work: Work,
    },
    /// The files are applied, and a helper creates the accounts or runs the test job.
    Finishing {
        helper: Helper,
        work: Work,
    },
    /// The files are applied. The daemons are watched for a crash that the new files cause.
    Watching {
        until: Moment,
        work: Work,
    },
    /// The previous files are being restored.
    Restoring {
        until: Moment,
        work: Work,
    },
}

/// A change in progress.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) apply: Apply,
    pub(super) news: Vec<String>,
    pub(super) deferred: Vec<String>,
    pub(super) changed: Vec<String>,
    /// The result of the previous preparation.
    pub(super) previous: Option<Prepared>,
    /// Whether the node was usable with the previous files. A node drained by an administrator or by the agent counts as usable.
    pub(super) was_usable: bool,
    /// The number of unexpected deaths of slurmctld and slurmd.
    pub(super) deaths: u32,
    /// `None` while the new files are applied.
    pub(super) rollback: Option<Rollback>,
}

/// The restoration of the previous files, and its reason.
#[derive(Debug)]
pub(super) struct Rollback {
    pub(super) why: String,
    /// The unit that died with the new files; `None` if the cluster did not become ready, or the test job failed.
    pub(super) failed_unit: Option<UnitId>,
    /// Whether the previous files are installed again.
    pub(super) is_restored: bool,
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
            Stage::Finishing { helper, .. } => Some(helper.until),
        };
        stage.into_iter().chain(self.settle).min()
    }

    /// Whether the reload waits for the daemons and the node.
    pub(in super::super) fn awaits_node(&self) -> bool {
        matches!(self.stage, Stage::Starting { .. })
    }

    /// Whether the reload waits for this helper.
    pub(in super::super) fn awaits(&self, child: Child) -> bool {
        matches!(self.stage, Stage::Finishing { helper, .. } if helper.child == child)
    }

    /// Whether the new or the previous files are being applied to slurmctld and slurmd, which may be slow in these stages.
    /// Once they start again, liveness checks apply as usual.
    pub(in super::super) fn is_applying(&self) -> bool {
        matches!(self.stage, Stage::Reconfiguring { .. } | Stage::Stopping { .. } | Stage::Restoring { .. })
    }

    /// Cancels the reload, because the container stops.
    pub(in super::super) fn cancel(&mut self) {
        (self.stage, self.settle, self.next) = (Stage::Idle, None, None);
    }

    pub(in super::super) fn snapshot(&self) -> ReloadSnapshot {
        let running = self.next.is_some() || !matches!(self.stage, Stage::Idle | Stage::Watching { .. });
        ReloadSnapshot { asked: self.request_count, running, last: self.last.clone() }
    }
}

impl Stage {
    pub(super) fn into_work(self) -> Option<Work> {
        match self {
            Self::Idle | Self::Preparing { .. } => None,
            Self::Reconfiguring { work, .. }
            | Self::Stopping { work, .. }
            | Self::Starting { work, .. }
            | Self::Finishing { work, .. }
            | Self::Watching { work, .. }
            | Self::Restoring { work, .. } => Some(work),
        }
    }
}

impl Work {
    /// One line that states what changed, how it was applied, and what waits for the next start.
    pub(super) fn text(&self, without_news: &str, with_news: &str) -> String {
        let mut text = match self.news.as_slice() {
            [] => without_news.to_owned(),
            news => format!("new: {}; {with_news}", news.join(", ")),
        };
        if !self.deferred.is_empty() {
            let tables = self.deferred.join(", ");
            text.push_str(&format!(
                "; not applied yet: changes to {tables} in slurminit.toml (they take effect at the next start of the container)"
            ));
        }
        text
    }
}
