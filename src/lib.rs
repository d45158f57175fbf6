//! slurminit: PID 1 of a GPU-aware Slurm container.
//!
//! Which module does what: docs/architecture.md. Data flows one way: the configuration and the machine's inventory become
//! a plan, the plan becomes text, the text becomes files, and only then the daemons start.

#[macro_use]
mod text_type;

pub mod accounts;
mod agent;
pub mod associations;
pub mod cli;
mod commands;
pub mod config;
pub mod configure;
pub mod control;
pub mod detect;
pub mod doctor;
pub mod exit_code;
mod free_port;
pub mod gpu_health;
mod health;
mod holders;
mod inherited;
pub mod init;
pub mod install;
pub mod inventory;
mod job_map;
mod jobs;
pub mod leftovers;
mod liveness;
pub mod load_config;
mod lock;
pub mod logs;
mod mail;
pub mod memory_guard;
pub mod metrics;
pub mod nodes;
pub mod now;
mod oom_score;
pub mod overview;
pub mod pidfd;
pub mod plan;
mod planned;
mod prepare;
pub mod prepared;
pub mod printable;
pub mod proc;
mod reloading;
pub mod render;
pub mod sbatch_args;
pub mod secret_variables;
mod start;
mod state_disk;
pub mod supervise;
mod take_token;
mod take_variables;
mod timeline;
pub mod token;
pub mod tool;
mod top;
mod up;
pub mod walk;
pub mod watch;
