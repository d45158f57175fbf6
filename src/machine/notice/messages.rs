//! The text of each message.

use std::time::Duration;

use model::message;
use model::message::Message;

use super::Notice;
use crate::Shortage;

impl Notice {
    /// The kind, the constant text and the data. The kind is stable across releases.
    pub fn message(&self) -> Message {
        match self {
            Self::PrepareSlow => {
                message!("preparation-slow", "still detecting GPUs; a driver can take seconds to initialise")
            }
            Self::PrepareTooSlow { limit } => message!(
                "preparation-timeout",
                "the preparation timed out after {limit}: a driver or a disk hangs; run `slurminit detect`, or raise prepare_timeout",
                limit = format!("{limit:?}")
            ),
            Self::HookTooSlow { index, limit } => message!(
                "hook-timeout",
                "pre-start hook {hook} timed out after {limit}; fix it, or raise its `timeout`",
                hook = index + 1,
                limit = format!("{limit:?}")
            ),
            Self::HookFailed { index, exit } => message!(
                "hook-failed",
                "pre-start hook {hook} {exit}; nothing was started",
                hook = index + 1,
                exit = exit
            ),
            Self::Prepared(prepared) => message!("prepared", "this start: {summary}", summary = prepared.summary),
            Self::Refused(finding) => finding.message("start-refused"),
            Self::UnitReady { name, after } => {
                message!("unit-ready", "{name} is ready after {ms} ms", name = name, ms = after.as_millis())
            }
            // Zero for a process that slurminit stopped.
            Self::UnitDied { name, exit, uptime, pause } if uptime.is_zero() => {
                message!("unit-died", "{name} {exit}; restarting {when}", name = name, exit = exit, when = when(*pause))
            }
            Self::UnitDied { name, exit, uptime, pause } => message!(
                "unit-died",
                "{name} {exit} after {seconds} s; restarting {when}",
                name = name,
                exit = exit,
                seconds = seconds(*uptime),
                when = when(*pause)
            ),
            Self::CrashLoop { name, deaths } => message!(
                "unit-crash-loop",
                "{name} is in a crash loop ({deaths} crashes), probably caused by a request; restarting; see `slurminit logs {name}`",
                name = name,
                deaths = deaths
            ),
            Self::UnitFinished { name, exit } => {
                message!("unit-finished", "{name} {exit}; will not be restarted", name = name, exit = exit)
            }
            Self::DependencyFailed { name, dependency } => message!(
                "dependency-failed",
                "{name} is not started, because its dependency {need} has failed; correct {need}, then run `slurminit restart {need}`",
                name = name,
                need = dependency
            ),
            Self::UnitStopped { name, exit, .. } => {
                message!("unit-stopped", "{name} {exit}", name = name, exit = exit)
            }
            Self::SlowStart { name, timeout } => message!(
                "unit-starts-slowly",
                "{name} is still starting (timeout {timeout} s)",
                name = name,
                timeout = timeout.as_secs()
            ),
            Self::RestartRequested { name } => message!("restart-requested", "restart requested: {name}", name = name),
            Self::NeverReady { name, after } => message!(
                "unit-never-ready",
                "{name} is not ready after {seconds} s; restarting",
                name = name,
                seconds = seconds(*after)
            ),
            Self::GaveUp { name, failures, within, last, hold } => message!(
                "unit-given-up",
                "{name} failed {failures} times within {seconds} s (last: {last}); {consequence}",
                name = name,
                failures = failures,
                seconds = within.as_secs(),
                last = last,
                consequence = if *hold { "the container continues without it" } else { "stopping the container" }
            ),
            Self::FailedExternally { name, exit, shortage, pause } => message!(
                "external-failure",
                "{name} {exit}; {cause}",
                name = name,
                exit = exit,
                cause = external_failure(*shortage, *pause)
            ),
            Self::Unresponsive { name, why } => message!(
                "unit-unresponsive",
                "{name} is running but not responding ({why}); restarting",
                name = name,
                why = why
            ),
            Self::StillUnresponsive { name, why, pause } => message!(
                "unit-left-unresponsive",
                "{name} is not responding after a restart ({why}); next restart in {seconds} s, or now with `slurminit restart {name}`",
                name = name,
                why = why,
                seconds = pause.as_secs()
            ),
            Self::Overloaded { name, why } => message!(
                "unit-overloaded",
                "{name} is overloaded by clients ({why}); not restarting, because a restart would not help",
                name = name,
                why = why
            ),
            Self::Slow { name, why } => message!(
                "unit-slow",
                "{name} is slow ({why}); restarting it if this lasts a minute",
                name = name,
                why = why
            ),
            Self::NotChecked { name, why } => message!(
                "unit-not-checked",
                "could not check whether {name} is responding: {why}",
                name = name,
                why = why
            ),
            Self::NoVerdict { rounds } => message!(
                "liveness-unknown",
                "the last {rounds} liveness checks timed out or did not start; check whether CPU, memory or processes have run out",
                rounds = rounds
            ),
            Self::Resuming { reason } => message!(
                "node-resumed",
                "resuming the node: the cause of its drain is repaired (\"{reason}\")",
                reason = reason
            ),
            Self::DrainedByAdministrator { node, reason } => message!(
                "node-drained-by-administrator",
                "the node stays drained, not by slurminit (\"{reason}\"); to resume it: scontrol update nodename={node} state=resume",
                node = node,
                reason = reason
            ),
            Self::NotReady { after, node: None, waiting_for } => message!(
                "not-ready",
                "not ready after {seconds} s: waiting for {waiting_for}; see above and `scontrol show node`",
                seconds = after.as_secs(),
                waiting_for = waiting_for
            ),
            Self::NotReady { after, node: Some(node), waiting_for } => message!(
                "not-ready",
                "not ready after {seconds} s: waiting for {waiting_for} (the node is {state}); see above and `scontrol show node`",
                seconds = after.as_secs(),
                waiting_for = waiting_for,
                state = node
            ),
            Self::Ready { gres: None } => message!("ready", "ready: the controller responds"),
            Self::Ready { gres: Some(gres) } => message!(
                "ready",
                "ready: the node accepts jobs (GPUs: {gpus})",
                gpus = if gres.is_empty() { "none" } else { gres }
            ),
            Self::CmdNotStarted(failure) => message!("command-not-started", "{why}", why = failure.message),
            Self::StopRequested { signal } => {
                message!("stop-requested", "received {signal}; stopping", signal = signal_name(*signal))
            }
            Self::Reload(notice) => notice.message(),
            Self::SecondStopSignal => message!("stop-hurried", "second stop signal; killing all processes"),
            Self::Killing { name } => {
                message!("unit-killed", "{name} did not end in time; killing it", name = name)
            }
            Self::JobsNotAccountedAtStop => message!(
                "jobs-not-accounted-at-stop",
                "the jobs' part of the stop timeout was over before all jobs had ended; the next start requeues or fails them"
            ),
            Self::JobsNotNotified { exit } => message!(
                "jobs-not-notified",
                "could not notify running jobs of the stop (`slurminit jobs quiesce` {exit}); the next start requeues or fails them",
                exit = exit
            ),
            Self::WaitingForJobs => {
                message!("waiting-for-jobs", "the command has ended; waiting for the jobs in the queue")
            }
            Self::JobsNotAwaited { exit } => message!(
                "jobs-not-waited-for",
                "could not wait for the jobs in the queue (`slurminit jobs wait` {exit}); stopping the container",
                exit = exit
            ),
            Self::JobsNotRecovered { exit } => message!(
                "jobs-not-recovered",
                "could not requeue lost jobs (`slurminit jobs recover` {exit}); they hold their GPUs until scontrol requeue or scancel",
                exit = exit
            ),
            Self::JobsNotAccounted { exit } => message!(
                "jobs-not-accounted",
                "could not find jobs that slurmctld has forgotten (`slurminit jobs account` {exit}); --no-requeue jobs may run twice",
                exit = exit
            ),
            Self::JobsNotReclaimed { exit } => message!(
                "jobs-not-reclaimed",
                "could not find jobs without a process (`slurminit jobs reclaim` {exit}); they hold their GPUs until scancel",
                exit = exit
            ),
            Self::EnvironmentsNotWritten { exit } => message!(
                "environments-not-written",
                "could not write login environments (`slurminit environments` {exit}); new users' jobs with --export=NONE have no HOME",
                exit = exit
            ),
            Self::AssociationsNotMade { exit } => message!(
                "associations-not-made",
                "could not create all accounts (`slurminit associations` {exit}); see the error above, then `slurminit reload`",
                exit = exit
            ),
            Self::Unkillable => message!(
                "process-survives-kill",
                "a process survived SIGKILL (blocked in the kernel, or the capability KILL is missing); exiting anyway"
            ),
            Self::Ended { code, why: None } => message!("stopped", "stopped; exit code {code}", code = code),
            Self::Ended { code, why: Some(why) } => message!(
                "stopped",
                "stopped; exit code {code} (see docs/reference/exit-codes.md): {why}",
                code = code,
                why = why
            ),
        }
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64())
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
            "the user's process limit was reached (all containers of the host): raise --ulimit nproc, or use --pids-limit instead"
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
