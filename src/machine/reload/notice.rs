//! Messages about a reload.

use std::time::Duration;

use model::log::Level;
use model::message;
use model::message::Message;
use model::prepared::Prepared;

use super::super::Exit;
use super::{Cause, Outcome};

/// A message about a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the message describes the variant")]
pub enum ReloadNotice {
    Begins { cause: Cause },
    Found(Box<Prepared>),
    NotReconfigured { exit: Exit },
    ReconfigureTooSlow { limit: Duration },
    RollingBack { name: String, why: String },
    NotRestored,
    Ended { outcome: Outcome, text: String, deferred: bool },
}

impl ReloadNotice {
    /// The kind, the constant text and the data.
    pub fn message(&self) -> Message {
        match self {
            Self::Begins { cause } => message!(
                "reload-started",
                "reloading: {cause}",
                cause = match cause {
                    Cause::Hangup => "received SIGHUP",
                    Cause::Verb => "requested by `slurminit reload`",
                    Cause::Change => "the configuration changed",
                }
            ),
            Self::Found(prepared) => {
                message!("reload-prepared", "detected: {summary}", summary = prepared.summary)
            }
            Self::NotReconfigured { exit } => message!(
                "reconfigure-failed",
                "`scontrol reconfigure` {exit}; restarting slurmctld and slurmd instead",
                exit = exit
            ),
            Self::ReconfigureTooSlow { limit } => message!(
                "reconfigure-timeout",
                "`scontrol reconfigure` timed out after {seconds} s; restarting slurmctld and slurmd instead",
                seconds = limit.as_secs()
            ),
            Self::RollingBack { why, .. } => {
                message!("reload-rollback", "{why}; restoring the previous files", why = why)
            }
            Self::NotRestored => message!(
                "rollback-failed",
                "could not restore the previous files; see the error above. Correct the configuration, then run `slurminit reload`"
            ),
            Self::Ended { outcome: Outcome::Unchanged, text, .. } => {
                message!("reload-unchanged", "reloaded: {text}", text = text)
            }
            Self::Ended { outcome: Outcome::Applied, text, .. } => {
                message!("reload-applied", "reloaded: {text}", text = text)
            }
            Self::Ended { outcome: Outcome::Refused, text, .. } => {
                message!("reload-refused", "reload refused, nothing changed: {text}", text = text)
            }
            Self::Ended { outcome: Outcome::RolledBack, text, .. } => {
                message!("reload-rolled-back", "reload rolled back: {text}", text = text)
            }
            Self::Ended { outcome: Outcome::Failed, text, .. } => {
                message!("reload-failed", "reload failed: {text}", text = text)
            }
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
