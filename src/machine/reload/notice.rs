//! Messages about a reload.

use std::time::Duration;

use model::log::Level;
use model::prepared::Prepared;

use super::super::Exit;
use super::{Cause, Outcome};

/// A message about a reload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant is")]
pub enum ReloadNotice {
    #[error("reloading, as {}", match cause {
        Cause::Hangup => "SIGHUP asks",
        Cause::Verb => "`slurminit reload` asks",
        Cause::Change => "the configuration changed",
    })]
    Begins { cause: Cause },
    #[error("found: {}", .0.summary)]
    Found(Box<Prepared>),
    #[error("`scontrol reconfigure` {exit}; restarting slurmctld and slurmd instead")]
    NotReconfigured { exit: Exit },
    #[error(
        "`scontrol reconfigure` did not end within {} s; restarting slurmctld and slurmd instead",
        limit.as_secs()
    )]
    ReconfigureTooSlow { limit: Duration },
    #[error("{why}: going back to the former files")]
    GoesBack { name: String, why: String },
    #[error(
        "the former files could not be written again; the line above says why. Correct the configuration and run \
         `slurminit reload`"
    )]
    NotRestored,
    #[error("{}: {text}", match outcome {
        Outcome::Unchanged | Outcome::Applied => "reloaded",
        Outcome::Refused => "reload refused, everything runs as before",
        Outcome::WentBack => "reload taken back",
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
            Self::GoesBack { .. } => "reload-rollback",
            Self::NotRestored => "rollback-failed",
            Self::Ended { outcome: Outcome::Unchanged, .. } => "reload-unchanged",
            Self::Ended { outcome: Outcome::Applied, .. } => "reload-applied",
            Self::Ended { outcome: Outcome::Refused, .. } => "reload-refused",
            Self::Ended { outcome: Outcome::WentBack, .. } => "reload-rolled-back",
            Self::Ended { outcome: Outcome::Failed, .. } => "reload-failed",
        }
    }

    /// The log level of the message.
    pub fn level(&self) -> Level {
        match self {
            Self::GoesBack { .. } | Self::NotRestored => Level::Error,
            Self::Ended { outcome: Outcome::Refused | Outcome::WentBack | Outcome::Failed, .. } => Level::Error,
            Self::NotReconfigured { .. } | Self::ReconfigureTooSlow { .. } => Level::Warn,
            Self::Ended { deferred: true, .. } => Level::Warn,
            Self::Begins { .. } | Self::Found(_) | Self::Ended { .. } => Level::Info,
        }
    }
}
