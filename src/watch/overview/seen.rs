//! What was read and answered.

use std::time::Duration;

use super::queue::Queue;
use faults::report::Report;
use machine::Snapshot;
use slurm::nodes::ClusterNodes;
use slurm::scheduler::Scheduler;
use slurm::shares::FairShare;

/// What lies in the run directory.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// The state of a slurminit that runs.
    pub snapshot: Option<Snapshot>,
    /// How long slurminit has been running, in ms.
    pub uptime_ms: u64,
    /// The agent's file, however old.
    pub report: Option<Report>,
    /// The time of reading, in seconds since 1970.
    pub now: u64,
}

/// A look at a GPU that answers late takes as long, in seconds.
const SLACK: u64 = 15;

impl Files {
    /// The age of the report in seconds.
    pub fn report_age(&self) -> Option<u64> {
        self.report.as_ref().map(|report| self.now.saturating_sub(report.at))
    }

    /// Whether there is no report, or one that several looks should have replaced.
    pub fn is_stale(&self) -> bool {
        let longest = |report: &Report| SLACK + 3 * report.interval_ms / 1000;
        self.report.as_ref().is_none_or(|report| self.now.saturating_sub(report.at) > longest(report))
    }
}

/// What slurmctld answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slurm {
    /// The nodes and their GPUs.
    pub cluster: ClusterNodes,
    /// The jobs.
    pub queue: Queue,
    /// The scheduler's numbers.
    pub scheduler: Scheduler,
    /// What accounts have of their fair share; empty without accounting.
    pub fair_shares: Vec<FairShare>,
    /// How long the answers took.
    pub took: Duration,
}
