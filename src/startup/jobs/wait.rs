//! Waits until no job is left that can still run, after the container's command has ended.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{COMPLETING, output};

/// The pause between two checks of the queue, because Slurm has no event for the end of a job. It grows: for a long
/// job, precision does not matter.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long slurmctld may fail to answer; it is restarted when it dies.
const PATIENCE: Duration = Duration::from_secs(120);

/// Reasons that only a person can resolve (Slurm 22.05 to 24.11, `job_state_reason` in `slurm_protocol_defs.c`).
const NEVER_BY_ITSELF: [&str; 4] =
    ["JobHeldUser", "JobHeldAdmin", "DependencyNeverSatisfied", "launch_failed_requeued_held"];

/// Returns once no job is left in the queue.
pub fn run() -> anyhow::Result<()> {
    let (mut pause, mut answered, mut said) = (FIRST_PAUSE, Instant::now(), BTreeSet::new());
    loop {
        match output("squeue", &["--noheader", "--format=%A %T %r"]) {
            Ok(queue) => {
                let queue = Queue::parse(&queue);
                for (job, reason) in &queue.held {
                    if said.insert(job.clone()) {
                        eprintln!("warning: job {job} is not waited for: it does not run by itself ({reason})");
                    }
                }
                if queue.open.is_empty() {
                    return Ok(());
                }
                answered = Instant::now();
            }
            Err(error) if answered.elapsed() >= PATIENCE => return Err(error),
            Err(_) => {}
        }
        super::pause(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Queue {
    /// Jobs that are running, ending, or will run.
    open: BTreeSet<String>,
    /// How many of these are running and pending, for messages.
    pub(super) running: usize,
    pub(super) waiting: usize,
    /// Jobs that wait for a person, and why.
    held: Vec<(String, String)>,
}

impl Queue {
    /// Parses lines of `%A %T %r`; the reason may contain blanks.
    pub(super) fn parse(text: &str) -> Self {
        let mut queue = Self::default();
        for line in text.lines() {
            let mut words = line.trim().splitn(3, ' ');
            let (Some(id), Some(state)) = (words.next(), words.next()) else { continue };
            let reason = words.next().unwrap_or_default().trim();
            match state {
                "PENDING" if NEVER_BY_ITSELF.contains(&reason) => {
                    queue.waiting += 1;
                    queue.held.push((id.to_owned(), reason.to_owned()));
                    continue;
                }
                "PENDING" => queue.waiting += 1,
                COMPLETING => {}
                _ => queue.running += 1,
            }
            queue.open.insert(id.to_owned());
        }
        queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_person_is_not_waited_for() {
        let queue = Queue::parse(
            "1 RUNNING None\n2 PENDING Resources\n3 PENDING JobHeldUser\n4 COMPLETING None\n5 PENDING DependencyNeverSatisfied\n\
             6 PENDING Nodes required for job are DOWN, DRAINED or reserved\n",
        );
        assert_eq!(queue.open.iter().map(String::as_str).collect::<Vec<_>>(), ["1", "2", "4", "6"]);
        assert_eq!((queue.running, queue.waiting), (1, 4));
        assert_eq!(queue.held.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["3", "5"]);
        assert_eq!(Queue::parse("\n"), Queue::default());
    }
}
