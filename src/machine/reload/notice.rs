//! Messages about a reload.

use std::time::Duration;

use model::log::Level;
use model::prepared::Prepared;

use super::super::Exit;
use super::{Cause, Outcome};

/// A message about a reload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message describes the variant")]
pub enum ReloadNotice {
    #[error("reloading: {}", match cause {
        Cause::Hangup => "received SIGHUP",
        Cause::Verb => "requested by `slurminit reload`",
        Cause::Change => "the configuration changed",
    })]
    Begins { cause: Cause },
    #[error("detected: {}", .0.summary)]
    Found(Box<Prepared>),
    #[error("`scontrol reconfigure` {exit}; restarting slurmctld and slurmd instead")]
    NotReconfigured { exit: Exit },
    #[error(
        "`scontrol reconfigure` timed out after {} s; restarting slurmctld and slurmd instead",
        limit.as_secs()
    )]
    ReconfigureTooSlow { limit: Duration },
    #[error("{why}; restoring the previous files")]
    RollingBack { name: String, why: String },
    #[error(
        "could not restore the previous files; see the error above. Correct the configuration, then run \
         `slurminit reload`"
    )]
    NotRestored,
    #[error("{}: {text}", match outcome {
        Outcome::Unchanged | Outcome::Applied => "reloaded",
        Outcome::Refused => "reload refused, nothing changed",
        Outcome::RolledBack => "reload rolled back",
        Outcome::Failed => "reload failed",
    })]
    Ended { outcome: Outcome, text: String, deferred: bool },
}

impl ReloadNotice {
    /// The event, for programs that read the log as JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Begins { .. } => "reload-started",
            Self::Found(_) => "reload-prepared",
            Self::NotReconfigured { .. } => "reconfigure-failed",
            Self::ReconfigureTooSlow { .. } => "reconfigure-timeout",
            Self::RollingBack { .. } => "reload-rollback",
            Self::NotRestored => "rollback-failed",
            Self::Ended { outcome: Outcome::Unchanged, .. } => "reload-unchanged",
            Self::Ended { outcome: Outcome::Applied, .. } => "reload-applied",
            Self::Ended { outcome: Outcome::Refused, .. } => "reload-refused",
            Self::Ended { outcome: Outcome::RolledBack, .. } => "reload-rolled-back",
            Self::Ended { outcome: Outcome::Failed, .. } => "reload-failed",
        }
    }

    /// The log level of the message.
    pub fn level(&self) -> Level {
        match self {
            Self::RollingBack { .. } | Self::NotRestored => Level::Error,
            Self::Ended { outcome: Outcome::Refused | Outcome::RolledBack | Outcome::Failed, .. } => Level::Error,
            Self::NotReconfigured { .. } | Self::ReconfigureTooSlow { .. } => Level::Warn,
            Self::Ended { deferred: true, .. } => Level::Warn,
            Self::Begins { .. } | Self::Found(_) | Self::Ended { .. } => Level::Info,
        }
    }
}
