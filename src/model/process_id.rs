//! Identifies the process that wrote a file.

use serde::{Deserialize, Serialize};

/// A process, by its PID and its start time in clock ticks since boot. The PID alone is not unique: another process can get it
/// later, and PID 1 is another process after each restart of the container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The PID.
    pub pid: i32,
    /// The start time in clock ticks since boot.
    pub start_ticks: u64,
}
