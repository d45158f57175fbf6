//! Decides how to handle GPU faults: what to report, when to drain the node, and when to resume it with fewer or more GPUs.
//!
//! The inputs are times, samples, the driver's events and Slurm's answers; the outputs are [`Action`]s.
//!
//! Slurm can only drain a whole node, and aborts every job with a GPU when the node's GPU count changes. So a node with
//! a faulty GPU is drained until its GPU jobs, or all jobs, have ended; then it is resumed without that GPU. With
//! [`Recount::Never`] the node remains drained until the fault is cleared or the container is restarted.

mod absent;
mod gpu;
mod log;
mod node;
mod release;
mod resets;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::fault::{FaultKind, Faults, Policy};
use super::report::{Report, ReportedFault};
use super::sample::{GpuSample, Identity, Key};
use gpu::Gpu;
use log::{Pending, WithoutJobs};
use model::inventory::Vendor;
use model::log::Level;
use model::message;
use model::message::Message;
use model::process_id::ProcessId;
use node::Stage;

pub use node::{DrainOutcome, SlurmNodeState};

/// The interval between two queries for the jobs on busy GPUs, in ms.
const USAGE_QUERY_INTERVAL: u64 = 30_000;
/// The maximum number of recent faults in the report.
const MAX_RECENT: usize = 50;

/// The current time, on the monotonic clock and on the system clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Clock {
    /// Monotonic time in milliseconds.
    pub ms: u64,
    /// Seconds since 1970.
    pub unix: u64,
}

/// When the node's GPU count can change while the container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recount {
    /// When no job on the node has a GPU.
    WithoutGpuJobs,
    /// When no job is on the node, because the controller in another container must delete the node first.
    WithoutJobs,
    /// Never, because slurm.conf has a fixed count.
    Never,
}

/// An action for the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Log a message.
    Log(Level, Message),
    /// Drain the node, unless it is already drained, down or failed for another reason. Answered by [`HealthController::on_drain_outcome`].
    Drain {
        /// The reason, which Slurm shows with the node.
        reason: String,
    },
    /// Query the node's state and the jobs on its GPUs. Answered by [`HealthController::on_node_state`].
    QueryJobs,
    /// Reload the configuration without these GPUs. Answered by [`HealthController::on_reload_outcome`].
    Reload {
        /// The GPUs to exclude, each with its reason.
        without: Vec<LeftOutGpu>,
    },
    /// Resume the node after the agent's drain.
    Resume,
    /// Send the notifications about a fault.
    Notify(ReportedFault),
}

/// A GPU that is excluded from jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LeftOutGpu {
    /// The identity of the GPU.
    pub gpu: Identity,
    /// Why the GPU is excluded.
    pub reason: String,
}

/// The state of the GPUs and of the node, which determines the actions.
#[derive(Debug)]
pub struct HealthController {
    policies: Faults,
    gpus: BTreeMap<Key, Gpu>,
    /// The GPUs of each vendor's last sampling round.
    listed: BTreeSet<Key>,
    /// The GPUs and MIG instances for jobs, in Slurm's order.
    offered: Vec<Identity>,
    /// The GPUs that the last start or reload excluded because of a fault or a release.
    applied: BTreeSet<Key>,
    /// The awaited GPUs: the driver had not initialized them at the last start or reload.
    awaited: Vec<Identity>,
    /// The GPUs that an administrator has released.
    released: BTreeSet<Key>,
    /// The returned GPUs that have not been checked yet.
    returning: BTreeSet<Key>,
    /// The GPUs that no process of slurminit has open.
    closed: BTreeSet<Key>,
    stage: Stage,
    recount: Recount,
    /// When to check that slurmctld kept the resume, in ms; `None` if no check is pending.
    resume_check_due: Option<u64>,
    interval_ms: u64,
    pending: Vec<Pending>,
    without_jobs: Vec<WithoutJobs>,
    /// Whether an [`Action::QueryJobs`] has not been answered yet.
    has_pending_query: bool,
    /// Whether an [`Action::Drain`] has not been answered yet.
    has_pending_drain: bool,
    has_failed_to_drain: bool,
    last_logged: BTreeMap<(Key, FaultKind), u64>,
    recent: VecDeque<ReportedFault>,
    /// When the jobs on busy GPUs were last queried, in ms.
    last_usage_query: Option<u64>,
    at: u64,
    actions: Vec<Action>,
}

impl HealthController {
    /// The state at the start of the agent. `former` is the report of the previous agent, and `applied` are the GPUs
    /// that the configuration already excludes because of a fault or a release.
    pub fn new(
        policies: Faults,
        interval_ms: u64,
        recount: Recount,
        former: Option<&Report>,
        applied: &[LeftOutGpu],
    ) -> Self {
        let restored = |report: &super::report::GpuReport| {
            let gpu = Gpu::restored(report);
            (gpu.identity.key(), gpu)
        };
        let mut gpus: BTreeMap<Key, Gpu> = former.into_iter().flat_map(|report| &report.gpus).map(restored).collect();
        for out in applied {
            let new = || Gpu::new(out.gpu.clone(), Clock::default());
            gpus.entry(out.gpu.key()).or_insert_with(new);
        }
        Self {
            policies,
            gpus,
            listed: BTreeSet::new(),
            offered: Vec::new(),
            applied: applied.iter().map(|out| out.gpu.key()).collect(),
            awaited: Vec::new(),
            released: BTreeSet::new(),
            returning: BTreeSet::new(),
            closed: BTreeSet::new(),
            // The previous agent may have left the node drained.
            stage: Stage::initial(former.is_some()),
            recount,
            resume_check_due: None,
            interval_ms,
            pending: Vec::new(),
            without_jobs: Vec::new(),
            has_pending_query: false,
            has_pending_drain: false,
            has_failed_to_drain: false,
            last_logged: BTreeMap::new(),
            recent: former.map(|report| report.recent.clone().into()).unwrap_or_default(),
            last_usage_query: None,
            at: former.map_or(0, |report| report.at),
            actions: Vec::new(),
        }
    }

    /// Sets the devices for jobs.
    pub fn set_offered(&mut self, offered: Vec<Identity>) {
        if self.offered == offered {
            return;
        }
        for gpu in self.gpus.values_mut() {
            gpu.offered = indices(&gpu.identity, &offered);
        }
        self.offered = offered;
    }

    /// Starts a sampling round of these GPUs.
    pub fn begin_round(&mut self, now: Clock, vendor: Vendor, gpus: Vec<Identity>) {
        let gpus_of_others = &self.gpus;
        self.listed.retain(|key| gpus_of_others.get(key).is_some_and(|gpu| gpu.identity.vendor != vendor));
        for identity in gpus {
            self.adopt(&identity);
            let key = identity.key();
            let known = self.gpus.entry(key.clone()).or_insert_with(|| Gpu::new(identity.clone(), now));
            known.identity = identity;
            known.offered = indices(&known.identity, &self.offered);
            // A GPU may be listed without a sample: a closed or unresponsive GPU is not queried in each round.
            self.listed.insert(key);
        }
    }

    /// Applies the sample of a GPU.
    pub fn add_sample(&mut self, now: Clock, key: &Key, sample: GpuSample) {
        self.apply_sample(now, key, sample, None);
        // The GPU has been checked. A fault that remains still excludes it from jobs.
        self.returning.remove(key);
    }

    /// Applies a failure to sample a GPU, or all GPUs of the vendor.
    pub fn add_failure(&mut self, now: Clock, vendor: Vendor, key: Option<&Key>, kind: FaultKind, what: &str) {
        let keys: Vec<Key> = match key {
            Some(key) => vec![key.clone()],
            None => self.keys_of(vendor),
        };
        for key in keys {
            self.apply_sample(now, &key, GpuSample { trouble: Some(kind), ..GpuSample::default() }, Some(what));
            self.returning.remove(&key);
        }
    }

    fn apply_sample(&mut self, now: Clock, key: &Key, sample: GpuSample, detail: Option<&str>) {
        let policies = self.policies.clone();
        let Some(gpu) = self.gpus.get_mut(key) else { return };
        let (new, cleared) = gpu.apply_sample(now, sample, |kind| policies.policy(kind));
        for kind in new {
            let used = self.gpus.get(key).filter(|_| kind == FaultKind::Leftover).map(Gpu::usage);
            self.queue_report(now, key, kind, policies.policy(kind), detail.or(used.as_deref()));
        }
        for kind in cleared {
            self.log_cleared(key, kind);
        }
    }

    /// Ends the sampling round. A known GPU that is no longer listed is lost.
    pub fn end_round(&mut self, now: Clock, vendor: Vendor) {
        let gone: Vec<Key> = self.keys_of(vendor).into_iter().filter(|key| !self.listed.contains(key)).collect();
        for key in gone {
            self.add_failure(now, vendor, Some(&key), FaultKind::Lost, "the driver no longer lists the GPU");
        }
        self.at = now.unix;
        let is_used = self.gpus.values().any(|gpu| gpu.is_in_use() && !gpu.offered.is_empty());
        let is_due = self.last_usage_query.is_none_or(|last| now.ms.saturating_sub(last) >= USAGE_QUERY_INTERVAL);
        if is_used && is_due {
            self.last_usage_query = Some(now.ms);
            self.query_jobs();
        }
    }

    fn warn(&mut self, message: Message) {
        self.actions.push(Action::Log(Level::Warn, message));
    }

    fn info(&mut self, message: Message) {
        self.actions.push(Action::Log(Level::Info, message));
    }

    fn keys_of(&self, vendor: Vendor) -> Vec<Key> {
        self.gpus.iter().filter(|(_, gpu)| gpu.identity.vendor == vendor).map(|(key, _)| key.clone()).collect()
    }

    /// Applies an error (XID) that the driver reported. An error that names no GPU is attributed to the only GPU, if there is just one.
    pub fn add_event(&mut self, now: Clock, key: Option<&Key>, xid: u32) {
        let only = || self.gpus.keys().next().filter(|_| self.gpus.len() == 1).cloned();
        let Some(key) = key.cloned().or_else(only) else {
            let fault = FaultKind::Xid(xid).describe().0;
            return self.warn(message!(
                "gpu-fault-unidentified",
                "the driver reports an error without naming the GPU: {fault}. Fix: find the GPU's PCI address on the host (dmesg | grep -i xid)",
                fault
            ));
        };
        let (kind, policy) = (FaultKind::Xid(xid), self.policies.policy(FaultKind::Xid(xid)));
        let Some(gpu) = self.gpus.get_mut(&key) else { return };
        gpu.add_event(now, kind, policy);
        self.queue_report(now, &key, kind, policy, None);
    }

    /// Decides the next stage, and returns the pending actions.
    pub fn step(&mut self, now: Clock) -> Vec<Action> {
        self.check_resets(now);
        self.log_due(now);
        self.decide(now);
        let actions = std::mem::take(&mut self.actions);
        // Drains and resumes come first, so that they do not wait for a query.
        let (mut first, rest): (Vec<Action>, Vec<Action>) =
            actions.into_iter().partition(|action| matches!(action, Action::Drain { .. } | Action::Resume));
        first.extend(rest);
        first
    }

    /// The time of the next action, in ms.
    pub fn next_deadline(&self) -> Option<u64> {
        // Both deadlines cause a query, so they do not apply while a query is pending.
        let checks = self.stage.next_deadline().into_iter().chain(self.next_resume_check());
        let checks = checks.filter(|_| !self.has_pending_query);
        checks.chain(self.next_log()).chain(self.gpus.values().filter_map(Gpu::reset_deadline)).min()
    }

    /// The report; `process` is the process that writes it.
    pub fn report(&self, process: ProcessId) -> Report {
        let report = |(key, gpu): (&Key, &Gpu)| {
            let release = self.release_of(key);
            super::report::GpuReport { release, ..gpu.report(self.is_left_out(key)) }
        };
        let gpus = self.gpus.iter().map(report);
        let mut gpus: Vec<_> = gpus.collect();
        gpus.sort_by_key(|gpu| (gpu.identity.vendor, gpu.identity.index));
        Report {
            process,
            at: self.at,
            interval_ms: self.interval_ms,
            gpus,
            recent: self.recent.iter().cloned().collect(),
            node: self.node_summary(),
            node_stage: self.stage.node_stage(),
            users: BTreeMap::new(),
            job_uses: Vec::new(),
        }
    }
}

/// The indices of the GPU, or of its MIG instances, among the offered devices.
fn indices(gpu: &Identity, offered: &[Identity]) -> Vec<usize> {
    offered.iter().enumerate().filter(|(_, offered)| gpu.is_same_gpu(offered)).map(|(index, _)| index).collect()
}

#[cfg(test)]
mod tests;
