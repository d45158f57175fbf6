//! Tests of the image under real Docker: each starts containers and checks them with Slurm's own commands.
//!
//! Not part of a plain `cargo test`: `docker/test` builds the images and runs these. Manually:
//! `docker/test --only image`, or `cargo test --test image -- --ignored` with existing images.
#![expect(clippy::disallowed_methods, reason = "these tests run the docker command and are not PID 1")]
#![expect(clippy::expect_used, reason = "without Docker there is nothing to test")]

#[path = "image/accounting.rs"]
mod accounting;
#[expect(dead_code, reason = "tests/doctor, which also uses it, needs more of it")]
#[path = "doctor/answer.rs"]
mod answer;
#[path = "image/bad_input.rs"]
mod bad_input;
#[path = "image/built_image.rs"]
mod built_image;
#[path = "image/ci.rs"]
mod ci;
#[path = "image/cli_filter.rs"]
mod cli_filter;
#[path = "image/cluster.rs"]
mod cluster;
#[path = "image/command.rs"]
mod command;
#[path = "image/confined.rs"]
mod confined;
#[path = "image/contents.rs"]
mod contents;
#[path = "image/control.rs"]
mod control;
mod differential;
#[path = "image/docker.rs"]
mod docker;
#[path = "image/doctor.rs"]
mod doctor;
#[path = "image/first_use.rs"]
mod first_use;
#[path = "image/fixes.rs"]
mod fixes;
#[path = "image/foreign_text.rs"]
mod foreign_text;
#[path = "image/gpu_faults.rs"]
mod gpu_faults;
#[path = "image/gpus.rs"]
mod gpus;
#[path = "image/hooks.rs"]
mod hooks;
#[path = "image/host_name.rs"]
mod host_name;
#[path = "image/images.rs"]
mod images;
#[path = "image/isolation.rs"]
mod isolation;
#[path = "image/jobs.rs"]
mod jobs;
#[path = "image/leftovers.rs"]
mod leftovers;
#[path = "image/limits.rs"]
mod limits;
#[path = "image/live.rs"]
mod live;
#[path = "image/liveness.rs"]
mod liveness;
#[path = "image/login.rs"]
mod login;
#[path = "image/long.rs"]
mod long;
#[path = "image/manual.rs"]
mod manual;
#[path = "image/members.rs"]
mod members;
#[path = "image/metrics.rs"]
mod metrics;
#[path = "image/nodes.rs"]
mod nodes;
#[path = "image/notebook.rs"]
mod notebook;
#[path = "image/pipes.rs"]
mod pipes;
#[path = "image/preemption.rs"]
mod preemption;
mod printed;
#[path = "image/reload.rs"]
mod reload;
#[path = "image/report.rs"]
mod report;
#[path = "image/requested_signal.rs"]
mod requested_signal;
#[path = "image/rest.rs"]
mod rest;
#[path = "image/secrets.rs"]
mod secrets;
#[path = "image/services.rs"]
mod services;
#[path = "image/session.rs"]
mod session;
#[path = "image/settings.rs"]
mod settings;
#[path = "image/shared_paths.rs"]
mod shared_paths;
#[path = "image/slurmstepd.rs"]
mod slurmstepd;
#[path = "image/state.rs"]
mod state;
#[path = "image/stop_rounds.rs"]
mod stop_rounds;
#[path = "image/surroundings.rs"]
mod surroundings;
#[path = "image/upgrade.rs"]
mod upgrade;
#[path = "image/user_files.rs"]
mod user_files;
#[path = "image/users.rs"]
mod users;
#[path = "image/vendors.rs"]
mod vendors;
#[path = "image/versions.rs"]
mod versions;
#[path = "image/volumes.rs"]
mod volumes;
#[path = "image/why.rs"]
mod why;
