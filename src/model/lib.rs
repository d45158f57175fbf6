//! Types that all crates share: the machine, units, the task of PID 1, findings and exit codes.

#![forbid(unsafe_code)]

#[macro_use]
pub mod text_type;
#[macro_use]
pub mod message;

pub mod cuda;
pub mod daemons;
pub mod exit_code;
pub mod file_name;
pub mod hostlist;
pub mod inventory;
pub mod jobs;
pub mod liveness_test;
pub mod log;
pub mod oom_kill;
pub mod paths;
pub mod prepared;
pub mod printable;
pub mod process_id;
pub mod queued_job;
pub mod role;
pub mod slurm_time;
pub mod supervise;
pub mod task;
pub mod unit;
pub mod value;
