//! Queries to Slurm's commands, and parsers of their output.

pub mod associations;
pub mod nodes;
pub mod now;
pub mod sbatch_args;
