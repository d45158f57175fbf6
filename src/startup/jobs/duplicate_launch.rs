//! Handles duplicate launches: batch jobs that slurmd still runs and that slurmctld starts again.
//!
//! If slurmctld is killed before it has saved the start of a batch job, its successor starts the job again. slurmd
//! still has the first run, and rejects the launch. slurmctld then requeues the job, which has to wait two minutes, and drains the whole node
//! with "Duplicate jobid" until an administrator resumes it (Slurm 24.11, `req.c` and `agent.c`).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{SLURM, account, pause, start_soon};
use machine::node_report::DUPLICATE_JOB_REASON;
use model::message;
use model::queued_job::PENDING;
use slurm::client::{Client, Jobs};
use sys::report;

/// How long to watch after slurmctld's start: slurmctld first has to start scheduling (observed: after 5 s), and then to
/// receive slurmd's answer.
const WATCH_TIME: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// If the node is drained for a duplicate launch, resumes it and lets the requeued jobs start as soon as possible.
pub(super) fn watch(node: &str) -> anyhow::Result<()> {
    let begin = Instant::now();
    let started = account::started_jobs(node)?.ids;
    // Once the node was drained, each check looks for requeued jobs: slurmctld may requeue a job after the drain.
    let mut was_drained = false;
    while !started.is_empty() && begin.elapsed() < WATCH_TIME {
        was_drained |= resume_if_drained(&SLURM, node)?;
        if was_drained {
            relaunched(&SLURM, &started)?.iter().for_each(|job| start_soon(job));
        }
        pause(POLL_INTERVAL);
    }
    Ok(())
}

/// Resumes the node if it was drained for a duplicate launch. Returns whether it was.
fn resume_if_drained(slurm: &Client<'_>, node: &str) -> anyhow::Result<bool> {
    let is_drained = slurm.node_reports(node)?.iter().any(|report| report.has_drain_reason(DUPLICATE_JOB_REASON));
    if is_drained {
        slurm.update_node(node, &["state=undrain"])?;
        report::warn(message!(
            "job-launched-again",
            "slurmctld launched a running job again and drained the node (\"{reason}\"); resumed the node",
            reason = DUPLICATE_JOB_REASON
        ));
    }
    Ok(is_drained)
}

/// The started jobs that slurmctld has requeued.
fn relaunched(slurm: &Client<'_>, started: &BTreeSet<String>) -> anyhow::Result<Vec<String>> {
    let waiting = slurm.jobs(&Jobs { states: &[PENDING], ..Jobs::default() })?;
    Ok(waiting.into_iter().filter(|job| started.contains(&job.number.to_string())).map(|job| job.id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_slurm::FakeSlurm;

    #[test]
    fn only_node_drained_for_duplicate_launch_is_resumed() {
        for (answer, updates) in [
            ("drained slurm|Duplicate jobid", &["scontrol update nodename=c1 state=undrain"][..]),
            ("drained root|Duplicate jobid", &[]),
            ("idle slurm|Duplicate jobid", &[]),
        ] {
            let slurm = FakeSlurm::new(&[("sinfo", Ok(answer)), ("scontrol update", Ok(""))]);
            let was_drained = resume_if_drained(&Client::with_runner(&slurm.run()), "c1").unwrap();
            assert_eq!(
                (was_drained, slurm.commands("scontrol")),
                (!updates.is_empty(), updates.iter().map(ToString::to_string).collect())
            );
        }
    }

    #[test]
    fn waiting_jobs_that_had_started_were_launched_again() {
        let job = |number: &str, id: &str| format!("{number}|{id}|PENDING|1|0:00|main|alice|1501||||(null)|None|N/A\n");
        let queue = job("7", "7") + &job("15", "12_3") + &job("9", "9");
        let slurm = FakeSlurm::new(&[("squeue --noheader --states=PENDING ", Ok(&queue))]);
        let started = ["7", "15", "8"].map(str::to_owned).into();
        assert_eq!(relaunched(&Client::with_runner(&slurm.run()), &started).unwrap(), ["7", "12_3"]);
    }
}
