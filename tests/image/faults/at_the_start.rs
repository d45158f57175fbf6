//! Daemons that fail during their start. A wrapper script causes the fault at the first start or at every start.

use super::case::{Case, End};
use super::sign::Sign;
use super::wrapper;

/// Each daemon and the container's exit code when slurminit gives up on it.
const DAEMONS: [(&str, i32); 4] = [("munged", 100), ("slurmctld", 101), ("slurmd", 102), ("service", 103)];

/// Each fault: name, the wrapper's shell line, whether only at the first start, and the expected log record.
const FAULTS: [(&str, &str, bool, LogRecord); 8] = [
    ("KILL", "kill -KILL $$", true, LogRecord::Ended("SIGKILL")),
    ("SEGV", "kill -SEGV $$", true, LogRecord::Ended("SIGSEGV")),
    ("exit 0", "exit 0", true, LogRecord::Ended("0")),
    ("exit 1", "exit 1", true, LogRecord::Ended("1")),
    ("STOP", "kill -STOP $$", true, LogRecord::Event("unit-never-ready")),
    ("slow start, 3 s", "sleep 3", true, LogRecord::Event("unit-starts-slowly")),
    ("never ready, once", "exec sleep 1000", true, LogRecord::Event("unit-never-ready")),
    ("exit 1 at each start", "exit 1", false, LogRecord::Event("unit-given-up")),
];

/// The log record of a fault.
#[derive(Clone, Copy)]
enum LogRecord {
    /// A record that the process ended with this signal or exit code.
    Ended(&'static str),
    /// An event of this kind.
    Event(&'static str),
}

pub(super) fn cases() -> Vec<Case> {
    let each = DAEMONS.into_iter().flat_map(|daemon| FAULTS.into_iter().map(move |fault| case(daemon, fault)));
    each.chain(DAEMONS.into_iter().map(never_ready)).chain(slurmscriptd_cases()).collect()
}

fn case((target, code): (&'static str, i32), (fault, line, once, log): (&'static str, &str, bool, LogRecord)) -> Case {
    let command = wrapper::command(target);
    let script = match once {
        true => format!("[ -e /tmp/once ] || {{ : >/tmp/once; {line}; }}; exec {command}"),
        false => line.to_owned(),
    };
    // Only these faults end by the timeout; a start on a busy machine must not.
    let timeout = if matches!(log, LogRecord::Event("unit-never-ready")) { 5 } else { 60 };
    Case {
        toml: settings(target, &script, timeout),
        until: if target == "service" { "[ -e /tmp/up ]" } else { "true" }.to_owned(),
        end: if once { End::Recovers } else { End::Exits(code) },
        signs: match log {
            LogRecord::Ended(how) => Sign::ended(target, how),
            LogRecord::Event(kind) => vec![Sign::of(target, kind)],
        },
        ..Case::new(target, "starting", fault)
    }
}

fn never_ready((target, code): (&'static str, i32)) -> Case {
    Case {
        toml: settings(target, "exec sleep 1000", 1),
        end: End::Exits(code),
        signs: vec![Sign::of(target, "unit-given-up")],
        ..Case::new(target, "starting", "never ready")
    }
}

/// The slurminit.toml for a daemon, or for a service that is ready when `/tmp/up` exists.
fn settings(target: &str, script: &str, timeout: u32) -> String {
    let readiness = match target {
        "munged" => "socket = \"/run/munge/munge.socket.2\"",
        "slurmctld" => "port = 6817",
        "slurmd" => "port = 6818",
        _ => {
            let script = script.replace("exec tail", ": >/tmp/up; exec tail");
            return wrapper::settings("service", &format!("rm -f /tmp/up; {script}"))
                + &format!(
                    "essential = true\nreadiness = {{ command = [\"test\", \"-e\", \"/tmp/up\"], timeout = {timeout} }}\n"
                );
        }
    };
    wrapper::settings(target, script) + &format!("readiness = {{ {readiness}, timeout = {timeout} }}\n")
}

/// Faults of slurmscriptd immediately after slurmctld forks it.
fn slurmscriptd_cases() -> impl Iterator<Item = Case> {
    ["KILL", "SEGV", "STOP"].into_iter().map(|signal| {
        let script = format!(
            ". /config/library; [ -e /tmp/once ] || {{ : >/tmp/once; hit_child {signal} $$ & }}; exec {}",
            wrapper::command("slurmctld")
        );
        Case {
            toml: settings("slurmctld", &script, 5),
            // The exit code depends on how far slurmscriptd had come.
            signs: [Sign::ended("slurmctld", "SIGABRT"), Sign::ended("slurmctld", "1")].concat(),
            ..Case::new("slurmscriptd", "starting", signal)
        }
    })
}
