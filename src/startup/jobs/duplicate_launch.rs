//! Handles duplicate launches: batch jobs that slurmd still runs and that slurmctld starts again.
//!
//! If slurmctld is killed before it has saved the start of a batch job, its successor starts the job again. slurmd
//! still has the first run, and refuses. slurmctld then requeues the job for two minutes, and drains the whole node
//! with "Duplicate jobid" until an administrator resumes it (Slurm 24.11, `req.c` and `agent.c`).

use std::time::{Duration, Instant};

use super::{SLURM, account, pause, start_soon};
use machine::node_report::DUPLICATE_JOB_REASON;
use model::message;
use model::queued_job::PENDING;
use slurm::client::Jobs;
use sys::report;

/// How long to watch after slurmctld's start: by then it has started to schedule (seen: 5 s) and has received slurmd's
/// answer.
const WATCH_TIME: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Resumes the node, and lets the jobs start as soon as possible.
pub(super) fn watch(node: &str) -> anyhow::Result<()> {
    let begin = Instant::now();
    let started = account::started_jobs(node)?.ids;
    // The node may have been drained before the first check.
    let mut was_drained = false;
    while !started.is_empty() && begin.elapsed() < WATCH_TIME {
        if SLURM.node_reports(node)?.iter().any(|report| report.has_drain_reason(DUPLICATE_JOB_REASON)) {
            was_drained = true;
            SLURM.update_node(node, &["state=undrain"])?;
            report::warn(message!(
                "job-launched-again",
                "slurmctld launched a running job again and drained the node (\"{reason}\"); resumed the node",
                reason = DUPLICATE_JOB_REASON
            ));
        }
        if was_drained {
            let waiting = SLURM.jobs(&Jobs { states: &[PENDING], ..Jobs::default() })?;
            let relaunched = waiting.iter().filter(|job| started.contains(&job.number.to_string()));
            relaunched.for_each(|job| start_soon(&job.id));
        }
        pause(POLL_INTERVAL);
    }
    Ok(())
}
