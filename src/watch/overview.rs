//! The current state of this container, its GPUs and its cluster, for the metrics and the page.
//!
//! This module reads the files of PID 1 and of the agent, and queries slurmctld. It needs only the rights of an ordinary user, and opens no
//! GPU.

pub mod allocation;
pub mod queue;
pub mod seen;
pub mod slurm;
pub mod state;

use std::io::Read as _;
use std::path::Path;

use crate::agent;
use control::status;
use faults::report;
use faults::report::Report;
use machine::{STATUS_FILE, Status};

pub use allocation::Allocations;
pub use seen::{Files, Slurm};
pub use state::State;

/// Maximum size of a file. A report of 64 GPUs is about 100 KiB.
const LONGEST: u64 = 16 << 20;

/// Reads the files in the run directory. A missing or invalid file, or the status of a slurminit that has ended, is `None`.
pub fn files(run: &Path) -> Files {
    let status = read(&run.join(STATUS_FILE)).and_then(|text| serde_json::from_slice::<Status>(&text).ok());
    let status = status.filter(status::is_process_alive);
    Files {
        uptime_ms: status.as_ref().map_or(0, |status| sys::monotonic_ms().saturating_sub(status.started_ms)),
        snapshot: status.map(|status| status.snapshot),
        report: read(&run.join(report::FILE)).and_then(|text| serde_json::from_slice::<Report>(&text).ok()),
        now: agent::unix(),
    }
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    std::fs::File::open(path).ok()?.take(LONGEST).read_to_end(&mut text).ok()?;
    Some(text)
}
