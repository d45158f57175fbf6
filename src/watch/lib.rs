//! Monitoring of GPUs, memory and jobs: the agent, metrics and the page.

#![forbid(unsafe_code)]

pub mod agent;
pub mod memory_guard;
pub mod memory_use;
pub mod metrics;
pub mod overview;

#[cfg(test)]
#[path = "../slurm/fake.rs"]
mod fake_slurm;
