//! Reads the status file that PID 1 publishes.

use std::path::Path;

use machine::{STATUS_FILE, Status};
use sys::proc;

/// Whether the process that wrote the status is alive. After a restart of the container another process, even the
/// caller, may have its PID. PID 1 itself is always alive.
pub fn is_process_alive(status: &Status) -> bool {
    let is_same = |start| status.pid == 1 || status.start_ticks.is_none_or(|ticks| ticks == start);
    status.pid != std::process::id() && proc::live(status.pid).is_some_and(|stat| is_same(stat.start))
}

/// The status, if the slurminit that wrote it is alive.
pub fn of_running_slurminit(directory: &Path) -> Option<Status> {
    read(directory).ok().filter(is_process_alive)
}

/// Reads the status file.
///
/// # Errors
/// The file is missing, or was not written by this version of slurminit.
pub fn read(directory: &Path) -> std::io::Result<Status> {
    Ok(serde_json::from_slice(&std::fs::read(directory.join(STATUS_FILE))?)?)
}
