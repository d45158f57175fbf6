//! Messages about a reload.

use std::fmt;
use std::time::Duration;

use crate::config::Level;
use crate::prepared::Prepared;

use super::super::Exit;
use super::super::notice::how;
use super::{Cause, Outcome};

/// A message about a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the text of each is below, in `Display`")]
pub enum ReloadNotice {
    Begins { cause: Cause },
    Found(Box<Prepared>),
    NotReconfigured { exit: Exit },
    ReconfigureTooSlow { limit: Duration },
    GoesBack { name: String, why: String },
    NotRestored,
    Ended { outcome: Outcome, text: String, deferred: bool },
}

impl ReloadNotice {
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

impl fmt::Display for ReloadNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begins { cause: Cause::Hangup } => write!(f, "reloading, as SIGHUP asks"),
            Self::Begins { cause: Cause::Verb } => write!(f, "reloading, as `slurminit reload` asks"),
            Self::Begins { cause: Cause::Change } => write!(f, "reloading, as the configuration changed"),
            Self::Found(prepared) => write!(f, "found: {}", prepared.summary),
            Self::NotReconfigured { exit } => {
                write!(f, "`scontrol reconfigure` {}; restarting slurmctld and slurmd instead", how(exit))
            }
            Self::ReconfigureTooSlow { limit } => write!(
                f,
                "`scontrol reconfigure` did not end within {} s; restarting slurmctld and slurmd instead",
                limit.as_secs()
            ),
            Self::GoesBack { why, .. } => write!(f, "{why}: going back to the former files"),
            Self::NotRestored => write!(
                f,
                "the former files could not be written again; the line above says why. Correct the configuration and run \
                 `slurminit reload`"
            ),
            Self::Ended { outcome: Outcome::Unchanged | Outcome::Applied, text, .. } => write!(f, "reloaded: {text}"),
            Self::Ended { outcome: Outcome::Refused, text, .. } => {
                write!(f, "reload refused, everything runs as before: {text}")
            }
            Self::Ended { outcome: Outcome::WentBack, text, .. } => write!(f, "reload taken back: {text}"),
            Self::Ended { outcome: Outcome::Failed, text, .. } => write!(f, "reload failed: {text}"),
        }
    }
}
