//! A daemon that fails while a reload is being applied, held at a gate: before `scontrol reconfigure`, or where slurmctld or
//! slurmd starts with the new files.

use super::case::Case;
use super::wrapper;

const DAEMONS: [&str; 4] = ["munged", "slurmctld", "slurmd", "service"];

/// What a running Slurm takes, and what takes a restart of it.
const PARTITION: &str = "[[partition]]\\nname = \"other\"";
const RESTART: &str = "[slurm.conf]\\nMaxJobCount = 5000";

/// What hangs is found soon, so that no case takes long; the reload is asked for.
const SUPERVISE: &str = "[supervise]\nreload_on_change = false\nprobe_interval = 1\nprobe_timeout = 1\n";

pub(super) fn cases() -> Vec<Case> {
    let reconfigured = DAEMONS.into_iter().flat_map(|target| hit(target, at_reconfigure));
    let reconfigured = reconfigured.chain(reconfigured_helper());
    // What the reload does not restart is hit while slurmctld starts; its helper once it is there.
    let beside = ["munged", "service"].into_iter().flat_map(|target| hit(target, at_restart));
    let restarted = ["slurmctld", "slurmd"].into_iter().flat_map(started);
    reconfigured.chain(beside).chain(restarted).chain(restarted_helper()).collect()
}

/// A fault while `scontrol reconfigure` is held.
fn at_reconfigure(target: &'static str, fault: &'static str, inject: &str) -> Case {
    Case {
        inject: format!(
            "in_the_way scontrol '[ \"$1\" != reconfigure ] || gate'; shut; reload '{PARTITION}'; reached; {inject}; open"
        ),
        ..case(target, "reloading (reconfigure)", fault)
    }
}

/// A fault while the first daemon that depends on what is hit is held in its restart.
fn at_restart(target: &'static str, fault: &'static str, inject: &str) -> Case {
    let held = if target == "slurmscriptd" { "slurmd" } else { "slurmctld" };
    let case = case(target, "reloading (restart)", fault);
    Case {
        toml: format!("{}{}", case.toml, wrapper::gated(held)),
        inject: format!("shut; reload '{RESTART}'; reached; {inject}; open"),
        ..case
    }
}

fn case(target: &'static str, phase: &'static str, fault: &'static str) -> Case {
    Case {
        toml: SUPERVISE.to_owned(),
        jobs: true,
        until: "reloaded applied".to_owned(),
        ..Case::new(target, phase, fault)
    }
}

/// What can be done to a daemon that runs.
fn hit(target: &'static str, at: fn(&'static str, &'static str, &str) -> Case) -> Vec<Case> {
    let process = wrapper::process(target);
    let hit = |fault, inject: &str, toml: String, says: &str| {
        let case = at(target, fault, &format!("old=$(pid {process}); {inject}"));
        Case {
            toml: case.toml + &toml,
            until: format!("renewed {process} && reloaded applied"),
            says: says.replace("NAME", target).leak(),
            ..case
        }
    };
    let plain = || wrapper::plain(target);
    let ended = match target {
        "service" => "NAME was killed by signal 15",
        // It may hear of the reconfiguration first, and its successor hears nothing of TERM.
        "slurmctld" | "slurmd" => "NAME exited with code 0 | NAME has handed over to process",
        _ => "NAME exited with code 0",
    };
    let mut cases = vec![
        hit("KILL", "kill -KILL $old", plain(), "NAME was killed by signal 9 (SIGKILL)"),
        hit("SEGV", "kill -SEGV $old", plain(), "NAME was killed by signal 11 (SIGSEGV)"),
        hit("TERM by another", "kill -TERM $old", plain(), ended),
        hit("exit 1", "kill -USR1 $(cat /tmp/wrapper)", wrapper::exits_at_will(target), "NAME exited with code 1"),
    ];
    cases.push(match target {
        "service" => {
            let case = at(target, "STOP", "was=$(cat /tmp/service); kill -STOP $was");
            Case {
                toml: case.toml + &wrapper::asked_service(),
                until: "[ \"$(cat /tmp/service)\" != \"$was\" ] && reloaded applied".to_owned(),
                says: "service is running but not responding",
                ..case
            }
        }
        // It takes the question of the reload itself to find out.
        "slurmctld" => hit("STOP", "kill -STOP $old", plain(), "restarting slurmctld and slurmd instead"),
        // slurmctld may not get an answer of it, and refuse the new files for that, before a question finds out.
        _ => hit(
            "STOP",
            "kill -STOP $old",
            plain(),
            "NAME is running but not responding | restarting slurmctld and slurmd instead",
        ),
    });
    cases
}

/// slurmctld gives itself another one at that moment, and waits for one that is stopped.
fn reconfigured_helper() -> impl Iterator<Item = Case> {
    let another = "reloaded: new: the partitions; slurmctld and slurmd were re";
    let waits = "restarting slurmctld and slurmd instead";
    [("KILL", another), ("SEGV", another), ("STOP", waits)]
        .into_iter()
        .map(|(signal, says)| Case { says, ..helper(at_reconfigure, signal) })
}

fn restarted_helper() -> impl Iterator<Item = Case> {
    [("KILL", "is dead"), ("SEGV", "is dead"), ("STOP", "is stopped")].into_iter().map(|(signal, says)| Case {
        says: format!("slurmctld is running but not responding (its helper slurmscriptd {says}").leak(),
        ..helper(at_restart, signal)
    })
}

fn helper(at: fn(&'static str, &'static str, &str) -> Case, signal: &'static str) -> Case {
    Case {
        until: "renewed slurmscriptd && reloaded applied".to_owned(),
        ..at(
            "slurmscriptd",
            signal,
            &format!("until old=$(pid slurmscriptd); do sleep 0.01; done; kill -{signal} $old"),
        )
    }
}

/// A daemon that the reload starts again with the new files.
fn started(target: &'static str) -> Vec<Case> {
    let held = |fault, first: &str, says: &str| {
        let case = case(target, "reloading (restart)", fault);
        // A slow start is none that is given up on.
        let patience = if fault.starts_with("slow") { 60 } else { 2 };
        Case {
            toml: case.toml + &wrapper::gated(target) + &ready_within(target, patience),
            inject: format!("shut; reload '{RESTART}'; reached; open '{first}'"),
            says: says.replace("NAME", target).leak(),
            ..case
        }
    };
    let new_files = |fault, what: &str| {
        let script = format!(
            "! grep -q MaxJobCount /etc/slurm/slurm.conf || {{ {what}; }}; exec {}",
            wrapper::command(target).replace("-D", "--systemd")
        );
        let case = case(target, "reloading (restart)", fault);
        Case {
            toml: case.toml + &wrapper::settings(target, &script) + &ready_within(target, 1),
            inject: format!("reload '{RESTART}'"),
            until: "reloaded went-back".to_owned(),
            says: format!("reload rolled back: {target} fails with the new files").leak(),
            ..case
        }
    };
    let deaf = case(target, "reloading (restart)", "ignores TERM");
    vec![
        held("KILL", "kill -KILL $$", "NAME was killed by signal 9 (SIGKILL)"),
        held("SEGV", "kill -SEGV $$", "NAME was killed by signal 11 (SIGSEGV)"),
        held("exit 0", "exit 0", "NAME exited with code 0"),
        held("exit 1", "exit 1", "NAME exited with code 1"),
        held("STOP", "kill -STOP $$", "NAME is not ready after 2.0 s; restarting"),
        held("slow start, 3 s", "sleep 3", "NAME is still starting (timeout 60 s)"),
        held("never ready, once", "exec sleep 1000", "NAME is not ready after 2.0 s; restarting"),
        new_files("exit 1 at each start", "exit 1"),
        new_files("never ready", "exec sleep 1000"),
        Case {
            toml: deaf.toml.clone() + &wrapper::ignores_term(target),
            inject: format!("old=$(pid {target}); reload '{RESTART}'"),
            until: format!("renewed {target} && reloaded applied"),
            says: format!("{target} did not end in time; killing it").leak(),
            ..deaf
        },
    ]
}

fn ready_within(target: &str, seconds: u32) -> String {
    let port = if target == "slurmctld" { 6817 } else { 6818 };
    format!("readiness = {{ port = {port}, timeout = {seconds} }}\n")
}
