//! PID 1: starts the daemons in order, keeps them alive, and ends them in order.
//!
//! The state machine is the crate `machine`; [`Supervisor`] is the loop that connects it to processes, signals and sockets.

use std::ffi::OsString;

use nix::unistd::Pid;
use tokio::sync::mpsc::unbounded_channel;

use crate::logs::Logs;
use crate::signals::Signals;
use crate::supervisor::Supervisor;
use model::task::Task;
use sys::inherited::Inherited;

/// Runs until everything has ended, and returns the container's exit code. `cmd`: the container's command; empty if there is none.
///
/// # Errors
/// Only before anything was started: the adoption of orphans, the signal handlers or the event loop cannot be set up.
/// Later, errors become events.
pub(crate) fn run(task: Task, cmd: Vec<OsString>, inherited: Inherited, logs: Logs) -> anyhow::Result<u8> {
    if nix::unistd::getpid() != Pid::from_raw(1) {
        // PID 1 adopts orphans anyway; any other process has to request it.
        nix::sys::prctl::set_child_subreaper(true)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let signals = Signals::install()?;
        tokio::task::spawn_local(logs.clone().drain());
        let (events, incoming) = unbounded_channel();
        let supervisor = Supervisor::new(task, cmd, inherited, logs.clone(), events);
        crate::changes::watch_for_changes(&supervisor.task, &supervisor.events);
        let code = supervisor.run(&signals, incoming).await;
        logs.finish();
        Ok(code)
    })
}
