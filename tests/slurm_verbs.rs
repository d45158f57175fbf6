//! Verbs as processes whose PATH has fake commands of Slurm.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]

mod database;
mod fake;
mod health;
mod id;
mod images;
mod jobs;
mod join;
mod liveness;
mod nodes;
mod queries;
mod reclaim;
mod stop;
