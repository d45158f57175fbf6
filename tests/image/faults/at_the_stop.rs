//! Daemons that fail during a stop, before the jobs are notified.

use super::case::{Case, End};
use super::sign::Sign;
use super::wrapper;

pub(super) fn cases() -> Vec<Case> {
    let stops = || Sign::event("stop-requested");
    let helper = [("KILL", stops()), ("SEGV", stops()), ("STOP", Sign::of("slurmctld", "unit-killed"))];
    let helper = helper.map(|(signal, sign)| {
        // slurmctld keeps running without slurmscriptd but then cannot exit.
        Case { job: "", ..case("slurmscriptd", signal, &format!("kill -{signal} $old"), vec![sign]) }
    });
    let daemons = ["munged", "slurmctld", "slurmd", "service"].into_iter().flat_map(daemon_cases);
    daemons.chain(helper).collect()
}

fn daemon_cases(target: &'static str) -> Vec<Case> {
    let process = wrapper::process(target);
    let signal = |signal: &str| format!("kill -{signal} $(pid {process})");
    let (stopped, ended) = match target {
        "slurmd" => (Sign::event("jobs-still-ending"), "0"),
        // The stop sends SIGCONT and SIGTERM.
        "service" => (Sign::event("stop-requested"), "SIGTERM"),
        _ => (Sign::event("jobs-not-accounted-at-stop"), "0"),
    };
    let at_will = wrapper::exits_at_will(target);
    let ignored = wrapper::ignores_term(target);
    let wrapped = |toml: &str, case: Case| Case { toml: toml.to_owned(), ..case };
    vec![
        case(target, "KILL", &signal("KILL"), Sign::ended(target, "SIGKILL")),
        case(target, "SEGV", &signal("SEGV"), Sign::ended(target, "SIGSEGV")),
        case(target, "STOP", &signal("STOP"), vec![stopped]),
        case(target, "TERM by another", &signal("TERM"), Sign::ended(target, ended)),
        wrapped(&at_will, case(target, "exit 1", "kill -USR1 $(cat /tmp/wrapper)", Sign::ended(target, "1"))),
        // The jobs are notified, but a slurmctld that is killed has not saved their end.
        Case {
            job: if target == "slurmctld" { "requeued" } else { "" },
            ..wrapped(&ignored, case(target, "ignores TERM", "true", vec![Sign::of(target, "unit-killed")]))
        },
    ]
}

fn case(target: &'static str, fault: &'static str, inject: &str, signs: Vec<Sign>) -> Case {
    Case {
        toml: wrapper::plain(target),
        jobs: true,
        // A stop starts with squeue, which the gate blocks until the fault is injected.
        inject: format!("in_the_way squeue gate; shut; kill -TERM 1; reached; {inject}; open"),
        end: End::Stops,
        signs,
        // Without the daemon, the job cannot be notified or its end cannot be recorded.
        job: if target == "service" { "" } else { "requeued" },
        ..Case::new(target, "stopping", fault)
    }
}
