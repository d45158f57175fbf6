//! The client of Slurm's commands, and parsers of their output.

#![forbid(unsafe_code)]

pub mod associations;
pub mod client;
pub mod config;
pub mod error;
pub mod gpu_jobs;
pub mod node_record;
pub mod nodes;
pub mod sbatch_args;
pub mod scheduler;
pub mod shares;
pub mod why;
