//! A daemon that fails while everything is being stopped: before the jobs have had their notice.

use super::case::{Case, End};
use super::wrapper;

pub(super) fn cases() -> Vec<Case> {
    let helper = [("KILL", "; stopping"), ("SEGV", "; stopping"), ("STOP", "slurmctld did not end in time")];
    let helper = helper.map(|(signal, says)| {
        // slurmctld goes on without it, and does not end without it.
        Case { job: "", ..case("slurmscriptd", signal, &format!("kill -{signal} $old"), says) }
    });
    let daemons = ["munged", "slurmctld", "slurmd", "service"].into_iter().flat_map(each);
    daemons.chain(helper).collect()
}

fn each(target: &'static str) -> Vec<Case> {
    let process = wrapper::process(target);
    let signal = |signal: &str| format!("kill -{signal} $(pid {process})");
    let (stopped, ended) = match target {
        "slurmd" => ("are still ending; the next start requeues them", "NAME exited with code 0"),
        // The stop tells it to go on, and to end.
        "service" => ("received SIGTERM; stopping", "NAME was killed by signal 15"),
        _ => ("could not account for the jobs within 5 s", "NAME exited with code 0"),
    };
    let at_will = wrapper::exits_at_will(target);
    let ignored = wrapper::ignores_term(target);
    let wrapped = |toml: &str, case: Case| Case { toml: toml.to_owned(), ..case };
    vec![
        case(target, "KILL", &signal("KILL"), "NAME was killed by signal 9 (SIGKILL)"),
        case(target, "SEGV", &signal("SEGV"), "NAME was killed by signal 11 (SIGSEGV)"),
        case(target, "STOP", &signal("STOP"), stopped),
        case(target, "TERM by another", &signal("TERM"), ended),
        wrapped(&at_will, case(target, "exit 1", "kill -USR1 $(cat /tmp/wrapper)", "NAME exited with code 1")),
        // The jobs have had their notice. A slurmctld that is killed has not saved that they ended.
        Case {
            job: if target == "slurmctld" { "requeued" } else { "" },
            ..wrapped(&ignored, case(target, "ignores TERM", "true", "NAME did not end in time; killing it"))
        },
    ]
}

fn case(target: &'static str, fault: &'static str, inject: &str, says: &str) -> Case {
    Case {
        toml: wrapper::plain(target),
        jobs: true,
        // The stop asks for the queue first.
        inject: format!("in_the_way squeue gate; shut; kill -TERM 1; reached; {inject}; open"),
        end: End::Stops,
        says: says.replace("NAME", target).leak(),
        // Without the daemon nobody can give the job its notice, or hear of its end.
        job: if target == "service" { "" } else { "requeued" },
        ..Case::new(target, "stopping", fault)
    }
}
