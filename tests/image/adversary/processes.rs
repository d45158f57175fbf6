//! All processes that the container may have.

use super::attack::Attack;
use crate::long::faults::sign::Sign;

pub(super) fn attacks() -> Vec<Attack> {
    // What is done beside it must have begun.
    let line = "sleep 3; b() { b & b & sleep 3; }; while :; do b 2>/dev/null; sleep 0.1; done";
    let bomb = Attack::new(
        "a fork bomb under --pids-limit 200; slurmctld ends in it",
        line,
        Sign::of("slurmctld", "external-failure"),
    );
    vec![Attack {
        image: bomb.image.clone().with(["--pids-limit=200"]),
        // A slurmstepd that is asked and cannot make a thread for its answer ends.
        may_cost_a_job: true,
        beside: "p=$(pid slurmctld); exec perl -e 'sleep 20; kill ABRT => shift' $p".to_owned(),
        ..bomb
    }]
}
