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
pub mod task;
pub(crate) mod users;
mod world;

use std::ffi::OsString;

use nix::unistd::Pid;
use tokio::sync::mpsc::unbounded_channel;

use crate::inherited::Inherited;
use crate::logs::Logs;
use signals::Signals;
use task::Task;
use world::World;

/// Runs until everything has ended, and returns the container's exit code. `cmd`: the container's command; empty if there is none.
///
/// # Errors
/// Only before anything was started: signal handlers or the event loop cannot be set up. Later, errors become
/// events.
pub fn run(task: Task, cmd: Vec<OsString>, inherited: Inherited, logs: Logs) -> anyhow::Result<u8> {
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
        let world = World::new(task, cmd, inherited, logs.clone(), events);
        changes::watch_for_changes(&world.task, &world.events);
        let code = world.run(&signals, incoming).await;
        logs.finish();
        Ok(code)
    })
}
