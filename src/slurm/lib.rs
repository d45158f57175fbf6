//! Slurm's commands: what they are asked, and what their answers mean.

pub mod associations;
pub mod nodes;
pub mod now;
pub mod sbatch_args;
