//! Resumes the node after a full disk: Slurm drains the node when there is no space for a batch job, and does
//! not resume it.
//!
//! Runs with each liveness check. Queries slurmctld only when a disk that was full has space again.

use std::path::Path;

use nix::sys::statvfs::statvfs;

use control::status;
use machine::node_report::{NodeReport, SPOOL_FULL_REASON};
use model::message;
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
/// The status or the run directory cannot be read, the record cannot be written or removed, or slurmctld does not respond or refuses to
/// resume the node.
pub fn check(run: &Path) -> anyhow::Result<()> {
    let Some(prepared) = status::read(run)?.snapshot.prepared else { return Ok(()) };
    let Some(free) = prepared.spool_directories.iter().filter_map(|spool| free_bytes(spool)).min() else {
        return Ok(());
    };
    let directory = trusted_path::open(Path::new("/"), run)?;
    let is_marked = directory.read(MARKER).is_ok();
    match change(free, is_marked) {
        Some(Change::Full) => directory.create(MARKER, 0o600).map(drop)?,
        Some(Change::Free) if resume(&Client::with_total_timeout(limit::COMMAND), &prepared.node_name)? => {
            directory.remove(MARKER)?;
        }
        Some(Change::Free) | None => {}
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Change {
    Full,
    Free,
}

fn change(free: u64, is_marked: bool) -> Option<Change> {
    match free {
        ..FULL if !is_marked => Some(Change::Full),
        FREE.. if is_marked => Some(Change::Free),
        _ => None,
    }
}

fn free_bytes(spool: &Path) -> Option<u64> {
    let disk = statvfs(spool).ok()?;
    Some(disk.blocks_available().saturating_mul(disk.fragment_size()))
}

/// Resumes the node if it is drained for this reason. Returns `false` if it is, but does not respond: it may be down, too, and `resume` would end that
/// state.
fn resume(client: &Client<'_>, node: &str) -> anyhow::Result<bool> {
    let reports = client.node_reports(node)?;
    let is_drained =
        |report: &&NodeReport| report.reason == SPOOL_FULL_REASON && report.is_drained_for(SPOOL_FULL_REASON);
    let Some(report) = reports.iter().find(is_drained) else { return Ok(true) };
    if !report.responding {
        return Ok(false);
    }
    client.update_node(node, &["state=resume"])?;
    report::info(message!(
        "node-resumed-after-full-disk",
        "slurmd's spool directory has space again; node resumed (it was drained: {reason})",
        reason = SPOOL_FULL_REASON
    ));
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_slurm::FakeSlurm;

    #[test]
    fn node_that_does_not_respond_is_resumed_by_later_check() {
        for (state, is_done, updates) in [("drained", true, 1), ("drained*", false, 0), ("idle", true, 0)] {
            let answer = format!("{state} root|{SPOOL_FULL_REASON}");
            let slurm = FakeSlurm::new(&[("sinfo", Ok(&answer)), ("scontrol update", Ok(""))]);
            let outcome = resume(&Client::with_runner(&slurm.run()), "c1").unwrap();
            assert_eq!((outcome, slurm.commands("scontrol").len()), (is_done, updates), "{state}");
        }
    }

    #[test]
    fn full_disk_is_free_again_only_with_more_space() {
        const MIB: u64 = 1024 * 1024;
        for (free, unmarked, marked) in [
            (0, Some(Change::Full), None),
            (MIB - 1, Some(Change::Full), None),
            (MIB, None, None),
            (16 * MIB - 1, None, None),
            (16 * MIB, None, Some(Change::Free)),
        ] {
            assert_eq!((change(free, false), change(free, true)), (unmarked, marked), "{free}");
        }
    }
}
