//! A daemon that fails while it starts: a wrapper is in its place, and does it at the first start or at each.

use super::case::{Case, End};
use super::sign::Sign;
use super::wrapper;

/// Each daemon, and what a give-up costs.
const DAEMONS: [(&str, i32); 4] = [("munged", 100), ("slurmctld", 101), ("slurmd", 102), ("service", 103)];

/// Each fault, what the wrapper does, whether only at the first start, and what is logged of it.
const FAULTS: [(&str, &str, bool, Logged); 8] = [
    ("KILL", "kill -KILL $$", true, Logged::Ended("SIGKILL")),
    ("SEGV", "kill -SEGV $$", true, Logged::Ended("SIGSEGV")),
    ("exit 0", "exit 0", true, Logged::Ended("0")),
    ("exit 1", "exit 1", true, Logged::Ended("1")),
    ("STOP", "kill -STOP $$", true, Logged::Event("unit-never-ready")),
    ("slow start, 3 s", "sleep 3", true, Logged::Event("unit-starts-slowly")),
    ("never ready, once", "exec sleep 1000", true, Logged::Event("unit-never-ready")),
    ("exit 1 at each start", "exit 1", false, Logged::Event("unit-given-up")),
];

/// What is logged of a fault.
#[derive(Clone, Copy)]
enum Logged {
    /// The process ended, by this signal or exit code.
    Ended(&'static str),
    /// An event of this kind.
    Event(&'static str),
}

pub(super) fn cases() -> Vec<Case> {
    let each = DAEMONS.into_iter().flat_map(|daemon| FAULTS.into_iter().map(move |fault| case(daemon, fault)));
    each.chain(DAEMONS.into_iter().map(never_ready)).chain(helper()).collect()
}

fn case((target, code): (&'static str, i32), (fault, what, once, logged): (&'static str, &str, bool, Logged)) -> Case {
    let command = wrapper::command(target);
    let script = match once {
        true => format!("[ -e /tmp/once ] || {{ : >/tmp/once; {what}; }}; exec {command}"),
        false => what.to_owned(),
    };
    // A slow start is none that is given up on.
    let patience = if fault.starts_with("slow") { 60 } else { 2 };
    Case {
        toml: settings(target, &script, patience),
        until: if target == "service" { "[ -e /tmp/up ]" } else { "true" }.to_owned(),
        end: if once { End::Recovers } else { End::Exits(code) },
        signs: match logged {
            Logged::Ended(how) => Sign::ended(target, how),
            Logged::Event(kind) => vec![Sign::of(target, kind)],
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

/// slurminit.toml for a daemon, or a service that is ready when its file is there.
fn settings(target: &str, script: &str, patience: u32) -> String {
    let readiness = match target {
        "munged" => "socket = \"/run/munge/munge.socket.2\"",
        "slurmctld" => "port = 6817",
        "slurmd" => "port = 6818",
        _ => {
            let script = script.replace("exec tail", ": >/tmp/up; exec tail");
            return wrapper::settings("service", &format!("rm -f /tmp/up; {script}"))
                + &format!(
                    "essential = true\nreadiness = {{ command = [\"test\", \"-e\", \"/tmp/up\"], timeout = {patience} }}\n"
                );
        }
    };
    wrapper::settings(target, script) + &format!("readiness = {{ {readiness}, timeout = {patience} }}\n")
}

/// slurmctld has forked its helper a moment ago, and no more than that.
fn helper() -> impl Iterator<Item = Case> {
    ["KILL", "SEGV", "STOP"].into_iter().map(|signal| {
        let script = format!(
            ". /config/library; [ -e /tmp/once ] || {{ : >/tmp/once; hit_child {signal} $$ & }}; exec {}",
            wrapper::command("slurmctld")
        );
        Case {
            toml: settings("slurmctld", &script, 2),
            signs: Sign::ended("slurmctld", "SIGABRT"),
            ..Case::new("slurmscriptd", "starting", signal)
        }
    })
}
