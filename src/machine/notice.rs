//! Messages to the operator: the event, its cause, and the command that fixes it.

use std::time::Duration;

use model::inventory::Finding;
use model::log::Level;
use model::prepared::Prepared;

use super::{Exit, ReloadNotice, Shortage, SpawnFailure};
use crate::node_report::NodeReport;

/// A message to the operator. `thiserror` only generates `Display`; not every message is an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message describes the variant")]
pub enum Notice {
    #[error("still detecting GPUs; a driver can take seconds to initialise")]
    PrepareSlow,
    #[error(
        "the preparation timed out after {limit:?}: a driver or a disk hangs; run `slurminit detect`, or raise prepare_timeout"
    )]
    PrepareTooSlow { limit: Duration },
    #[error("pre-start hook {} timed out after {limit:?}; fix it, or raise its `timeout`", index + 1)]
    HookTooSlow { index: usize, limit: Duration },
    #[error("pre-start hook {} {exit}; nothing was started", index + 1)]
    HookFailed { index: usize, exit: Exit },
    #[error("this start: {}", .0.summary)]
    Prepared(Box<Prepared>),
    #[error("{0}")]
    Refused(Finding),
    #[error("{name} is ready after {} ms", after.as_millis())]
    UnitReady { name: String, after: Duration },
    #[error("{name} {exit}{}; restarting {}", after(*ran), when(*pause))]
    UnitDied { name: String, exit: Exit, ran: Duration, pause: Duration },
    #[error(
        "{name} is in a crash loop ({deaths} crashes), probably caused by a request; restarting; see `slurminit logs {name}`"
    )]
    CrashLoop { name: String, deaths: u32 },
    #[error("{name} {exit}; will not be restarted")]
    UnitFinished { name: String, exit: Exit },
    #[error(
        "{name} is not started, because its dependency {need} has failed; correct {need}, then run `slurminit restart {need}`"
    )]
    NeedFailed { name: String, need: String },
    #[error("{name} {exit}")]
    UnitStopped { name: String, exit: Exit, expected: bool },
    #[error("{name} is still starting (timeout {} s)", patience.as_secs())]
    SlowStart { name: String, patience: Duration },
    #[error("restart requested: {name}")]
    RestartAsked { name: String },
    #[error("{name} is not ready after {:.1} s; restarting", after.as_secs_f64())]
    NeverReady { name: String, after: Duration },
    #[error(
        "{name} failed {failures} times within {} s (last: {last}); {}", within.as_secs(),
        if *hold { "the container continues without it" } else { "stopping the container" }
    )]
    GaveUp { name: String, failures: u32, within: Duration, last: Exit, hold: bool },
    #[error("{name} {exit}; {}", external_failure(*shortage, *pause))]
    FailedExternally { name: String, exit: Exit, shortage: Shortage, pause: Duration },
    #[error("{name} is running but not responding ({why}); restarting")]
    Unresponsive { name: String, why: String },
    #[error(
        "{name} is not responding after a restart ({why}); next restart in {} s, or now with `slurminit restart {name}`",
        pause.as_secs()
    )]
    StillUnresponsive { name: String, why: String, pause: Duration },
    #[error("{name} is overloaded by clients ({why}); not restarting, because a restart would not help")]
    Overloaded { name: String, why: String },
    #[error("{name} is slow ({why}); restarting it if this lasts a minute")]
    Slow { name: String, why: String },
    #[error("could not check whether {name} is responding: {why}")]
    NotChecked { name: String, why: String },
    #[error(
        "the last {rounds} liveness checks timed out or did not start; check whether CPU, memory or processes have run out"
    )]
    NoVerdict { rounds: u32 },
    #[error("resuming the node: the cause of its drain is repaired (\"{reason}\")")]
    Resuming { reason: String },
    #[error(
        "the node stays drained, not by slurminit (\"{reason}\"); to resume it: scontrol update nodename={node} state=resume"
    )]
    DrainedByAdministrator { node: String, reason: String },
    #[error(
        "not ready after {} s: waiting for {waiting_for}{}; see the lines above and `scontrol show node`",
        after.as_secs(),
        node.as_ref().map(|node| format!(" (the node is {node})")).unwrap_or_default()
    )]
    NotReady { after: Duration, node: Option<NodeReport>, waiting_for: String },
    /// `gres` is `None` in a container without a node.
    #[error("ready: {}", ready(gres.as_deref()))]
    Ready { gres: Option<String> },
    #[error("{}", .0.message)]
    CmdNotStarted(SpawnFailure),
    #[error("received {}; stopping", signal_name(*signal))]
    StopAsked { signal: i32 },
    #[error("{0}")]
    Reload(ReloadNotice),
    #[error("second stop signal; killing all processes")]
    SecondStopSignal,
    #[error("{name} did not end in time; killing it")]
    Killing { name: String },
    #[error(
        "could not account for the jobs within {:.0} s: slurmctld is not responding; the next start accounts for them",
        within.as_secs_f64()
    )]
    JobsNotAccountedAtStop { within: Duration },
    #[error(
        "could not notify running jobs of the stop (`slurminit jobs quiesce` {exit}); the next start requeues or fails them"
    )]
    JobsNotNotified { exit: Exit },
    #[error("the command has ended; waiting for the jobs in the queue")]
    WaitingForJobs,
    #[error("could not wait for the jobs in the queue (`slurminit jobs wait` {exit}); stopping the container")]
    JobsNotAwaited { exit: Exit },
    #[error(
        "could not requeue lost jobs (`slurminit jobs recover` {exit}); they hold their GPUs until scontrol requeue or scancel"
    )]
    JobsNotRecovered { exit: Exit },
    #[error(
        "could not find jobs that slurmctld has forgotten (`slurminit jobs account` {exit}); --no-requeue jobs may run twice"
    )]
    JobsNotAccounted { exit: Exit },
    #[error(
        "could not find jobs without a process (`slurminit jobs reclaim` {exit}); they hold their GPUs until scancel"
    )]
    JobsNotReclaimed { exit: Exit },
    #[error(
        "could not write login environments (`slurminit environments` {exit}); new users' jobs with --export=NONE have no HOME"
    )]
    EnvironmentsNotWritten { exit: Exit },
    #[error(
        "could not create all accounts (`slurminit associations` {exit}); see the error above, then `slurminit reload`"
    )]
    AssociationsNotMade { exit: Exit },
    #[error("a process survived SIGKILL (blocked in the kernel, or the capability KILL is missing); exiting anyway")]
    Unkillable,
    #[error(
        "stopped; exit code {code}{}",
        why.as_ref().map(|why| format!(" (see docs/reference/exit-codes.md): {why}")).unwrap_or_default()
    )]
    Ended { code: u8, why: Option<Box<Notice>> },
}

impl Notice {
    /// The event, for programs that read the log as JSON. Stable across releases, unlike the message.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::PrepareSlow => "preparation-slow",
            Self::PrepareTooSlow { .. } => "preparation-timeout",
            Self::HookTooSlow { .. } => "hook-timeout",
            Self::HookFailed { .. } => "hook-failed",
            Self::Prepared(_) => "prepared",
            Self::Refused(_) => "start-refused",
            Self::UnitReady { .. } => "unit-ready",
            Self::UnitDied { .. } => "unit-died",
            Self::CrashLoop { .. } => "unit-crash-loop",
            Self::UnitFinished { .. } => "unit-finished",
            Self::NeedFailed { .. } => "dependency-failed",
            Self::UnitStopped { .. } => "unit-stopped",
            Self::SlowStart { .. } => "unit-starts-slowly",
            Self::RestartAsked { .. } => "restart-requested",
            Self::NeverReady { .. } => "unit-never-ready",
            Self::GaveUp { .. } => "unit-given-up",
            Self::FailedExternally { .. } => "external-failure",
            Self::Unresponsive { .. } => "unit-unresponsive",
            Self::StillUnresponsive { .. } => "unit-left-unresponsive",
            Self::Overloaded { .. } => "unit-overloaded",
            Self::Slow { .. } => "unit-slow",
            Self::NotChecked { .. } => "unit-not-checked",
            Self::NoVerdict { .. } => "liveness-unknown",
            Self::Resuming { .. } => "node-resumed",
            Self::DrainedByAdministrator { .. } => "node-drained-by-administrator",
            Self::NotReady { .. } => "not-ready",
            Self::Ready { .. } => "ready",
            Self::CmdNotStarted(_) => "command-not-started",
            Self::StopAsked { .. } => "stop-requested",
            Self::Reload(notice) => notice.kind(),
            Self::SecondStopSignal => "stop-hurried",
            Self::Killing { .. } => "unit-killed",
            Self::JobsNotAccountedAtStop { .. } => "jobs-not-accounted-at-stop",
            Self::JobsNotNotified { .. } => "jobs-not-notified",
            Self::WaitingForJobs => "waiting-for-jobs",
            Self::JobsNotAwaited { .. } => "jobs-not-waited-for",
            Self::JobsNotRecovered { .. } => "jobs-not-recovered",
            Self::JobsNotAccounted { .. } => "jobs-not-accounted",
            Self::JobsNotReclaimed { .. } => "jobs-not-reclaimed",
            Self::EnvironmentsNotWritten { .. } => "environments-not-written",
            Self::AssociationsNotMade { .. } => "associations-not-made",
            Self::Unkillable => "process-survives-kill",
            Self::Ended { .. } => "stopped",
        }
    }

    /// The daemon or service that the message concerns.
    pub fn unit(&self) -> Option<&str> {
        match self {
            Self::Reload(ReloadNotice::RollingBack { name, .. }) => Some(name).filter(|name| !name.is_empty()),
            Self::Ended { why: Some(why), .. } => return why.unit(),
            Self::UnitReady { name, .. }
            | Self::UnitDied { name, .. }
            | Self::CrashLoop { name, .. }
            | Self::UnitFinished { name, .. }
            | Self::NeedFailed { name, .. }
            | Self::UnitStopped { name, .. }
            | Self::SlowStart { name, .. }
            | Self::RestartAsked { name, .. }
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
            | Self::RestartAsked { .. }
            | Self::Resuming { .. }
            | Self::Ready { .. }
            | Self::StopAsked { .. }
            | Self::WaitingForJobs
            | Self::SecondStopSignal
            | Self::Ended { why: None, .. } => Level::Info,
            _ => Level::Warn,
        }
    }
}

/// The run time, as part of a sentence. It is zero for a process that slurminit stopped.
fn after(ran: Duration) -> String {
    if ran.is_zero() { String::new() } else { format!(" after {:.1} s", ran.as_secs_f64()) }
}

/// `SIGTERM`, or `signal 40` for a real-time signal.
fn signal_name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

fn when(pause: Duration) -> String {
    match pause.as_millis() {
        0 => "now".to_owned(),
        ms => format!("in {ms} ms"),
    }
}

fn external_failure(shortage: Shortage, pause: Duration) -> String {
    let why = match shortage {
        Shortage::Processes => {
            "the container's process limit was reached: end processes (`ps -eo user,pid,comm`), or raise --pids-limit or `ulimit -u`"
        }
        Shortage::UserProcesses => {
            "its user's process limit was reached (all containers of the host): raise --ulimit nproc, or use --pids-limit instead"
        }
        Shortage::Memory => {
            "out of memory (OOM kill): end the largest processes (`ps -eo user,pid,rss,comm --sort=-rss`), or raise --memory"
        }
        Shortage::Descriptors => "no file descriptors left: raise --ulimit nofile, or the machine's fs.file-max",
        Shortage::Port(port) => return format!("port {port} is in use by another process; looking for the owner"),
    };
    let further = if pause.as_millis() == 0 { "" } else { "; will keep retrying" };
    format!("{why}; retrying {}{further}", when(pause))
}

fn ready(gres: Option<&str>) -> String {
    match gres {
        Some(gres) => format!("the node accepts jobs (GPUs: {})", if gres.is_empty() { "none" } else { gres }),
        None => "the controller responds".to_owned(),
    }
}
