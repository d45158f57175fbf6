//! Resumes the node after a full disk: slurmd drains it when it has no space for a batch job, and Slurm keeps the drain.
//!
//! Runs with each liveness check. It asks slurmctld only after the disk was full.

use std::path::Path;

use nix::sys::statvfs::statvfs;

use control::status;
use machine::node_report::SPOOL_FULL_REASON;
use model::message;
use model::prepared::Prepared;
use slurm::client::{Client, limit};
use sys::{report, trusted_path};

/// A file in the run directory. It exists if the disk was full and the node has not been checked since.
const MARKER: &str = "spool-was-full";
/// A batch job can fail if less than this space, in bytes, is free.
const FULL: u64 = 1 << 20;
/// The node can take jobs again if at least this space, in bytes, is free.
const FREE: u64 = 16 << 20;

/// Records that slurmd's spool directory is full, or resumes a node that was drained for this reason.
///
/// # Errors
/// The record cannot be written, or slurmctld does not respond.
pub fn check(run: &Path) -> anyhow::Result<()> {
    let Some(prepared) = status::read(run)?.snapshot.prepared else { return Ok(()) };
    let Some(free) = prepared.spool_directories.iter().filter_map(|spool| free_bytes(spool)).min() else {
        return Ok(());
    };
    let directory = trusted_path::open(Path::new("/"), run)?;
    let is_marked = directory.read(MARKER).is_ok();
    match free {
        ..FULL if !is_marked => directory.create(MARKER, 0o600).map(drop)?,
        FREE.. if is_marked => {
            resume(&prepared)?;
            directory.remove(MARKER)?;
        }
        _ => {}
    }
    Ok(())
}

fn free_bytes(spool: &Path) -> Option<u64> {
    let disk = statvfs(spool).ok()?;
    Some(disk.blocks_available().saturating_mul(disk.fragment_size()))
}

fn resume(prepared: &Prepared) -> anyhow::Result<()> {
    let client = Client::with_total_timeout(limit::COMMAND);
    let node = &prepared.node_name;
    let is_drained = client
        .node_reports(node)?
        .iter()
        .any(|report| report.reason == SPOOL_FULL_REASON && report.has_drain_reason(SPOOL_FULL_REASON));
    if is_drained {
        client.update_node(node, &["state=resume"])?;
        report::info(message!(
            "node-resumed-after-full-disk",
            "slurmd's spool directory has space again; node resumed (it was drained: {reason})",
            reason = SPOOL_FULL_REASON
        ));
    }
    Ok(())
}
