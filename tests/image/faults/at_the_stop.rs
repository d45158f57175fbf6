//! A daemon that fails while everything is being stopped, with a job that is to have its notice.

use super::case::{Case, End};

pub(super) fn cases() -> Vec<Case> {
    let unanswered = "nobody could say within 5 s what became of the jobs";
    vec![
        case("munged", "KILL", "munged was killed by signal 9 (SIGKILL)"),
        case("munged", "STOP", unanswered),
        case("slurmctld", "KILL", "slurmctld was killed by signal 9 (SIGKILL)"),
        case("slurmctld", "STOP", unanswered),
        // slurmctld goes on without it.
        case("slurmscriptd", "KILL", "stopping, as signal 15 asks"),
        case("slurmscriptd", "STOP", "slurmctld did not end in time; killing it"),
        case("slurmd", "KILL", "slurmd was killed by signal 9 (SIGKILL)"),
        case("slurmd", "STOP", "did not end in time; the next start requeues them"),
    ]
}

fn case(target: &'static str, signal: &'static str, says: &'static str) -> Case {
    Case {
        jobs: true,
        inject: format!("kill -{signal} $old"),
        end: End::Stops,
        says,
        // Without the daemon nobody can give the job its notice, or hear of its end.
        job: if target == "slurmscriptd" { "" } else { "requeued" },
        ..Case::new(target, "stopping", signal)
    }
}
