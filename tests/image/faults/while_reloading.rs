//! A daemon that fails during a reload. A gate holds the reload: before `scontrol reconfigure`, or where slurmctld or
//! slurmd starts with the new files.

use super::case::Case;
use super::sign::Sign;
use super::wrapper;

const DAEMONS: [&str; 4] = ["munged", "slurmctld", "slurmd", "service"];

/// A change that `scontrol reconfigure` applies.
const PARTITION: &str = "[[partition]]\\nname = \"other\"";
/// A change that requires a restart of the daemons.
const RESTART: &str = "[slurm.conf]\\nMaxJobCount = 5000";

/// Short probes, to detect hangs early. The cases request the reload themselves.
const SUPERVISE: &str = "[supervise]\nreload_on_change = false\nprobe_interval = 1\nprobe_timeout = 1\n";

pub(super) fn cases() -> Vec<Case> {
    let reconfigured = DAEMONS.into_iter().flat_map(|target| hit(target, at_reconfigure));
    let reconfigured = reconfigured.chain(reconfigured_helper());
    // Targets that the reload does not restart are hit while slurmctld starts; slurmscriptd is hit once it is running.
    let not_restarted = ["munged", "service"].into_iter().flat_map(|target| hit(target, at_restart));
    let restarted = ["slurmctld", "slurmd"].into_iter().flat_map(started);
    reconfigured.chain(not_restarted).chain(restarted).chain(restarted_helper()).collect()
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

/// A fault while the first daemon that depends on the target is held in its restart.
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

/// Faults of a running daemon.
fn hit(target: &'static str, at: fn(&'static str, &'static str, &str) -> Case) -> Vec<Case> {
    let process = wrapper::process(target);
    let hit = |fault, inject: &str, toml: String, signs: Vec<Sign>| {
        let case = at(target, fault, &format!("old=$(pid {process}); {inject}"));
        Case { toml: case.toml + &toml, until: format!("renewed {process} && reloaded applied"), signs, ..case }
    };
    let plain = || wrapper::plain(target);
    let ended = match target {
        "service" => Sign::ended(target, "SIGTERM"),
        // It may handle the reconfiguration first; its successor does not receive SIGTERM.
        "slurmctld" | "slurmd" => [Sign::ended(target, "0"), vec![Sign::of(target, "unit-handed-over")]].concat(),
        _ => Sign::ended(target, "0"),
    };
    let unresponsive = || Sign::of(target, "unit-unresponsive");
    let mut cases = vec![
        hit("KILL", "kill -KILL $old", plain(), Sign::ended(target, "SIGKILL")),
        hit("SEGV", "kill -SEGV $old", plain(), Sign::ended(target, "SIGSEGV")),
        hit("TERM by another", "kill -TERM $old", plain(), ended),
        hit("exit 1", "kill -USR1 $(cat /tmp/wrapper)", wrapper::exits_at_will(target), Sign::ended(target, "1")),
    ];
    cases.push(match target {
        "service" => {
            let case = at(target, "STOP", "was=$(cat /tmp/service); kill -STOP $was");
            Case {
                toml: case.toml + &wrapper::service_with_liveness(),
                until: "[ \"$(cat /tmp/service)\" != \"$was\" ] && reloaded applied".to_owned(),
                signs: vec![unresponsive()],
                ..case
            }
        }
        // Only the reload's own `scontrol reconfigure` detects the hang.
        "slurmctld" => hit("STOP", "kill -STOP $old", plain(), restarts_instead()),
        // slurmctld may get no reply from the stopped daemon, and reject the new files before a probe detects the hang.
        _ => hit("STOP", "kill -STOP $old", plain(), [restarts_instead(), vec![unresponsive()]].concat()),
    });
    cases
}

/// `scontrol reconfigure` failed, so slurmctld and slurmd are restarted with the new files.
fn restarts_instead() -> Vec<Sign> {
    vec![Sign::event("reconfigure-failed"), Sign::event("reconfigure-timeout")]
}

/// slurmctld replaces slurmscriptd during a reconfiguration and blocks if it is stopped.
fn reconfigured_helper() -> impl Iterator<Item = Case> {
    let replaced = || vec![Sign::event("reload-applied")];
    [("KILL", replaced()), ("SEGV", replaced()), ("STOP", restarts_instead())]
        .into_iter()
        .map(|(signal, signs)| Case { signs, ..helper(at_reconfigure, signal) })
}

fn restarted_helper() -> impl Iterator<Item = Case> {
    ["KILL", "SEGV", "STOP"].into_iter().map(|signal| Case {
        signs: vec![Sign::of("slurmctld", "unit-unresponsive").with("why", "slurmscriptd")],
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

/// Faults of a daemon that the reload restarts with the new files.
fn started(target: &'static str) -> Vec<Case> {
    let held = |fault, first: &str, signs: Vec<Sign>| {
        let case = case(target, "reloading (restart)", fault);
        // Only these faults end by the readiness timeout; a start on a busy machine must not.
        let readiness_timeout = if ["STOP", "never ready, once"].contains(&fault) { 5 } else { 60 };
        Case {
            toml: case.toml + &wrapper::gated(target) + &ready_within(target, readiness_timeout),
            inject: format!("shut; reload '{RESTART}'; reached; open '{first}'"),
            signs,
            ..case
        }
    };
    let new_files = |fault, what: &str, readiness_timeout| {
        let script = format!(
            "! grep -q MaxJobCount /etc/slurm/slurm.conf || {{ {what}; }}; exec {}",
            wrapper::command(target).replace("-D", "--systemd")
        );
        let case = case(target, "reloading (restart)", fault);
        Case {
            toml: case.toml + &wrapper::settings(target, &script) + &ready_within(target, readiness_timeout),
            inject: format!("reload '{RESTART}'"),
            until: "reloaded went-back".to_owned(),
            signs: vec![Sign::of(target, "reload-rollback")],
            ..case
        }
    };
    let never_ready = || vec![Sign::of(target, "unit-never-ready")];
    let term_ignored = case(target, "reloading (restart)", "ignores TERM");
    vec![
        held("KILL", "kill -KILL $$", Sign::ended(target, "SIGKILL")),
        held("SEGV", "kill -SEGV $$", Sign::ended(target, "SIGSEGV")),
        held("exit 0", "exit 0", Sign::ended(target, "0")),
        held("exit 1", "exit 1", Sign::ended(target, "1")),
        held("STOP", "kill -STOP $$", never_ready()),
        held("slow start, 3 s", "sleep 3", vec![Sign::of(target, "unit-starts-slowly")]),
        held("never ready, once", "exec sleep 1000", never_ready()),
        new_files("exit 1 at each start", "exit 1", 60),
        new_files("never ready", "exec sleep 1000", 5),
        Case {
            toml: term_ignored.toml.clone() + &wrapper::ignores_term(target),
            inject: format!("old=$(pid {target}); reload '{RESTART}'"),
            until: format!("renewed {target} && reloaded applied"),
            signs: vec![Sign::of(target, "unit-killed")],
            ..term_ignored
        },
    ]
}

fn ready_within(target: &str, seconds: u32) -> String {
    let port = if target == "slurmctld" { 6817 } else { 6818 };
    format!("readiness = {{ port = {port}, timeout = {seconds} }}\n")
}
