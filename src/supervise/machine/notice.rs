//! Messages from the machine to the operator: what happened, why, and which command helps.

use std::fmt;
use std::time::Duration;

use crate::config::Level;
use crate::inventory::Finding;
use crate::prepared::Prepared;

use super::super::node::NodeReport;
use super::{Exit, ReloadNotice, Shortage, SpawnFailure};

/// A message to the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the text of each is below, in `Display`")]
pub enum Notice {
    PrepareSlow,
    PrepareTooSlow { limit: Duration },
    HookTooSlow { index: usize, limit: Duration },
    HookFailed { index: usize, exit: Exit },
    Prepared(Box<Prepared>),
    Refused(Finding),
    UnitReady { name: String, after: Duration },
    UnitDied { name: String, exit: Exit, ran: Duration, pause: Duration },
    DiesInService { name: String, deaths: u32 },
    UnitFinished { name: String, exit: Exit },
    UnitStopped { name: String, exit: Exit, expected: bool },
    StartsSlowly { name: String, patience: Duration },
    RestartAsked { name: String },
    NeverReady { name: String, after: Duration },
    GaveUp { name: String, failures: u32, within: Duration, last: Exit, hold: bool },
    Struck { name: String, exit: Exit, shortage: Shortage, pause: Duration },
    Silent { name: String, why: String },
    LeftSilent { name: String, why: String, pause: Duration },
    Overloaded { name: String, why: String },
    Slow { name: String, why: String },
    NotAsked { name: String, why: String },
    NoVerdict { rounds: u32 },
    Resuming { reason: String },
    DrainedByAdministrator { node: String, reason: String },
    NotReady { after: Duration, node: Option<NodeReport>, waiting_for: String },
    Ready { gres: Option<String> },
    CmdNotStarted(SpawnFailure),
    StopAsked { signal: i32 },
    Reload(ReloadNotice),
    Hurried,
    Killing { name: String },
    JobsNotAsked { within: Duration },
    JobsNotTold { exit: Exit },
    AwaitingJobs,
    JobsNotAwaited { exit: Exit },
    JobsNotRecovered { exit: Exit },
    JobsNotAccounted { exit: Exit },
    JobsNotReclaimed { exit: Exit },
    EnvironmentsNotWritten { exit: Exit },
    Unkillable,
    Ended { code: u8, why: Option<Box<Notice>> },
}

impl Notice {
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

/// `exited with code 1`, `was killed by signal 9 (SIGKILL)`.
pub(super) fn how(exit: &Exit) -> String {
    match exit {
        Exit::Code(code) => format!("exited with code {code}"),
        Exit::Signal(signal) => {
            let name = signal_hook::low_level::signal_name(*signal).unwrap_or("a real-time signal");
            format!("was killed by signal {signal} ({name})")
        }
        Exit::NotStarted(failure) => format!("did not start: {}", failure.message),
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PrepareSlow => write!(f, "still looking for GPUs; a driver can take seconds to initialise"),
            Self::PrepareTooSlow { limit } => write!(
                f,
                "the preparation did not end within {limit:?}: a driver or a disk hangs; \
                 see `slurminit detect` in the container, or raise supervise.prepare_timeout"
            ),
            Self::HookTooSlow { index, limit } => {
                write!(f, "pre-start hook {} did not end within {limit:?}; raise its `timeout` or mend it", index + 1)
            }
            Self::HookFailed { index, exit } => {
                write!(f, "pre-start hook {} {}; nothing was started", index + 1, how(exit))
            }
            Self::Prepared(prepared) => write!(f, "this start: {}", prepared.summary),
            Self::Refused(finding) => finding.fmt(f),
            Self::UnitReady { name, after } => write!(f, "{name} is ready after {} ms", after.as_millis()),
            Self::UnitDied { name, exit, ran, pause } => {
                write!(f, "{name} {}", how(exit))?;
                // The run time of a process that was told to end is not meaningful.
                if !ran.is_zero() {
                    write!(f, " after {:.1} s", ran.as_secs_f64())?;
                }
                match pause.as_millis() {
                    0 => write!(f, "; starting it again now"),
                    ms => write!(f, "; starting it again in {ms} ms"),
                }
            }
            Self::DiesInService { name, deaths } => write!(
                f,
                "{name} died {deaths} times in a row, but it served before: what it is asked for ends it, not its configuration. \
                 It goes on being started; its last words are above, and `slurminit logs {name}` shows what came before them"
            ),
            Self::UnitFinished { name, exit } => write!(f, "{name} {}, and is not started again", how(exit)),
            Self::UnitStopped { name, exit, .. } => write!(f, "{name} {}", how(exit)),
            Self::StartsSlowly { name, patience } => {
                write!(f, "{name} runs and is not ready yet; it has {} s in all", patience.as_secs())
            }
            Self::RestartAsked { name } => write!(f, "starting {name} again, as asked"),
            Self::NeverReady { name, after } => {
                write!(f, "{name} runs for {:.1} s and is not ready; restarting it", after.as_secs_f64())
            }
            Self::Struck { name, exit, shortage, pause } => {
                write!(f, "{name} {}; ", how(exit))?;
                match shortage {
                    Shortage::Processes => write!(
                        f,
                        "the container's limit on processes was reached: end what starts so many (`ps -eo user,pid,comm`), or raise \
                         it (--pids-limit, `ulimit -u`)"
                    )?,
                    Shortage::Memory => write!(
                        f,
                        "the memory was used up: end what takes so much (`ps -eo user,pid,rss,comm --sort=-rss`), or raise the limit \
                         (--memory)"
                    )?,
                    Shortage::Descriptors => {
                        write!(f, "no file descriptor was left: raise --ulimit nofile, or the machine's fs.file-max")?;
                    }
                    Shortage::Port(port) => return write!(f, "port {port} is another's; looking for who has it"),
                }
                match pause.as_millis() {
                    0 => write!(f, "; it is tried again now"),
                    ms => write!(f, "; it is tried again in {ms} ms, and goes on being tried"),
                }
            }
            Self::LeftSilent { name, why, pause } => write!(
                f,
                "{name} does not answer again: {why}; a restart has not helped, so it is left as it is for {} s; \
                 `slurminit restart {name}` does it now",
                pause.as_secs()
            ),
            Self::Overloaded { name, why } => {
                write!(f, "{name} runs and is kept busy: {why}; a restart would not help, so it goes on")
            }
            Self::Silent { name, why } => write!(f, "{name} lives and does not answer: {why}; restarting it"),
            Self::Slow { name, why } => {
                write!(f, "{name} is slow: {why}; it is restarted if that goes on for a minute")
            }
            Self::NotAsked { name, why } => write!(f, "nobody can tell whether {name} still answers: {why}"),
            Self::NoVerdict { rounds } => write!(
                f,
                "the last {rounds} liveness probes did not end or could not be started; is the machine out of CPU, memory \
                 or processes?"
            ),
            Self::GaveUp { name, failures, within, last, hold, .. } => {
                write!(f, "{name} failed {failures} times within {} s; it last {}", within.as_secs(), how(last))?;
                match hold {
                    true => write!(f, "; the container goes on without it"),
                    false => write!(f, "; the container ends"),
                }
            }
            Self::Resuming { reason } => write!(
                f,
                "the node was drained because \"{reason}\"; that is repaired by now, so the drain is taken back"
            ),
            Self::DrainedByAdministrator { node, reason } => write!(
                f,
                "the node is drained (\"{reason}\") and stays so, as slurminit did not do it; to take it back: \
                 scontrol update nodename={node} state=resume"
            ),
            Self::NotReady { after, node, waiting_for } => {
                write!(f, "not ready after {} s: waiting for {waiting_for}", after.as_secs())?;
                if let Some(node) = node {
                    write!(f, "; the node is {node}")?;
                }
                write!(f, "; the lines above and `scontrol show node` say more")
            }
            Self::Ready { gres: Some(gres) } => write!(f, "ready: the node takes jobs (GPUs: {})", or_none(gres)),
            // A container without a node of its own.
            Self::Ready { gres: None } => write!(f, "ready: the controller answers"),
            Self::CmdNotStarted(failure) => write!(f, "{}", failure.message),
            Self::StopAsked { signal } => write!(f, "stopping, as signal {signal} asks"),
            Self::Reload(notice) => notice.fmt(f),
            Self::Hurried => write!(f, "asked again to stop: ending everything now"),
            Self::Killing { name } => write!(f, "{name} did not end in time; killing it"),
            Self::JobsNotAsked { within } => write!(
                f,
                "nobody could say within {:.0} s what became of the jobs: slurmctld does not answer; the next start accounts \
                 for them",
                within.as_secs_f64()
            ),
            Self::JobsNotTold { exit } => write!(
                f,
                "jobs that run got no notice of the stop, as `slurminit jobs quiesce` {}; they end with the container, and \
                 the next start requeues them, or fails those with --no-requeue",
                how(exit)
            ),
            Self::AwaitingJobs => write!(f, "the command has ended; waiting for the jobs in the queue"),
            Self::JobsNotAwaited { exit } => write!(
                f,
                "nobody could wait for the jobs in the queue, as `slurminit jobs wait` {}; the container stops",
                how(exit)
            ),
            Self::JobsNotRecovered { exit } => write!(
                f,
                "nobody told slurmctld that the jobs of the former start are gone, as `slurminit jobs recover` {}; those that \
                 squeue shows as running hold their GPUs until `scontrol requeue` or `scancel`",
                how(exit)
            ),
            Self::JobsNotAccounted { exit } => write!(
                f,
                "nobody told slurmctld which jobs had begun when it died, as `slurminit jobs account` {}; one with --no-requeue may \
                 run a second time",
                how(exit)
            ),
            Self::JobsNotReclaimed { exit } => write!(
                f,
                "nobody told slurmctld what ended just before it did, as `slurminit jobs reclaim` {}; a job that squeue shows as \
                 running and that has no process holds its GPUs until `scontrol requeue` or `scancel`",
                how(exit)
            ),
            Self::EnvironmentsNotWritten { exit } => write!(
                f,
                "/etc/passwd has changed, and `slurminit environments` {}: a batch job with --export=NONE has neither HOME nor \
                 PATH if its user is new",
                how(exit)
            ),
            Self::Unkillable => write!(
                f,
                "a process survives KILL (it waits in the kernel, or root lacks the capability KILL); leaving without it"
            ),
            Self::Ended { code, why: None } => write!(f, "stopped; exit code {code}"),
            Self::Ended { code, why: Some(why) } => {
                write!(f, "stopped; exit code {code} (see docs/exit-codes.md), because {why}")
            }
        }
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}
