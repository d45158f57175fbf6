//! Exhaustion of the container's process limit.

use super::attack::Attack;
use crate::long::faults::sign::Sign;

pub(super) fn attacks() -> Vec<Attack> {
    // Wait until `root_script` has started.
    let line = "sleep 3; b() { b & b & sleep 3; }; while :; do b 2>/dev/null; sleep 0.1; done";
    let bomb = Attack::new(
        "a fork bomb under --pids-limit 200; slurmctld ends in it",
        line,
        Sign::of("slurmctld", "unit-died"),
    );
    vec![Attack {
        image: bomb.image.clone().with(["--pids-limit=200"]),
        // A slurmstepd that cannot create a thread for a request exits.
        may_end_other_jobs: true,
        root_script: "p=$(pid slurmctld); exec perl -e 'sleep 6; kill ABRT => shift' $p".to_owned(),
        ..bomb
    }]
}
