//! Waits until no job is left that can still run, after the container's command has ended.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::SLURM;
use model::message;
use model::queued_job::QueuedJob;
use slurm::client::Jobs;
use sys::report;

/// The pause between two checks of the queue: Slurm sends no event when a job ends. It grows: for a long
/// job, precision does not matter.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long slurmctld may fail to respond; it is restarted when it dies.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(120);

/// Reasons of pending jobs that only a user or an administrator can resolve (Slurm 24.11, `job_state_reason` in `slurm_protocol_defs.c`).
const MANUAL_REASONS: [&str; 4] =
    ["JobHeldUser", "JobHeldAdmin", "DependencyNeverSatisfied", "launch_failed_requeued_held"];

/// Returns once no job is left in the queue that can run without manual action.
pub fn run() -> anyhow::Result<()> {
    let (mut pause, mut last_answer, mut reported) = (FIRST_PAUSE, Instant::now(), BTreeSet::new());
    loop {
        match SLURM.jobs(&Jobs::default()) {
            Ok(queue) => {
                let queue = Backlog::of(&queue);
                for (job, reason) in &queue.held {
                    if reported.insert(job.clone()) {
                        report::warn(message!(
                            "job-not-waited-for",
                            "not waiting for job {job}: it needs manual action ({reason})",
                            job,
                            reason
                        ));
                    }
                }
                if queue.open.is_empty() {
                    return Ok(());
                }
                last_answer = Instant::now();
            }
            Err(error) if last_answer.elapsed() >= RESPONSE_TIMEOUT => return Err(error.into()),
            Err(_) => {}
        }
        super::pause(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Backlog {
    /// Jobs that are running or completing, or that can still run.
    open: BTreeSet<String>,
    /// Numbers of running and of pending jobs, including held ones, for messages.
    pub(super) running: usize,
    pub(super) waiting: usize,
    /// Jobs that wait for a user or an administrator, with the reason.
    held: Vec<(String, String)>,
}

impl Backlog {
    pub(super) fn of(jobs: &[QueuedJob]) -> Self {
        let mut queue = Self::default();
        for job in jobs {
            let id = job.number.to_string();
            queue.waiting += usize::from(job.is_pending());
            if job.is_pending() && MANUAL_REASONS.contains(&job.reason.as_str()) {
                queue.held.push((id, job.reason.clone()));
                continue;
            }
            queue.running += usize::from(!job.is_pending() && !job.is_completing());
            queue.open.insert(id);
        }
        queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn does_not_wait_for_held_jobs() {
        let jobs = [
            (1, "RUNNING", "None"),
            (2, "PENDING", "Resources"),
            (3, "PENDING", "JobHeldUser"),
            (4, "COMPLETING", "None"),
            (5, "PENDING", "DependencyNeverSatisfied"),
            (6, "PENDING", "Nodes required for job are DOWN, DRAINED or reserved"),
        ];
        let job = |(number, state, reason): (u64, &str, &str)| QueuedJob {
            number,
            state: state.to_owned(),
            reason: reason.to_owned(),
            ..QueuedJob::default()
        };
        let queue = Backlog::of(&jobs.map(job));
        assert_eq!(queue.open.iter().map(String::as_str).collect::<Vec<_>>(), ["1", "2", "4", "6"]);
        assert_eq!((queue.running, queue.waiting), (1, 4));
        assert_eq!(queue.held.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["3", "5"]);
    }
}
