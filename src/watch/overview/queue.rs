//! The jobs of the queue, counted.

use std::collections::BTreeMap;

use model::queued_job::QueuedJob;

/// The jobs that slurmctld lists, including jobs that ended in the last few minutes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// The jobs, in squeue's order.
    pub jobs: Vec<QueuedJob>,
}

/// The jobs of a user or account, counted by state, and the CPUs of the running ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Pending jobs.
    pub pending: u64,
    /// Running jobs.
    pub running: u64,
    /// CPUs of running jobs.
    pub cpus: u64,
    /// Suspended jobs.
    pub suspended: u64,
}

impl Queue {
    /// Number of jobs in this state.
    pub fn count(&self, state: &str) -> u64 {
        self.jobs.iter().filter(|job| job.state == state).count() as u64
    }

    /// Number of jobs that wait for other jobs.
    pub fn waiting_for_others(&self) -> u64 {
        self.jobs.iter().filter(|job| job.is_pending() && job.reason == "Dependency").count() as u64
    }

    /// The [`Share`] of each value of `key`, such as the user or the account.
    pub fn by<'a>(&'a self, key: impl Fn(&'a QueuedJob) -> &'a str) -> BTreeMap<&'a str, Share> {
        let mut shares: BTreeMap<&str, Share> = BTreeMap::new();
        for job in &self.jobs {
            let share = shares.entry(key(job)).or_default();
            match job.state.as_str() {
                "PENDING" => share.pending += 1,
                "RUNNING" => {
                    share.running += 1;
                    share.cpus += job.cpus;
                }
                "SUSPENDED" => share.suspended += 1,
                _ => {}
            }
        }
        shares
    }

    /// Number of pending jobs by partition. A job with several partitions is counted in each.
    pub fn pending_by_partition(&self) -> BTreeMap<&str, u64> {
        let mut pending = BTreeMap::new();
        for job in self.jobs.iter().filter(|job| job.is_pending()) {
            for partition in job.partition.split(',') {
                *pending.entry(partition).or_default() += 1;
            }
        }
        pending
    }

    /// The jobs that have not ended: first those that hold resources, then the pending ones.
    pub fn active(&self) -> impl Iterator<Item = &QueuedJob> {
        let with_waiting = |waits: bool| {
            let is_active = |job: &&QueuedJob| job.is_pending() || job.holds_resources();
            self.jobs.iter().filter(is_active).filter(move |job| job.is_pending() == waits)
        };
        with_waiting(false).chain(with_waiting(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str, state: &str, cpus: u64, partition: &str, user: &str, reason: &str) -> QueuedJob {
        let [id, state, partition, user, reason] = [id, state, partition, user, reason].map(str::to_owned);
        QueuedJob { id, state, cpus, partition, user, reason, ..QueuedJob::default() }
    }

    #[test]
    fn counts_jobs_by_state_user_and_partition() {
        let jobs = vec![
            job("18_1", "PENDING", 2, "main,big", "bob", "Dependency"),
            job("17", "RUNNING", 4, "main", "alice", "None"),
            job("18_2", "PENDING", 2, "main,big", "bob", "Resources"),
            job("9", "COMPLETED", 1, "main", "bob", "None"),
        ];
        let queue = Queue { jobs };
        assert_eq!((queue.count("RUNNING"), queue.count("PENDING"), queue.waiting_for_others()), (1, 2, 1));
        let users = queue.by(|job| &job.user);
        assert_eq!(users["alice"], Share { running: 1, cpus: 4, ..Share::default() });
        assert_eq!(users["bob"], Share { pending: 2, ..Share::default() });
        assert_eq!(queue.pending_by_partition(), [("big", 2), ("main", 2)].into());
        let active: Vec<&str> = queue.active().map(|job| job.id.as_str()).collect();
        assert_eq!(active, ["17", "18_1", "18_2"]);
    }
}
