//! Messages from the machine to the operator: what happened, why, and which command helps.

use std::time::Duration;

use model::inventory::Finding;
use model::log::Level;
use model::prepared::Prepared;

use super::{Exit, ReloadNotice, Shortage, SpawnFailure};
use crate::node_report::NodeReport;

/// A message to the operator. That some are no errors does not matter to the derive, which writes `Display`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant is")]
pub enum Notice {
    #[error("still looking for GPUs; a driver can take seconds to initialise")]
    PrepareSlow,
    #[error(
        "the preparation did not end within {limit:?}: a driver or a disk hangs; \
         see `slurminit detect` in the container, or raise supervise.prepare_timeout"
    )]
    PrepareTooSlow { limit: Duration },
    #[error("pre-start hook {} did not end within {limit:?}; raise its `timeout` or mend it", index + 1)]
    HookTooSlow { index: usize, limit: Duration },
    #[error("pre-start hook {} {exit}; nothing was started", index + 1)]
    HookFailed { index: usize, exit: Exit },
    #[error("this start: {}", .0.summary)]
    Prepared(Box<Prepared>),
    #[error("{0}")]
    Refused(Finding),
    #[error("{name} is ready after {} ms", after.as_millis())]
    UnitReady { name: String, after: Duration },
    #[error("{name} {exit}{}; starting it again {}", after(*ran), when(*pause))]
    UnitDied { name: String, exit: Exit, ran: Duration, pause: Duration },
    #[error(
        "{name} died {deaths} times in a row, but it served before: what it is asked for ends it, not its configuration. \
         It goes on being started; its last words are above, and `slurminit logs {name}` shows what came before them"
    )]
    DiesInService { name: String, deaths: u32 },
    #[error("{name} {exit}, and is not started again")]
    UnitFinished { name: String, exit: Exit },
    #[error(
        "{name} is not started: {need}, which it needs, has failed; correct {need}, then `slurminit restart {need}`"
    )]
    NeedFailed { name: String, need: String },
    #[error("{name} {exit}")]
    UnitStopped { name: String, exit: Exit, expected: bool },
    #[error("{name} runs and is not ready yet; it has {} s in all", patience.as_secs())]
    StartsSlowly { name: String, patience: Duration },
    #[error("starting {name} again, as asked")]
    RestartAsked { name: String },
    #[error("{name} runs for {:.1} s and is not ready; restarting it", after.as_secs_f64())]
    NeverReady { name: String, after: Duration },
    #[error(
        "{name} failed {failures} times within {} s; it last {last}; the container {}", within.as_secs(),
        if *hold { "goes on without it" } else { "ends" }
    )]
    GaveUp { name: String, failures: u32, within: Duration, last: Exit, hold: bool },
    #[error("{name} {exit}; {}", external_failure(*shortage, *pause))]
    FailedExternally { name: String, exit: Exit, shortage: Shortage, pause: Duration },
    #[error("{name} lives and does not answer: {why}; restarting it")]
    Silent { name: String, why: String },
    #[error(
        "{name} does not answer again: {why}; a restart has not helped, so it is left as it is for {} s; \
         `slurminit restart {name}` does it now",
        pause.as_secs()
    )]
    LeftSilent { name: String, why: String, pause: Duration },
    #[error("{name} runs and is kept busy: {why}; a restart would not help, so it goes on")]
    Overloaded { name: String, why: String },
    #[error("{name} is slow: {why}; it is restarted if that goes on for a minute")]
    Slow { name: String, why: String },
    #[error("nobody can tell whether {name} still answers: {why}")]
    NotAsked { name: String, why: String },
    #[error(
        "the last {rounds} liveness probes did not end or could not be started; is the machine out of CPU, memory \
         or processes?"
    )]
    NoVerdict { rounds: u32 },
    #[error("the node was drained because \"{reason}\"; that is repaired by now, so the drain is taken back")]
    Resuming { reason: String },
    #[error(
        "the node is drained (\"{reason}\") and stays so, as slurminit did not do it; to take it back: \
         scontrol update nodename={node} state=resume"
    )]
    DrainedByAdministrator { node: String, reason: String },
    #[error(
        "not ready after {} s: waiting for {waiting_for}{}; the lines above and `scontrol show node` say more",
        after.as_secs(),
        node.as_ref().map(|node| format!("; the node is {node}")).unwrap_or_default()
    )]
    NotReady { after: Duration, node: Option<NodeReport>, waiting_for: String },
    /// A container without a node of its own has no GRES.
    #[error("ready: {}", ready(gres.as_deref()))]
    Ready { gres: Option<String> },
    #[error("{}", .0.message)]
    CmdNotStarted(SpawnFailure),
    #[error("stopping, as signal {signal} asks")]
    StopAsked { signal: i32 },
    #[error("{0}")]
    Reload(ReloadNotice),
    #[error("asked again to stop: ending everything now")]
    Hurried,
    #[error("{name} did not end in time; killing it")]
    Killing { name: String },
    #[error(
        "nobody could say within {:.0} s what became of the jobs: slurmctld does not answer; the next start accounts \
         for them",
        within.as_secs_f64()
    )]
    JobsNotAsked { within: Duration },
    #[error(
        "jobs that run got no notice of the stop, as `slurminit jobs quiesce` {exit}; they end with the container, and \
         the next start requeues them, or fails those with --no-requeue"
    )]
    JobsNotTold { exit: Exit },
    #[error("the command has ended; waiting for the jobs in the queue")]
    AwaitingJobs,
    #[error("nobody could wait for the jobs in the queue, as `slurminit jobs wait` {exit}; the container stops")]
    JobsNotAwaited { exit: Exit },
    #[error(
        "nobody told slurmctld that the jobs of the former start are gone, as `slurminit jobs recover` {exit}; those that \
         squeue shows as running hold their GPUs until `scontrol requeue` or `scancel`"
    )]
    JobsNotRecovered { exit: Exit },
    #[error(
        "nobody told slurmctld which jobs had begun when it died, as `slurminit jobs account` {exit}; one with --no-requeue may \
         run a second time"
    )]
    JobsNotAccounted { exit: Exit },
    #[error(
        "nobody told slurmctld what ended just before it did, as `slurminit jobs reclaim` {exit}; a job that squeue shows as \
         running and that has no process holds its GPUs until `scontrol requeue` or `scancel`"
    )]
    JobsNotReclaimed { exit: Exit },
    #[error(
        "/etc/passwd has changed, and `slurminit environments` {exit}: a batch job with --export=NONE has neither HOME nor \
         PATH if its user is new"
    )]
    EnvironmentsNotWritten { exit: Exit },
    #[error(
        "the accounts of slurminit.toml are not all in the accounting database, as `slurminit associations` {exit}; jobs of their users \
         may be refused until it has succeeded: correct what the line before says, then `slurminit reload`"
    )]
    AssociationsNotMade { exit: Exit },
    #[error("a process survives KILL (it waits in the kernel, or root lacks the capability KILL); leaving without it")]
    Unkillable,
    #[error(
        "stopped; exit code {code}{}",
        why.as_ref().map(|why| format!(" (see docs/reference/exit-codes.md), because {why}")).unwrap_or_default()
    )]
    Ended { code: u8, why: Option<Box<Notice>> },
}

impl Notice {
    /// The event, for programs that read the log as JSON. These words stay when a message is reworded.
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
            Self::DiesInService { .. } => "unit-crash-loop",
            Self::UnitFinished { .. } => "unit-finished",
            Self::NeedFailed { .. } => "dependency-failed",
            Self::UnitStopped { .. } => "unit-stopped",
            Self::StartsSlowly { .. } => "unit-starts-slowly",
            Self::RestartAsked { .. } => "restart-requested",
            Self::NeverReady { .. } => "unit-never-ready",
            Self::GaveUp { .. } => "unit-given-up",
            Self::FailedExternally { .. } => "external-failure",
            Self::Silent { .. } => "unit-unresponsive",
            Self::LeftSilent { .. } => "unit-left-unresponsive",
            Self::Overloaded { .. } => "unit-overloaded",
            Self::Slow { .. } => "unit-slow",
            Self::NotAsked { .. } => "unit-not-checked",
            Self::NoVerdict { .. } => "liveness-unknown",
            Self::Resuming { .. } => "node-resumed",
            Self::DrainedByAdministrator { .. } => "node-drained-by-administrator",
            Self::NotReady { .. } => "not-ready",
            Self::Ready { .. } => "ready",
            Self::CmdNotStarted(_) => "command-not-started",
            Self::StopAsked { .. } => "stop-requested",
            Self::Reload(notice) => notice.kind(),
            Self::Hurried => "stop-hurried",
            Self::Killing { .. } => "unit-killed",
            Self::JobsNotAsked { .. } => "jobs-not-accounted-at-stop",
            Self::JobsNotTold { .. } => "jobs-not-notified",
            Self::AwaitingJobs => "waiting-for-jobs",
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

    /// The daemon or service that it is about.
    pub fn unit(&self) -> Option<&str> {
        match self {
            Self::Reload(ReloadNotice::GoesBack { name, .. }) => Some(name).filter(|name| !name.is_empty()),
            Self::Ended { why: Some(why), .. } => return why.unit(),
            Self::UnitReady { name, .. }
            | Self::UnitDied { name, .. }
            | Self::DiesInService { name, .. }
            | Self::UnitFinished { name, .. }
            | Self::NeedFailed { name, .. }
            | Self::UnitStopped { name, .. }
            | Self::StartsSlowly { name, .. }
            | Self::RestartAsked { name, .. }
            | Self::NeverReady { name, .. }
            | Self::GaveUp { name, .. }
            | Self::FailedExternally { name, .. }
            | Self::Silent { name, .. }
            | Self::LeftSilent { name, .. }
            | Self::Overloaded { name, .. }
            | Self::Slow { name, .. }
            | Self::NotAsked { name, .. }
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
            // A shell that TERM ended exits with 143.
            Self::UnitStopped { exit: Exit::Code(0 | 143) | Exit::Signal(libc::SIGTERM), expected: true, .. }
            | Self::UnitReady { .. } => Level::Debug,
            Self::Prepared(_)
            | Self::UnitFinished { .. }
            | Self::RestartAsked { .. }
            | Self::Resuming { .. }
            | Self::Ready { .. }
            | Self::StopAsked { .. }
            | Self::AwaitingJobs
            | Self::Hurried
            | Self::Ended { why: None, .. } => Level::Info,
            _ => Level::Warn,
        }
    }
}

/// The run time of a process that was told to end is not meaningful, and zero here.
fn after(ran: Duration) -> String {
    if ran.is_zero() { String::new() } else { format!(" after {:.1} s", ran.as_secs_f64()) }
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
            "the container's limit on processes was reached: end what starts so many (`ps -eo user,pid,comm`), or raise \
             it (--pids-limit, `ulimit -u`)"
        }
        Shortage::UserProcesses => {
            "the limit on processes of its user was reached (RLIMIT_NPROC, --ulimit nproc): the kernel counts those of this \
             user ID in all containers of the host; remove the limit, or raise it, and limit a container with --pids-limit"
        }
        Shortage::Memory => {
            "the memory was used up: end what takes so much (`ps -eo user,pid,rss,comm --sort=-rss`), or raise the limit \
             (--memory)"
        }
        Shortage::Descriptors => "no file descriptor was left: raise --ulimit nofile, or the machine's fs.file-max",
        Shortage::Port(port) => return format!("port {port} is another's; looking for who has it"),
    };
    let goes_on = if pause.as_millis() == 0 { "" } else { ", and goes on being tried" };
    format!("{why}; it is tried again {}{goes_on}", when(pause))
}

fn ready(gres: Option<&str>) -> String {
    match gres {
        Some(gres) => format!("the node takes jobs (GPUs: {})", if gres.is_empty() { "none" } else { gres }),
        None => "the controller answers".to_owned(),
    }
}
