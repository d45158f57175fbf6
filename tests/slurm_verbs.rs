//! Verbs as processes whose PATH has fake commands of Slurm.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]

mod accounts;
mod commands;
mod database;
mod fake;
mod follow;
mod gpu;
mod health;
mod hooks;
mod id;
mod images;
mod jobs;
mod join;
mod join_command;
mod liveness;
mod network;
mod nodes;
mod notebook;
mod queries;
mod reclaim;
mod running;
mod session;
mod stop;
mod submit;
