//! Which jobs have this container's GPUs, and for how long.
//!
//! The agent updates the jobs of each GPU in its report only while a GPU is busy or a fault is handled, so the report can omit a job with an
//! idle GPU. This module adds such a job.

use std::collections::BTreeMap;

use super::seen::{Files, Slurm};
use faults::report::GpuReport;
use model::inventory::Key;
use model::queued_job::OwnedJob;
use slurm::nodes::{ClusterNode, GpuState};

/// When each GPU last had a job, as far as known, in seconds since 1970.
#[derive(Debug, Default)]
pub struct Allocations(BTreeMap<Key, u64>);

impl Allocations {
    /// Sets in the report the jobs of each GPU, and since when it has been allocated or free, from slurmctld's answer. Without an answer, the
    /// report is unchanged.
    pub fn apply(&mut self, files: &mut Files, slurm: Result<&Slurm, &str>) {
        let prepared = files.snapshot.as_ref().and_then(|snapshot| snapshot.prepared.as_ref());
        let (Ok(slurm), Some(prepared), Some(report)) = (slurm, prepared, files.report.as_mut()) else { return };
        let Some(node) = slurm.cluster.nodes.iter().find(|node| node.name == prepared.node_name) else { return };
        for gpu in &mut report.gpus {
            if gpu.offered.iter().any(|index| is_unknown(node, *index)) {
                continue;
            }
            // Initially the later of two times: when the GPU last became free or allocated according to the agent, and, if the node has no
            // jobs now, when the node was last busy.
            let known = gpu.since.max(node.last_busy.filter(|_| node.jobs.is_empty()).unwrap_or(0)).min(files.now);
            let idle = self.0.entry(gpu.identity.key()).or_insert(known);
            gpu.jobs = jobs(node, gpu);
            let elapsed = |job: &OwnedJob| slurm.queue.jobs.iter().find(|queued| queued.number == job.job)?.seconds();
            match gpu.jobs.iter().filter_map(elapsed).max() {
                _ if gpu.jobs.is_empty() => gpu.since = *idle,
                Some(seconds) => gpu.since = files.now.saturating_sub(seconds),
                None => {}
            }
            if !gpu.jobs.is_empty() {
                // The last time with a job. Once the GPU's jobs have ended, the GPU has been free since this time.
                *idle = files.now;
            }
        }
    }
}

fn is_unknown(node: &ClusterNode, index: usize) -> bool {
    node.gpus.get(index).is_some_and(|gpu| gpu.state == GpuState::Allocated { job: None })
}

fn jobs(node: &ClusterNode, gpu: &GpuReport) -> Vec<OwnedJob> {
    let states = gpu.offered.iter().filter_map(|index| node.gpus.get(*index)).map(|gpu| &gpu.state);
    let mut jobs: Vec<OwnedJob> = states.flat_map(GpuState::jobs).cloned().collect();
    jobs.sort_unstable_by_key(|job| job.job);
    jobs.dedup();
    jobs
}
