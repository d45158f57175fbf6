//! A daemon that fails while jobs run.

use super::case::{Case, End};
use super::sign::Sign;
use super::wrapper;

pub(super) fn cases() -> Vec<Case> {
    let each = ["munged", "slurmctld", "slurmd", "service"].into_iter().flat_map(each);
    each.chain(helper()).chain([hung_service()]).chain(young_jobs()).collect()
}

/// slurmctld answers pings without slurmscriptd, and would detect its end only at the next script.
fn helper() -> impl Iterator<Item = Case> {
    ["KILL", "SEGV", "STOP"].into_iter().map(|signal| Case {
        jobs: true,
        inject: format!("kill -{signal} $old; old=$(pid slurmctld)"),
        until: "renewed slurmctld".to_owned(),
        signs: vec![Sign::of("slurmctld", "unit-unresponsive").with("why", "slurmscriptd")],
        ..Case::new("slurmscriptd", "ready", signal)
    })
}

/// A service is checked only if a liveness command is configured.
fn hung_service() -> Case {
    Case {
        toml: wrapper::service_with_liveness(),
        jobs: true,
        inject: "was=$(cat /tmp/service); kill -STOP $was".to_owned(),
        until: "[ \"$(cat /tmp/service)\" != \"$was\" ]".to_owned(),
        signs: vec![Sign::of("service", "unit-unresponsive")],
        ..Case::new("service", "ready", "STOP")
    }
}

/// A job that slurmctld has accepted but not saved. slurmctld saves every 5 s, and a busy machine may take longer to
/// kill it, so the case restores the older state file.
fn young_jobs() -> [Case; 2] {
    let submit = "sbatch --parsable --hold --mem=16 --job-name=young --output=/dev/null --wrap true";
    let state = "/var/lib/slurm/slurmctld/job_state";
    let forget = format!(
        "old=$(pid slurmctld); cp -p {state} /tmp/job_state; {submit} >/tmp/young; kill -STOP $old; cp -p /tmp/job_state {state}"
    );
    // The next job must not reuse its ID. The `jobs-lost` record names the job.
    let until =
        format!("{{ [ -s /tmp/next ] || {submit} >/tmp/next; [ \"$(cat /tmp/next)\" -gt \"$(cat /tmp/young)\" ]; }}");
    let case = |target, fault, inject: String| Case {
        jobs: true,
        inject,
        until: until.clone(),
        signs: vec![Sign::event("jobs-lost")],
        data: "a job of the last 5 s",
        ..Case::new(target, "ready", fault)
    };
    [
        case("slurmctld", "KILL, a young job", format!("{forget}; kill -KILL $old")),
        Case { end: End::Killed, job: "requeued", ..case("container", "KILL, a young job", forget) },
    ]
}

fn each(target: &'static str) -> Vec<Case> {
    let process = wrapper::process(target);
    let case = |fault, inject: String, signs: Vec<Sign>| Case {
        toml: wrapper::plain(target),
        jobs: true,
        inject,
        until: format!("renewed {process}"),
        signs,
        ..Case::new(target, "ready", fault)
    };
    let signal = |signal| format!("old=$(pid {process}); kill -{signal} $old");
    let stop = (target != "service").then(|| case("STOP", signal("STOP"), vec![Sign::of(target, "unit-unresponsive")]));
    let by_term = if target == "service" { "SIGTERM" } else { "0" };
    let mut cases = vec![
        case("KILL", signal("KILL"), Sign::ended(target, "SIGKILL")),
        case("SEGV", signal("SEGV"), Sign::ended(target, "SIGSEGV")),
        case("TERM by another", signal("TERM"), Sign::ended(target, by_term)),
        Case {
            // No Slurm daemon exits with code 1 on request; a shell wrapper does.
            toml: wrapper::exits_at_will(target),
            ..case("exit 1", format!("old=$(pid {process}); kill -USR1 $(cat /tmp/wrapper)"), Sign::ended(target, "1"))
        },
    ];
    cases.extend(stop);
    cases
}
