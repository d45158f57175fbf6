//! Reads the status file that PID 1 publishes.

use std::path::Path;

use machine::{STATUS_FILE, Status};
use sys::proc;

/// Whether the process that wrote the status is running.
pub fn is_process_alive(status: &Status) -> bool {
    proc::is_running(status.process)
}

/// The status, if the slurminit that wrote it is alive.
pub fn of_running_slurminit(directory: &Path) -> Option<Status> {
    read(directory).ok().filter(is_process_alive)
}

/// Reads the status file.
///
/// # Errors
/// The file cannot be read, or cannot be parsed, because another version of slurminit wrote it or a write is in progress.
pub fn read(directory: &Path) -> std::io::Result<Status> {
    Ok(serde_json::from_slice(&std::fs::read(directory.join(STATUS_FILE))?)?)
}

#[cfg(test)]
mod tests {
    use machine::Snapshot;
    use model::process_id::ProcessId;

    use super::*;

    #[test]
    fn status_of_former_process_with_same_pid_is_outdated() {
        let is_alive = |process| {
            let snapshot = Snapshot::default();
            is_process_alive(&Status { version: String::new(), process, started_ms: 0, snapshot })
        };
        let own = proc::own_id();
        assert!(is_alive(own));
        assert!(!is_alive(ProcessId { start_ticks: own.start_ticks - 1, ..own }));
        // A container's process 1 has the same PID after each restart of the container.
        let first = proc::stat(1).map(|stat| ProcessId { pid: 1, start_ticks: stat.start }).unwrap();
        assert!(is_alive(first));
        assert!(!is_alive(ProcessId { start_ticks: first.start_ticks + 1, ..first }));
    }
}
