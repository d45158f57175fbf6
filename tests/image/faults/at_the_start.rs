//! A daemon that fails while it starts: a wrapper is in its place, and does it at the first start or at each.

use super::case::{Case, End};
use super::wrapper;

/// Each daemon, and what a give-up costs.
const DAEMONS: [(&str, i32); 4] = [("munged", 100), ("slurmctld", 101), ("slurmd", 102), ("service", 103)];

/// Each fault, what the wrapper does, whether only at the first start, and what is said of it.
const FAULTS: [(&str, &str, bool, &str); 8] = [
    ("KILL", "kill -KILL $$", true, "NAME was killed by signal 9 (SIGKILL)"),
    ("SEGV", "kill -SEGV $$", true, "NAME was killed by signal 11 (SIGSEGV)"),
    ("exit 0", "exit 0", true, "NAME exited with code 0"),
    ("exit 1", "exit 1", true, "NAME exited with code 1"),
    ("STOP", "kill -STOP $$", true, "NAME is not ready after "),
    ("slow start, 3 s", "sleep 3", true, "NAME is still starting (timeout 60 s)"),
    ("never ready, once", "exec sleep 1000", true, "NAME is not ready after "),
    ("exit 1 at each start", "exit 1", false, "NAME failed 5 times within 60 s (last: exited with code 1"),
];

pub(super) fn cases() -> Vec<Case> {
    let each = DAEMONS.into_iter().flat_map(|daemon| FAULTS.into_iter().map(move |fault| case(daemon, fault)));
    each.chain(DAEMONS.into_iter().map(never_ready)).chain(helper()).collect()
}

fn case((target, code): (&'static str, i32), (fault, what, once, says): (&'static str, &str, bool, &str)) -> Case {
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
        says: says.replace("NAME", target).leak(),
        ..Case::new(target, "starting", fault)
    }
}

fn never_ready((target, code): (&'static str, i32)) -> Case {
    Case {
        toml: settings(target, "exec sleep 1000", 1),
        end: End::Exits(code),
        says: format!("{target} failed 5 times within 60 s").leak(),
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
            says: "slurmctld was killed by signal 6 (SIGABRT)",
            ..Case::new("slurmscriptd", "starting", signal)
        }
    })
}
