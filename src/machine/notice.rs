//! Messages to the operator: the event, its cause, and the command that fixes it.

mod messages;

use std::fmt;
use std::time::Duration;

use model::inventory::Finding;
use model::log::Level;
use model::prepared::Prepared;

use super::{Exit, ReloadNotice, Shortage, SpawnFailure};
use crate::node_report::NodeReport;

/// A message to the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the message describes the variant")]
pub enum Notice {
    PrepareSlow,
    PrepareTooSlow {
        limit: Duration,
    },
    HookTooSlow {
        index: usize,
        limit: Duration,
    },
    HookFailed {
        index: usize,
        exit: Exit,
    },
    Prepared(Box<Prepared>),
    Refused(Finding),
    UnitReady {
        name: String,
        after: Duration,
    },
    UnitDied {
        name: String,
        exit: Exit,
        uptime: Duration,
        pause: Duration,
    },
    CrashLoop {
        name: String,
        deaths: u32,
    },
    UnitFinished {
        name: String,
        exit: Exit,
    },
    DependencyFailed {
        name: String,
        dependency: String,
    },
    UnitStopped {
        name: String,
        exit: Exit,
        expected: bool,
    },
    SlowStart {
        name: String,
        timeout: Duration,
    },
    RestartRequested {
        name: String,
    },
    NeverReady {
        name: String,
        after: Duration,
    },
    GaveUp {
        name: String,
        failures: u32,
        within: Duration,
        last: Exit,
        hold: bool,
    },
    FailedExternally {
        name: String,
        exit: Exit,
        shortage: Shortage,
        pause: Duration,
    },
    Unresponsive {
        name: String,
        why: String,
    },
    StillUnresponsive {
        name: String,
        why: String,
        pause: Duration,
    },
    Overloaded {
        name: String,
        why: String,
    },
    Slow {
        name: String,
        why: String,
    },
    NotChecked {
        name: String,
        why: String,
    },
    NoVerdict {
        rounds: u32,
    },
    Resuming {
        reason: String,
    },
    DrainedByAdministrator {
        node: String,
        reason: String,
    },
    NotReady {
        after: Duration,
        node: Option<NodeReport>,
        waiting_for: String,
    },
    /// `gres` is `None` in a container without a node.
    Ready {
        gres: Option<String>,
    },
    CmdNotStarted(SpawnFailure),
    StopRequested {
        signal: i32,
    },
    Reload(ReloadNotice),
    SecondStopSignal,
    Killing {
        name: String,
    },
    JobsNotAccountedAtStop,
    JobsNotNotified {
        exit: Exit,
    },
    WaitingForJobs,
    JobsNotAwaited {
        exit: Exit,
    },
    JobsNotRecovered {
        exit: Exit,
    },
    JobsNotAccounted {
        exit: Exit,
    },
    JobsNotReclaimed {
        exit: Exit,
    },
    EnvironmentsNotWritten {
        exit: Exit,
    },
    AssociationsNotMade {
        exit: Exit,
    },
    Unkillable,
    Ended {
        code: u8,
        why: Option<Box<Notice>>,
    },
}

impl Notice {
    /// The daemon or service that the message concerns.
    pub fn unit(&self) -> Option<&str> {
        match self {
            Self::Reload(ReloadNotice::RollingBack { name, .. }) => Some(name).filter(|name| !name.is_empty()),
            Self::Ended { why: Some(why), .. } => return why.unit(),
            Self::UnitReady { name, .. }
            | Self::UnitDied { name, .. }
            | Self::CrashLoop { name, .. }
            | Self::UnitFinished { name, .. }
            | Self::DependencyFailed { name, .. }
            | Self::UnitStopped { name, .. }
            | Self::SlowStart { name, .. }
            | Self::RestartRequested { name, .. }
            | Self::NeverReady { name, .. }
            | Self::GaveUp { name, .. }
            | Self::FailedExternally { name, .. }
            | Self::Unresponsive { name, .. }
            | Self::StillUnresponsive { name, .. }
            | Self::Overloaded { name, .. }
            | Self::Slow { name, .. }
            | Self::NotChecked { name, .. }
            | Self::Killing { name, .. } => Some(name),
            _ => None,
        }
        .map(String::as_str)
    }

    /// The log level of the message.
    pub fn level(&self) -> Level {
        match self {
            Self::Reload(notice) => notice.level(),
            Self::PrepareTooSlow { .. }
            | Self::HookTooSlow { .. }
            | Self::HookFailed { .. }
            | Self::Refused(_)
            | Self::GaveUp { .. }
            | Self::NotReady { .. }
            | Self::CmdNotStarted(_)
            | Self::Ended { why: Some(_), .. } => Level::Error,
            // A shell killed by SIGTERM exits with 143.
            Self::UnitStopped { exit: Exit::Code(0 | 143) | Exit::Signal(libc::SIGTERM), expected: true, .. }
            | Self::UnitReady { .. } => Level::Debug,
            Self::Prepared(_)
            | Self::UnitFinished { .. }
            | Self::RestartRequested { .. }
            | Self::Resuming { .. }
            | Self::Ready { .. }
            | Self::StopRequested { .. }
            | Self::WaitingForJobs
            | Self::SecondStopSignal
            | Self::Ended { why: None, .. } => Level::Info,
            _ => Level::Warn,
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message().text)
    }
}
