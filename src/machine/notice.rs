//! Messages to the operator: the event and, where they are known, its cause and its fix.

use std::fmt;
use std::time::Duration;

use model::inventory::Finding;
use model::log::Level;
use model::message;
use model::message::Message;
use model::prepared::Prepared;

use super::{Cause, Exit, ExternalCause, Outcome, SpawnFailure};
use crate::node_report::NodeReport;

/// Declares [`Notice`] from a table: each row contains the variant with its data, the log level and the message.
macro_rules! notices {
    ($($variant:ident $({ $($field:ident: $type:ty),* })? => $level:expr, $message:expr;)*) => {
        /// A message to the operator.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the message describes the variant")]
        pub enum Notice {
            $($variant $({ $($field: $type),* })?,)*
        }

        impl Notice {
            /// The log level, and the message: the kind, the constant text and the data. The kind is stable across releases.
            pub fn record(&self) -> (Level, Message) {
                match self {
                    $(Self::$variant $({ $($field),* })? => ($level, $message),)*
                }
            }
        }
    };
}

notices! {
    PrepareSlow => Level::Warn,
        message!("preparation-slow", "the preparation is still running; a GPU driver can take seconds to initialize");
    PrepareTooSlow { limit: Duration } => Level::Error,
        message!(
            "preparation-timeout",
            "the preparation timed out after {limit}, probably because a driver or disk is slow or hangs; run `slurminit detect`, or raise prepare_timeout",
            limit = format!("{limit:?}")
        );
    HookTooSlow { index: usize, limit: Duration } => Level::Error,
        message!(
            "hook-timeout",
            "pre-start hook {hook} timed out after {limit}; fix it, or raise its `timeout`",
            hook = index + 1,
            limit = format!("{limit:?}")
        );
    HookFailed { index: usize, exit: Exit } => Level::Error,
        message!("hook-failed", "pre-start hook {hook} {exit}, so no daemon was started; its output, if any, is above", hook = index + 1, exit);
    Prepared { prepared: Box<Prepared> } => Level::Info,
        message!("prepared", "this start: {summary}", summary = prepared.summary);
    Refused { finding: Finding } => Level::Error, finding.message("start-refused");
    UnitReady { name: String, after: Duration } => Level::Debug,
        message!("unit-ready", "{name} is ready after {ms} ms", name, ms = after.as_millis());
    // `uptime` is zero for a process that slurminit stopped.
    UnitDied { name: String, exit: Exit, uptime: Duration, pause: Duration } => Level::Warn, if uptime.is_zero() || matches!(exit, Exit::NotStarted(_)) {
        message!("unit-died", "{name} {exit}; restarting {when}", name, exit, when = when(*pause))
    } else {
        message!(
            "unit-died",
            "{name} {exit} after {seconds} s; restarting {when}",
            name,
            exit,
            seconds = seconds(*uptime),
            when = when(*pause)
        )
    };
    CrashLoop { name: String, deaths: u32 } => Level::Warn,
        message!(
            "unit-crash-loop",
            "{name} is in a crash loop (crashes: {deaths}), probably caused by a client's request; restarting; see `slurminit logs {name}`",
            name,
            deaths
        );
    UnitFinished { name: String, exit: Exit } => Level::Info,
        message!("unit-finished", "{name} {exit}; will not be restarted", name, exit);
    DependencyFailed { name: String, dependency: String } => Level::Warn,
        message!(
            "dependency-failed",
            "{name} is not started, because its dependency {need} has failed; fix the cause, then run `slurminit restart {need}`",
            name,
            need = dependency
        );
    UnitStopped { name: String, exit: Exit, expected: bool } => stopped_level(exit, *expected),
        message!("unit-stopped", "{name} {exit}", name, exit);
    SlowStart { name: String, timeout: Duration } => Level::Warn,
        message!(
            "unit-starts-slowly",
            "{name} is still starting (timeout {timeout} s)",
            name,
            timeout = timeout.as_secs()
        );
    RestartRequested { name: String } => Level::Info,
        message!("restart-requested", "restart requested: {name}", name);
    NeverReady { name: String, after: Duration, restarts: bool } => Level::Warn,
        message!(
            "unit-never-ready",
            "{name} is not ready after {seconds} s; {consequence}",
            name,
            seconds = seconds(*after),
            consequence = if *restarts { "restarting" } else { "stopping it" }
        );
    GaveUp { name: String, failures: u32, within: Duration, last: Exit, hold: bool } => Level::Error, match failures {
        0 | 1 => message!(
            "unit-given-up",
            "{name} failed (it {last}); {consequence}",
            name,
            last,
            consequence = give_up_consequence(*hold)
        ),
        _ => message!(
            "unit-given-up",
            "{name} has failed too often (failures within {seconds} s: {failures}; last: {last}); {consequence}",
            name,
            failures,
            seconds = within.as_secs(),
            last,
            consequence = give_up_consequence(*hold)
        ),
    };
    FailedExternally { name: String, exit: Exit, shortage: ExternalCause, pause: Duration } => Level::Warn,
        message!(
            "external-failure",
            "{name} {exit}; {cause}",
            name,
            exit,
            cause = external_failure(exit, *shortage, *pause)
        );
    MemoryFull => Level::Error,
        message!(
            "memory-full",
            "files in a tmpfs fill the container's memory, which OOM kills cannot free; stopping the container, because a restart empties the tmpfs"
        );
    Unresponsive { name: String, why: String } => Level::Warn,
        message!(
            "unit-unresponsive",
            "{name} is running but not responding ({why}); restarting",
            name,
            why
        );
    StillUnresponsive { name: String, why: String, pause: Duration } => Level::Warn,
        message!(
            "unit-left-unresponsive",
            "{name} is not responding after a restart ({why}); not restarting it before {seconds} s have passed; `slurminit restart {name}` restarts it now",
            name,
            why,
            seconds = pause.as_secs()
        );
    Slow { name: String, why: String, limit: Duration } => Level::Warn,
        message!(
            "unit-slow",
            "{name} is slow ({why}); restarting it if this lasts {seconds} s",
            name,
            why,
            seconds = limit.as_secs()
        );
    NotChecked { name: String, why: String } => Level::Warn,
        message!("unit-not-checked", "could not check whether {name} is responding: {why}", name, why);
    NoVerdict { rounds: u32 } => Level::Warn,
        message!(
            "liveness-unknown",
            "the last {rounds} liveness checks returned no result; the container may be out of CPU time or memory, or at its process limit",
            rounds
        );
    Resuming { reason: String } => Level::Info,
        message!(
            "node-resumed",
            "resuming the node; Slurm's reason for its state was \"{reason}\"",
            reason
        );
    DrainedByAdministrator { node: String, reason: String } => Level::Warn,
        message!(
            "node-drained-by-administrator",
            "the node is not resumed, because slurminit did not drain it (Slurm's reason for its state: \"{reason}\"); to resume it: slurminit resume {node}",
            node,
            reason
        );
    NotReady { after: Duration, node: Option<NodeReport>, waiting_for: String } => Level::Error, match node {
        None => message!(
            "not-ready",
            "not ready after {seconds} s: waiting for {waiting_for}; see the messages above and `scontrol show node`",
            seconds = after.as_secs(),
            waiting_for
        ),
        Some(node) => message!(
            "not-ready",
            "not ready after {seconds} s: waiting for {waiting_for} (the node is {state}); see the messages above and `scontrol show node`",
            seconds = after.as_secs(),
            waiting_for,
            state = node
        ),
    };
    // `gres` is `None` in a container without a node.
    Ready { gres: Option<String> } => Level::Info, match gres.as_deref() {
        None => message!("ready", "ready: the controller responds"),
        Some("") => message!("ready", "ready: the node is registered (GPUs: {gpus})", gpus = "none"),
        Some(gres) => message!("ready", "ready: the node is registered (GPUs: {gpus})", gpus = gres),
    };
    CmdNotStarted { failure: SpawnFailure } => Level::Error,
        message!("command-not-started", "{why}", why = failure.message);
    StopRequested { signal: i32 } => Level::Info,
        message!("stop-requested", "received {signal}; stopping", signal = signal_name(*signal));
    SecondStopSignal => Level::Info, message!("stop-hurried", "second stop signal; killing all processes");
    Killing { name: String } => Level::Warn,
        message!("unit-killed", "{name} did not end in time; killing it", name);
    JobsNotAccountedAtStop => Level::Warn,
        message!(
            "jobs-not-accounted-at-stop",
            "the jobs' share of the stop timeout has passed; jobs that the stop kills are requeued later (those with --no-requeue fail)"
        );
    JobsNotNotified { exit: Exit } => Level::Warn,
        message!(
            "jobs-not-notified",
            "running jobs in this container may not have ended properly (`slurminit jobs quiesce` {exit}); \
             jobs that the stop kills are requeued later (those with --no-requeue fail)",
            exit
        );
    WaitingForJobs => Level::Info,
        message!("waiting-for-jobs", "the command has ended; waiting for the jobs in the queue");
    JobsNotAwaited { exit: Exit } => Level::Warn,
        message!(
            "jobs-not-waited-for",
            "could not wait for the jobs in the queue (`slurminit jobs wait` {exit}); stopping the container",
            exit
        );
    JobsNotRecovered { exit: Exit } => Level::Warn,
        message!(
            "jobs-not-recovered",
            "could not requeue lost jobs (`slurminit jobs recover` {exit}); jobs of the previous start may be shown as running, and hold GPUs until you requeue or cancel them (scontrol requeue, scancel)",
            exit
        );
    JobsNotAccounted { exit: Exit } => Level::Warn,
        message!(
            "jobs-not-accounted",
            "could not search for jobs whose start slurmctld has forgotten (`slurminit jobs account` {exit}); \
             such jobs may run twice, even with --no-requeue",
            exit
        );
    JobsNotReclaimed { exit: Exit } => Level::Warn,
        message!(
            "jobs-not-reclaimed",
            "the search for jobs without a process failed (`slurminit jobs reclaim` {exit}); \
             such jobs hold their GPUs until a later search finds them, or until you cancel them (scancel)",
            exit
        );
    EnvironmentsNotWritten { exit: Exit } => Level::Warn,
        message!(
            "environments-not-written",
            "could not write login environments (`slurminit environments` {exit}); new users' jobs with --export=NONE have no HOME",
            exit
        );
    AssociationsNotMade { exit: Exit } => Level::Warn,
        message!(
            "associations-not-made",
            "could not create all accounts of the accounting database (`slurminit associations` {exit}); see the error above, then run `slurminit reload`",
            exit
        );
    AssociationsTooSlow { limit: Duration } => Level::Warn,
        message!(
            "associations-too-slow",
            "the accounts of the accounting database were not all created within {limit}, probably because the database is slow or hangs; run `slurminit reload` to create the rest",
            limit = format!("{limit:?}")
        );
    NoJobRuns { node: NodeReport } => Level::Error,
        message!("not-ready", "not ready: jobs cannot run, and the node is {node}; see the error of test-job", node);
    TestJobNotRun { exit: Exit } => Level::Warn,
        message!("test-job-not-run", "could not check whether jobs can run (`slurminit test-job` {exit})", exit);
    TestJobTooSlow { limit: Duration } => Level::Warn,
        message!(
            "test-job-not-run",
            "could not check whether jobs can run: `slurminit test-job` did not end within {limit}",
            limit = format!("{limit:?}")
        );
    ReloadBegins { cause: Cause } => Level::Info,
        message!(
            "reload-started",
            "reloading: {cause}",
            cause = match cause {
                Cause::Hangup => "received SIGHUP",
                Cause::Verb => "requested by `slurminit reload`",
                Cause::Change => "a configuration file has changed",
            }
        );
    ReloadPrepared { prepared: Box<Prepared> } => Level::Info,
        message!("reload-prepared", "detected: {summary}", summary = prepared.summary);
    NotReconfigured { exit: Exit } => Level::Warn,
        message!(
            "reconfigure-failed",
            "`scontrol reconfigure` {exit}; restarting slurmctld instead, and slurmd if this container has one",
            exit
        );
    ReconfigureTooSlow { limit: Duration } => Level::Warn,
        message!(
            "reconfigure-timeout",
            "`scontrol reconfigure` timed out after {seconds} s; restarting slurmctld instead, and slurmd if this container has one",
            seconds = limit.as_secs()
        );
    // `name` is the daemon that failed, if any; the text already names it.
    RollingBack { name: Option<String>, why: String } => Level::Error, {
        let _ = name;
        message!("reload-rollback", "{why}; restoring the previous files", why)
    };
    NotRestored => Level::Error,
        message!(
            "rollback-failed",
            "could not restore the previous files (see the error above, if there is one); correct the configuration, then run `slurminit reload`"
        );
    Reloaded { outcome: Outcome, text: String, deferred: bool } => match outcome {
        Outcome::Unchanged | Outcome::Applied if *deferred => Level::Warn,
        Outcome::Unchanged | Outcome::Applied => Level::Info,
        Outcome::Refused | Outcome::RolledBack | Outcome::Failed => Level::Error,
    }, match outcome {
        Outcome::Unchanged => message!("reload-unchanged", "reloaded: {text}", text),
        Outcome::Applied => message!("reload-applied", "reloaded: {text}", text),
        Outcome::Refused => message!("reload-refused", "reload refused; no daemon was changed: {text}", text),
        Outcome::RolledBack => message!("reload-rolled-back", "reload rolled back: {text}", text),
        Outcome::Failed => message!("reload-failed", "reload failed: {text}", text),
    };
    Unkillable => Level::Warn,
        message!(
            "process-survives-kill",
            "a process survived SIGKILL (blocked in the kernel, or the capability KILL is missing); exiting anyway"
        );
    Ended { code: u8, why: Option<Box<Notice>> } => if why.is_some() { Level::Error } else { Level::Info }, match why {
        None => message!("stopped", "stopped; exit code {code}", code),
        Some(why) => message!(
            "stopped",
            "stopped; exit code {code} (see docs/reference/exit-codes.md): {why}",
            code,
            why
        ),
    };
}

impl Notice {
    /// The daemon or service that the message is about, or `the command`; `None` for any other message.
    pub fn unit(&self) -> Option<String> {
        match self {
            Self::RollingBack { name, .. } => name.clone(),
            Self::Ended { why: Some(why), .. } => why.unit(),
            _ => self.record().1.fields.remove("name"),
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.record().1.text)
    }
}

/// The log level for the end of a unit that was stopped. Exit code 143 is normal: many programs exit
/// with it after SIGTERM.
fn stopped_level(exit: &Exit, is_expected: bool) -> Level {
    match exit {
        Exit::Code(0 | 143) | Exit::Signal(libc::SIGTERM) if is_expected => Level::Debug,
        _ => Level::Warn,
    }
}

const fn give_up_consequence(hold: bool) -> &'static str {
    if hold { "the container continues without it" } else { "stopping the container" }
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

fn external_failure(exit: &Exit, shortage: ExternalCause, pause: Duration) -> String {
    let why = match shortage {
        ExternalCause::Processes => {
            "the container's process limit was reached, or nearly reached: end processes (`ps -eo user,pid,comm`), or raise --pids-limit or `ulimit -u`"
        }
        ExternalCause::UserProcesses => {
            "the user's process limit was reached (it counts the user's processes in all containers of the host): raise --ulimit nproc, or use --pids-limit instead"
        }
        ExternalCause::Memory => {
            "out of memory (OOM kill, or no memory for a new process): end the largest processes (`ps -eo user,pid,rss,comm --sort=-rss`), or raise the limit (docker run --memory, limits.memory of a pod)"
        }
        ExternalCause::Descriptors => "no file descriptors left: raise --ulimit nofile, or the machine's fs.file-max",
        // The failure already names the port.
        ExternalCause::Port(_) if matches!(exit, Exit::NotStarted(_)) => return "looking for the owner".to_owned(),
        ExternalCause::Port(port) => return format!("port {port} is in use by another process; looking for the owner"),
    };
    let further = if pause.as_millis() == 0 { "" } else { "; will keep retrying" };
    format!("{why}; retrying {}{further}", when(pause))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(shortage: ExternalCause, pause: Duration) -> Notice {
        Notice::FailedExternally { name: "slurmd".to_owned(), exit: Exit::Code(1), shortage, pause }
    }

    #[test]
    fn message_concerns_the_unit_that_caused_it() {
        let unit = |notice: &Notice| notice.unit();
        let died = failed(ExternalCause::Memory, Duration::ZERO);
        assert_eq!(unit(&died).as_deref(), Some("slurmd"));
        assert_eq!(unit(&Notice::Ended { code: 1, why: Some(Box::new(died)) }).as_deref(), Some("slurmd"));
        let rolling_back =
            |name: Option<&str>| Notice::RollingBack { name: name.map(str::to_owned), why: "x".to_owned() };
        assert_eq!(unit(&rolling_back(Some("slurmctld"))).as_deref(), Some("slurmctld"));
        for notice in [rolling_back(None), Notice::Ended { code: 0, why: None }, Notice::PrepareSlow] {
            assert_eq!(unit(&notice), None, "{notice:?}");
        }
    }

    #[test]
    fn message_about_give_up_fits_a_single_failure() {
        let text = |failures| {
            let (name, within) = ("slurmd".to_owned(), Duration::from_secs(60));
            Notice::GaveUp { name, failures, within, last: Exit::Code(1), hold: true }.to_string()
        };
        assert_eq!(text(1), "slurmd failed (it exited with code 1); the container continues without it");
        assert!(
            text(5).starts_with("slurmd has failed too often (failures within 60 s: 5; last: exited with code 1); ")
        );
    }

    #[test]
    fn external_failure_names_cause_and_next_try() {
        let text = |shortage, ms| failed(shortage, Duration::from_millis(ms)).to_string();
        assert!(
            text(ExternalCause::Memory, 0).contains("OOM") && text(ExternalCause::Memory, 0).ends_with("retrying now")
        );
        assert!(text(ExternalCause::Memory, 400).ends_with("retrying in 400 ms; will keep retrying"));
        assert!(text(ExternalCause::Processes, 0).contains("--pids-limit"));
        assert!(text(ExternalCause::UserProcesses, 0).contains("nproc"));
        assert!(text(ExternalCause::Descriptors, 0).contains("nofile"));
        assert!(text(ExternalCause::Port(6817), 0).contains("port 6817 "));
        let died = |uptime| {
            let (name, pause) = ("slurmd".to_owned(), Duration::from_millis(200));
            Notice::UnitDied { name, exit: Exit::Code(1), uptime, pause }.to_string()
        };
        assert_eq!(died(Duration::from_millis(1_560)), "slurmd exited with code 1 after 1.6 s; restarting in 200 ms");
        assert_eq!(died(Duration::ZERO), "slurmd exited with code 1; restarting in 200 ms");
    }
}
