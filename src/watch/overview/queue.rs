//! The jobs of the queue, from `squeue`.

use std::collections::BTreeMap;

use serde::Serialize;

use model::printable;

/// No field is a text that users choose, which could pass for another field or line. Arrays are told task by task.
pub(super) const ARGUMENTS: [&str; 5] =
    ["--all", "--array", "--noheader", "--states=all", "--format=%A|%i|%T|%C|%M|%P|%u|%a|%r"];

/// How much of a field is kept, in characters.
const LONGEST: usize = 100;

/// A job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueuedJob {
    /// Its number; each task of an array has one.
    #[serde(skip)]
    pub number: u64,
    /// As users know it: `17`, or `17_3` for a task of an array.
    pub id: String,
    /// Slurm's word for its state: `RUNNING`.
    pub state: String,
    /// How many CPUs it has or asks for.
    pub cpus: u64,
    /// How long it has run: `1-02:03:04`.
    pub time: String,
    /// The partition, or several that it may go to.
    pub partition: String,
    /// Whose it is.
    pub user: String,
    /// The account that pays for it.
    pub account: String,
    /// Why it waits; `None` if it does not.
    pub reason: String,
}

/// The jobs that slurmctld knows: those that have ended for some minutes longer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// In squeue's order.
    pub jobs: Vec<QueuedJob>,
}

/// How many jobs somebody has in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Jobs that wait.
    pub pending: u64,
    /// Jobs that run.
    pub running: u64,
    /// The CPUs of those.
    pub cpus: u64,
    /// Jobs that are suspended.
    pub suspended: u64,
}

impl QueuedJob {
    /// How long it has run, in seconds.
    pub fn seconds(&self) -> Option<u64> {
        let (days, clock) = self.time.split_once('-').unwrap_or(("0", &self.time));
        let days = days.parse::<u64>().ok()?;
        let parts = clock.split(':').map(|part| part.parse::<u64>().ok());
        let seconds = parts.reduce(|all, part| all?.checked_mul(60)?.checked_add(part?)).flatten()?;
        days.checked_mul(86_400)?.checked_add(seconds)
    }
}

impl Queue {
    /// Reads what squeue prints with [`ARGUMENTS`].
    pub fn parse(text: &str) -> Self {
        let job = |line: &str| {
            let mut fields = line.trim().splitn(9, '|').map(|field| printable::short(field.trim(), LONGEST));
            let mut next = || fields.next();
            let (number, id, state) = (next()?.parse().ok()?, next()?, next()?);
            let (cpus, time, partition) = (next()?.parse().unwrap_or_default(), next()?, next()?);
            let (user, account, reason) = (next()?, next()?, next()?);
            Some(QueuedJob { number, id, state, cpus, time, partition, user, account, reason })
        };
        Self { jobs: text.lines().filter_map(job).collect() }
    }

    /// How many jobs have this state.
    pub fn count(&self, state: &str) -> u64 {
        self.jobs.iter().filter(|job| job.state == state).count() as u64
    }

    /// How many jobs wait for others.
    pub fn waiting_for_others(&self) -> u64 {
        self.jobs.iter().filter(|job| job.state == "PENDING" && job.reason == "Dependency").count() as u64
    }

    /// The jobs by what `key` says of them.
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

    /// How many jobs wait for each partition; a job that may go to several waits for each.
    pub fn pending_by_partition(&self) -> BTreeMap<&str, u64> {
        let mut pending = BTreeMap::new();
        for job in self.jobs.iter().filter(|job| job.state == "PENDING") {
            for partition in job.partition.split(',') {
                *pending.entry(partition).or_default() += 1;
            }
        }
        pending
    }

    /// The jobs that have not ended: first those that run, then those that wait.
    pub fn active(&self) -> impl Iterator<Item = &QueuedJob> {
        let of = |waits: bool| {
            let is_active = |job: &&QueuedJob| ACTIVE.contains(&job.state.as_str());
            self.jobs.iter().filter(is_active).filter(move |job| (job.state == "PENDING") == waits)
        };
        of(false).chain(of(true))
    }
}

/// The states of jobs that have not ended.
const ACTIVE: [&str; 6] = ["RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "PENDING"];

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "17|17|RUNNING|4|1:02|main|alice|(null)|None\n18|18_1|PENDING|2|0:00|main,big|bob|lab|Dependency\n\
                        19|18_2|PENDING|2|0:00|main,big|bob|lab|Resources\n9|9|COMPLETED|1|0:01|main|bob|lab|None\n\
                        slurm_load_jobs error: x|y\n20|20|RUNNING|x\n";

    #[test]
    fn jobs_are_counted_by_state_user_and_partition() {
        let queue = Queue::parse(TEXT);
        assert_eq!(queue.jobs.len(), 4);
        assert_eq!((queue.count("RUNNING"), queue.count("PENDING"), queue.waiting_for_others()), (1, 2, 1));
        let times =
            ["2:03", "1-01:00:01", "INVALID"].map(|time| QueuedJob { time: time.to_owned(), ..QueuedJob::default() });
        assert_eq!(times.map(|job| job.seconds()), [Some(123), Some(90_001), None]);
        let users = queue.by(|job| &job.user);
        assert_eq!(users["alice"], Share { running: 1, cpus: 4, ..Share::default() });
        assert_eq!(users["bob"], Share { pending: 2, ..Share::default() });
        assert_eq!(queue.pending_by_partition(), [("big", 2), ("main", 2)].into());
        let active: Vec<&str> = queue.active().map(|job| job.id.as_str()).collect();
        assert_eq!(active, ["17", "18_1", "18_2"]);
    }
}
