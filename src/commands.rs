//! The verbs, one file each: `Args` is its command line, `run` does it and returns the exit code.

pub mod configure;
pub mod detect;
pub mod doctor;
pub mod environments;
pub mod epilog;
pub mod free_port;
pub mod health;
pub mod holders;
pub mod jobs;
pub mod liveness;
pub mod load_config;
mod lock;
pub mod logs;
pub mod prepare;
pub mod reload;
pub mod render;
pub mod restart;
pub mod run;
pub mod sbatch_args;
pub mod status;
pub mod stop;
pub mod timeline;
