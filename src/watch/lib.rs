//! Monitoring of GPUs, memory, directories and jobs: the agent, the metrics and the web page.

#![forbid(unsafe_code)]

pub mod agent;
pub mod memory_guard;
pub mod memory_use;
pub mod metrics;
pub mod overview;

#[cfg(test)]
#[path = "../slurm/fake.rs"]
mod fake_slurm;
