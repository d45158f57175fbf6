//! Queries to Slurm's commands, and parsers of their output.

#![forbid(unsafe_code)]

pub mod associations;
pub mod nodes;
pub mod now;
pub mod sbatch_args;
