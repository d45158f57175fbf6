//! The data collected from the run directory and from slurmctld.

use std::time::Duration;

use super::queue::Queue;
use faults::report::Report;
use machine::Snapshot;
use slurm::nodes::ClusterNodes;
use slurm::scheduler::Scheduler;
use slurm::shares::FairShare;
use slurm::why::{Details, Situation};

/// The contents of the run directory, and the time of reading.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// The status of a running slurminit.
    pub snapshot: Option<Snapshot>,
    /// Uptime of slurminit, in ms; 0 if it is not running.
    pub uptime_ms: u64,
    /// The agent's report, however old.
    pub report: Option<Report>,
    /// The time of reading, in seconds since 1970.
    pub now: u64,
}

/// The duration of a sampling round that is tolerated before a report counts as stale, in seconds.
const SLACK: u64 = 15;

impl Files {
    /// The age of the last sample in seconds; slurminit's uptime if no GPU has been sampled yet; `None` without a report.
    pub fn report_age(&self) -> Option<u64> {
        self.report.as_ref().map(|report| match report.at {
            0 => self.uptime_ms / 1000,
            at => self.now.saturating_sub(at),
        })
    }

    /// Whether there is no report, or it has no sample, or its last sample is older than three sampling intervals plus `SLACK`.
    pub fn is_stale(&self) -> bool {
        let longest = |report: &Report| SLACK + 3 * report.interval_ms / 1000;
        self.report.as_ref().is_none_or(|report| self.now.saturating_sub(report.at) > longest(report))
    }
}

/// slurmctld's answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slurm {
    /// The nodes and their GPUs.
    pub cluster: ClusterNodes,
    /// The jobs.
    pub queue: Queue,
    /// Requests and reservations, which explain why jobs wait.
    pub details: Details,
    /// The scheduler's statistics.
    pub scheduler: Scheduler,
    /// The accounts' fair-share factors; empty without accounting.
    pub fair_shares: Vec<FairShare>,
    /// Duration of the queries.
    pub took: Duration,
}

impl Slurm {
    /// The data that explains why a job waits.
    pub fn situation(&self) -> Situation<'_> {
        Situation { jobs: &self.queue.jobs, nodes: &self.cluster.nodes, details: &self.details }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(now: u64, at: u64, interval_ms: u64) -> Files {
        let report = Some(Report { at, interval_ms, ..Report::default() });
        Files { now, uptime_ms: 7999, report, ..Files::default() }
    }

    #[test]
    fn report_is_stale_after_three_intervals_and_slack() {
        for (age, is_stale) in [(0, false), (30, false), (31, true)] {
            assert_eq!(files(1000 + age, 1000, 5000).is_stale(), is_stale, "{age}");
        }
        assert!(Files::default().is_stale());
    }

    #[test]
    fn age_before_first_sample_is_uptime() {
        assert_eq!(files(1010, 1000, 5000).report_age(), Some(10));
        assert_eq!(files(1010, 0, 5000).report_age(), Some(7));
        assert_eq!(Files::default().report_age(), None);
    }
}
