//! Batch jobs that slurmd still knows, and that slurmctld starts again.
//!
//! A slurmctld that is killed before it has saved that a batch job runs has its successor start the job once more. slurmd, which has
//! not been told that the first one is over, refuses; slurmctld then requeues the job for two minutes, and drains the whole node
//! with "Duplicate jobid" until a person takes it back (Slurm 22.05 to 24.11, `req.c` and `agent.c`).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{output, slurm, start_soon};
use crate::supervise::node::TWICE;

/// By then slurmctld has begun to schedule (seen: 5 s), and has heard slurmd's answer.
const PATIENCE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(500);

/// Takes the node back, and has the jobs start as soon as they may. `begun` are those that slurmd has begun.
pub(super) fn watch(node: &str, begun: &BTreeSet<String>) -> anyhow::Result<()> {
    let begin = Instant::now();
    // slurmctld may have been quicker than this look.
    let mut drained = false;
    while !begun.is_empty() && begin.elapsed() < PATIENCE {
        if output("sinfo", &["--noheader", "--nodes", node, "--format=%E"])?.starts_with(TWICE) {
            drained = true;
            slurm("scontrol", &["update", &format!("nodename={node}"), "state=resume"])?;
            eprintln!(
                "warning: slurmctld had forgotten that a job ran, started it again and drained the node (\"{TWICE}\"); the drain is \
                 taken back"
            );
        }
        if drained {
            let waiting = output("squeue", &["--noheader", "--states=PENDING", "--format=%A"])?;
            waiting.lines().map(str::trim).filter(|job| begun.contains(*job)).for_each(start_soon);
        }
        wait(LOOK);
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "Slurm tells nobody of a drain")]
fn wait(pause: Duration) {
    std::thread::sleep(pause);
}
