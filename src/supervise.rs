//! PID 1: starts the daemons in order, keeps them alive, and ends them in order.
//!
//! The state machine is pure, in `machine`; `world` is the loop that connects it to processes, signals and sockets.

mod advice;
mod alarm;
mod changes;
mod clock;
pub mod daemon;
pub mod handover;
mod limits;
pub mod liveness;
pub mod machine;
pub mod node;
mod notify;
mod output;
mod process;
mod readiness;
pub mod signals;
pub mod sockets;
pub mod status;
pub mod target;
mod world;

use std::ffi::OsString;
use std::path::PathBuf;

use nix::unistd::Pid;
use tokio::sync::mpsc::unbounded_channel;

use crate::config::{Config, Held};
use crate::logs::Logs;
use signals::{Inherited, Signals};
use target::Target;
use world::World;

/// The task of PID 1.
#[derive(Debug)]
pub struct Job {
    /// The operator's configuration.
    pub config: Config,
    /// The configuration file, which the preparation reads again.
    pub config_file: Option<PathBuf>,
    /// The file to watch for changes, even if none was given.
    pub watched_file: PathBuf,
    /// The part of the configuration that only a restart changes, without command-line overrides.
    pub held: Held,
    /// The container's command; empty if there is none.
    pub cmd: Vec<OsString>,
    /// What the role starts.
    pub target: &'static Target,
}

/// Runs until everything has ended, and returns the container's exit code.
///
/// # Errors
/// Only before anything was started: signal handlers or the event loop cannot be set up. Later, errors become
/// events.
pub fn run(job: Job, inherited: Inherited, logs: Logs) -> anyhow::Result<u8> {
    if nix::unistd::getpid() != Pid::from_raw(1) {
        // PID 1 adopts orphans by default.
        nix::sys::prctl::set_child_subreaper(true)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let signals = Signals::install()?;
        tokio::task::spawn_local(logs.clone().drain());
        let (events, incoming) = unbounded_channel();
        let world = World::new(job, inherited, logs.clone(), events);
        changes::watch_for_changes(&world.job, &world.events);
        let code = world.run(&signals, incoming).await;
        logs.finish();
        Ok(code)
    })
}
