//! The latest OOM kills of jobs' processes since the container's start, for `slurminit doctor`.

use serde::{Deserialize, Serialize};

/// The file with these kills, in the run directory.
pub const FILE: &str = "oom-kills.json";

/// A process of a job that the kernel killed because memory ran out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OomKill {
    /// The job's ID.
    pub job: u32,
    /// The process's name, as one printable line; `short-lived` if the process is unknown.
    pub process: String,
    /// The process's last known resident memory, in MiB; 0 if unknown.
    pub resident_mib: u64,
}
