//! The start and reload of a cluster, from detection to running daemons, and the processes that PID 1 runs as children.

#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "../slurm/fake.rs"]
mod fake_slurm;
pub mod free_port;
pub mod full_spool;
pub mod gpu_handover;
pub mod health;
pub mod jobs;
pub mod liveness;
pub mod oom_score;
pub mod prepare;
#[cfg(test)]
#[path = "../install/private_mount.rs"]
mod private_mount;
pub mod start;
pub mod state_disk;
mod step_sockets;
pub mod stopped;
pub mod take_token;
pub mod take_variables;
pub mod test_job;
pub mod up;
