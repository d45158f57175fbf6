//! Draining and resuming the node because of its GPUs.

use std::collections::BTreeSet;

use super::{Action, Clock, HealthController, Key, LeftOutGpu, Recount};
use crate::report::NodeStage;
use model::inventory::Identity;
use model::message;
use model::queued_job::OwnedJob;

/// The interval of queries while waiting for jobs, in ms.
const QUERY_INTERVAL: u64 = 1_000;
/// The delay before the first query, in ms: the duration of a sampling round, so that faults of several GPUs are
/// handled together.
const SETTLE_TIME: u64 = 200;
/// The backoff after a failed reload, in ms: doubles up to the maximum.
const RETRY: u64 = 10_000;
const RETRY_MAX: u64 = 600_000;
/// The time after which slurmctld has certainly saved a change, in ms: it saves within 5 s (24.11, `state_save.c`, SAVE_MAX_WAIT).
const SAVE_TIME: u64 = 10_000;
/// The longest time, in ms, that a recovered GPU waits until the node's GPU count can change. After that, the node is drained.
const RETURN_TIMEOUT: u64 = 3_600_000;

/// The stage of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No GPU keeps the node drained.
    Open {
        /// The wait of a recovered GPU, which is offered to jobs again once the node's GPU count can change; `None` if no GPU waits.
        back: Option<ReturnWait>,
    },
    /// The node is drained until the jobs that prevent a change of its GPU count have ended; with [`Recount::Never`], until the fault is cleared.
    Draining {
        /// The start of the drain, in ms.
        since: u64,
        /// Whether slurminit drained the node; `None` until confirmed.
        is_ours: Option<bool>,
        /// The time of the next query, in ms.
        next: u64,
        /// The pause after the next failed reload, in ms.
        retry: u64,
    },
    /// A reload is excluding these GPUs.
    Reloading { without: BTreeSet<Key>, is_ours: bool, retry: u64 },
}

impl Stage {
    const OPEN: Self = Self::Open { back: None };

    pub(super) const fn initial(has_former_agent: bool) -> Self {
        match has_former_agent {
            true => Self::Draining { since: 0, is_ours: Some(true), next: 0, retry: RETRY },
            false => Self::OPEN,
        }
    }

    pub(super) const fn node_stage(&self) -> NodeStage {
        match self {
            Self::Open { back: None } => NodeStage::Open,
            Self::Open { back: Some(_) } => NodeStage::Returning,
            Self::Draining { .. } => NodeStage::Draining,
            Self::Reloading { .. } => NodeStage::Reloading,
        }
    }

    /// The time of the next action, in ms.
    pub(super) const fn next_deadline(&self) -> Option<u64> {
        match self {
            Self::Draining { next, .. } => Some(*next),
            Self::Open { back: Some(back) } => Some(back.next),
            Self::Open { back: None } | Self::Reloading { .. } => None,
        }
    }
}

/// The wait of a recovered GPU until the node's GPU count can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReturnWait {
    /// The start of the wait, in ms.
    since: u64,
    /// The time of the next query, in ms.
    next: u64,
}

/// The result of a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainOutcome {
    /// The agent drained the node.
    Ours,
    /// The node was already drained, down or failed, for this other reason.
    Others(String),
    /// The drain failed.
    Failed(String),
}

/// Slurm's state of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlurmNodeState {
    /// Whether the node is drained, down or failed, for any reason.
    pub is_closed: bool,
    /// Whether the agent drained the node because of a GPU.
    pub is_ours: bool,
    /// The jobs on each GPU, in Slurm's order.
    pub gpus: Vec<Vec<OwnedJob>>,
    /// The number of GPUs allocated to jobs.
    pub allocated_gpus: usize,
    /// Whether no job is on the node, with a GPU or without.
    pub is_empty: bool,
}

impl SlurmNodeState {
    fn allows_recount(&self, recount: Recount) -> bool {
        match recount {
            Recount::WithoutGpuJobs => self.allocated_gpus == 0,
            Recount::WithoutJobs => self.allocated_gpus == 0 && self.is_empty,
            Recount::Never => false,
        }
    }
}

impl HealthController {
    /// The GPUs to exclude: the faulty and released ones that are or were available to jobs, and the awaited ones that have not responded.
    fn gpus_to_leave_out(&self) -> BTreeSet<Key> {
        let unusable = self.gpus.iter().filter(|(key, gpu)| gpu.is_faulty() || self.is_released(key));
        let out = self.left_out();
        let affected = unusable.filter(|(key, gpu)| !gpu.offered.is_empty() || out.contains(*key));
        let missing = self.gpus.iter().filter(|(_, gpu)| self.is_missing(gpu));
        affected.chain(missing).map(|(key, _)| key.clone()).collect()
    }

    /// Whether the configuration excludes the GPU.
    pub(super) fn is_left_out(&self, key: &Key) -> bool {
        self.left_out().contains(key)
    }

    /// Decides the next stage from the current faults.
    pub(super) fn decide(&mut self, now: Clock) {
        let (target, out) = (self.gpus_to_leave_out(), self.left_out());
        if self.next_resume_check().is_some_and(|due| now.ms >= due) {
            self.query_jobs();
        }
        match self.stage.clone() {
            Stage::Open { .. } if !target.is_subset(&out) => self.drain(now, self.reason_of_loss(&target)),
            Stage::Open { back } if target != out => {
                let back = back.unwrap_or(ReturnWait { since: now.ms, next: now.ms + SETTLE_TIME });
                self.stage = Stage::Open { back: Some(back) };
                if self.recount != Recount::Never && now.ms.saturating_sub(back.since) >= RETURN_TIMEOUT {
                    self.drain(now, self.reason_of_return(&target));
                } else if now.ms >= back.next {
                    self.query_jobs();
                }
            }
            Stage::Open { .. } => self.stage = Stage::OPEN,
            Stage::Draining { is_ours: Some(is_ours), .. } if target == out => self.resume(now, is_ours),
            Stage::Draining { next, .. } if now.ms >= next => self.query_jobs(),
            Stage::Draining { .. } | Stage::Reloading { .. } => {}
        }
    }

    /// The query interval while the node is drained, in ms.
    const fn query_interval(&self) -> u64 {
        match self.recount {
            Recount::WithoutGpuJobs | Recount::WithoutJobs => QUERY_INTERVAL,
            Recount::Never => self.interval_ms,
        }
    }

    fn drain(&mut self, now: Clock, reason: String) {
        self.push_drain(reason);
        self.resume_check_due = None;
        self.stage = Stage::Draining { since: now.ms, is_ours: None, next: now.ms, retry: RETRY };
    }

    fn push_drain(&mut self, reason: String) {
        self.has_pending_drain = true;
        self.actions.push(Action::Drain { reason });
    }

    fn resume(&mut self, now: Clock, is_ours: bool) {
        if is_ours {
            self.actions.push(Action::Resume);
            self.resume_check_due = Some(now.ms + SAVE_TIME);
        }
        self.stage = Stage::OPEN;
    }

    /// When to check that slurmctld kept the resume, in ms.
    pub(super) fn next_resume_check(&self) -> Option<u64> {
        self.resume_check_due.filter(|_| matches!(self.stage, Stage::Open { .. }))
    }

    /// Resumes the node again if slurmctld lost the resume, because it was killed before saving it, or was
    /// unreachable.
    fn check_resumed(&mut self, now: Clock, queried_at: Clock, node: Option<&SlurmNodeState>) {
        if self.next_resume_check().is_none_or(|due| queried_at.ms < due) {
            return;
        }
        self.resume_check_due = match node {
            None => Some(now.ms + self.interval_ms),
            Some(node) if node.is_ours => {
                self.actions.push(Action::Resume);
                Some(now.ms + SAVE_TIME)
            }
            Some(_) => None,
        };
    }

    /// Applies the result of [`Action::Drain`].
    pub fn on_drain_outcome(&mut self, now: Clock, outcome: &DrainOutcome) {
        let pause = self.query_interval();
        let has_failed = std::mem::replace(&mut self.has_failed_to_drain, matches!(outcome, DrainOutcome::Failed(_)));
        self.has_pending_drain = false;
        let Stage::Draining { is_ours, next, .. } = &mut self.stage else { return };
        *next = now.ms + SETTLE_TIME;
        match outcome {
            DrainOutcome::Ours => *is_ours = Some(true),
            // The drain is not the agent's, so the agent must not resume the node.
            DrainOutcome::Others(_) => *is_ours = Some(false),
            DrainOutcome::Failed(why) => {
                *next = now.ms + pause;
                if !has_failed {
                    self.warn(message!("node-not-drained", "could not drain the node: {why}; retrying", why));
                }
            }
        }
        self.decide(now);
    }

    /// Applies the result of [`Action::QueryJobs`], sent at `queried_at`.
    pub fn on_node_state(&mut self, now: Clock, queried_at: Clock, node: Option<&SlurmNodeState>) {
        self.has_pending_query = false;
        if let Some(node) = node {
            for gpu in self.gpus.values_mut() {
                let jobs = gpu.offered.iter().filter_map(|index| node.gpus.get(*index)).flatten();
                let mut jobs: Vec<OwnedJob> = jobs.cloned().collect();
                jobs.dedup();
                gpu.set_jobs(now, jobs);
            }
        }
        self.log_pending(now);
        if node.is_some() {
            self.log_jobs();
        }
        self.check_resumed(now, queried_at, node);
        let target = self.gpus_to_leave_out();
        if let Stage::Open { back: Some(back) } = &mut self.stage {
            back.next = now.ms + self.interval_ms;
            // A job may have started since the query, so the node is drained first and queried again.
            if node.is_some_and(|node| node.allows_recount(self.recount)) {
                self.drain(now, self.reason_of_return(&target));
            }
            return;
        }
        let recount = self.recount;
        let (reason, out) = (self.reason_of_loss(&target), self.left_out());
        let pause = self.query_interval();
        let Stage::Draining { since, is_ours, next, retry } = &mut self.stage else { return };
        *next = now.ms + pause;
        let Some(node) = node else { return };
        if !node.is_closed && target.is_subset(&out) {
            // The node is not drained, and no further GPU has to be excluded. A recovered GPU alone is no reason to drain the node again.
            self.stage = Stage::OPEN;
        } else if !node.is_closed && !self.has_pending_drain {
            // The node was resumed externally, for example by the restart of a daemon, or the drain failed.
            *is_ours = None;
            self.push_drain(reason);
        } else if queried_at.ms >= *since && node.allows_recount(recount) && is_ours.is_some() {
            let (is_ours, retry) = (*is_ours == Some(true), *retry);
            let without: Vec<LeftOutGpu> = target.iter().filter_map(|key| self.left_out_gpu(key)).collect();
            let target = without.iter().map(|out| out.gpu.key()).collect();
            self.stage = Stage::Reloading { without: target, is_ours, retry };
            self.actions.push(Action::Reload { without });
        }
    }

    /// Applies the result of [`Action::Reload`]: the devices for jobs, or the error.
    pub fn on_reload_outcome(&mut self, now: Clock, outcome: Result<Vec<Identity>, String>) {
        let Stage::Reloading { without, is_ours, retry } = self.stage.clone() else { return };
        match outcome {
            Ok(offered) => {
                self.applied = without;
                self.set_offered(offered);
                self.postpone_awaited(now);
                let gpus = self.offered.len();
                let names = self.names(&self.left_out());
                self.info(match is_ours {
                    true if names.is_empty() => {
                        message!("gpus-complete", "all GPUs available to jobs again ({gpus} in total)", gpus)
                    }
                    false if names.is_empty() => message!(
                        "gpus-complete",
                        "all GPUs offered to jobs again ({gpus} in total); the node still accepts no jobs, for another reason",
                        gpus
                    ),
                    true => message!(
                        "gpus-excluded",
                        "resuming the node without {names}; GPUs available to jobs: {gpus}",
                        gpus,
                        names
                    ),
                    false => message!(
                        "gpus-excluded",
                        "{names} excluded; GPUs offered to jobs: {gpus}; the node still accepts no jobs, for another reason",
                        gpus,
                        names
                    ),
                });
                self.resume(now, is_ours);
                self.decide(now);
            }
            Err(why) => {
                let next = now.ms + retry;
                let retry = (retry * 2).min(RETRY_MAX);
                self.stage = Stage::Draining { since: now.ms, is_ours: Some(is_ours), next, retry };
                self.warn(message!(
                    "gpu-count-not-changed",
                    "could not change the node's GPU count: {why}; the node remains drained; retrying",
                    why
                ));
            }
        }
    }

    /// Lists GPUs for messages: `GPU 3`, `GPU 3 and GPU 5`.
    pub(super) fn names(&self, keys: &BTreeSet<Key>) -> String {
        let names = keys.iter().filter_map(|key| Some(format!("GPU {}", self.gpus.get(key)?.identity.index)));
        names.collect::<Vec<_>>().join(" and ")
    }

    /// The node's drain reason in Slurm.
    fn reason_of_loss(&self, target: &BTreeSet<Key>) -> String {
        let out = self.left_out();
        let each = target.difference(&out).chain(target.intersection(&out));
        let gpu = |key: &Key| {
            let gpu = self.gpus.get(key)?;
            let what = self.left_out_gpu(key)?.reason;
            Some(format!("{}: {what}", gpu.identity))
        };
        each.filter_map(gpu).collect::<Vec<_>>().join(", ")
    }

    fn reason_of_return(&self, target: &BTreeSet<Key>) -> String {
        let back = self.left_out().difference(target).cloned().collect();
        format!("{} recovered; will be offered {}", self.names(&back), self.recount_time())
    }

    /// When the GPU count can change, as text.
    const fn recount_time(&self) -> &'static str {
        match self.recount {
            Recount::WithoutGpuJobs => "once no job has a GPU",
            Recount::WithoutJobs => "once no job is on the node",
            Recount::Never => "at the next start of this container",
        }
    }

    /// The GPU with the reason for its exclusion; `None` for a GPU that is only awaited.
    fn left_out_gpu(&self, key: &Key) -> Option<LeftOutGpu> {
        let gpu = self.gpus.get(key)?;
        let kinds = gpu.excluding_faults();
        let released = || "released for work on the host (slurminit gpu release)".to_owned();
        let released = self.is_released(key).then(released);
        let words: Vec<String> = kinds.into_iter().map(|kind| kind.describe().0).chain(released).collect();
        (!words.is_empty()).then(|| LeftOutGpu { gpu: gpu.identity.clone(), reason: words.join("; ") })
    }

    /// The stage of the node as text.
    pub(super) fn node_summary(&self) -> Option<String> {
        let (target, out) = (self.gpus_to_leave_out(), self.left_out());
        // If all faulty GPUs are excluded already, the drain serves to offer recovered GPUs again.
        let purpose = || match target.is_subset(&out) {
            true => format!("to offer {} again", self.names(&out.difference(&target).cloned().collect())),
            false => format!("because of {}", self.names(&target)),
        };
        let holders = || {
            let mut jobs: Vec<u64> = self.gpus.values().flat_map(|gpu| &gpu.jobs).map(|job| job.job).collect();
            jobs.sort_unstable();
            jobs.dedup();
            jobs.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
        };
        match &self.stage {
            Stage::Open { back: Some(_) } => {
                let back = out.difference(&target).cloned().collect();
                let jobs = Some(holders()).filter(|jobs| !jobs.is_empty());
                let jobs = jobs.map(|jobs| format!(" (jobs: {jobs})")).unwrap_or_default();
                Some(format!("{} recovered; will be offered {}{jobs}", self.names(&back), self.recount_time()))
            }
            Stage::Open { back: None } if out.is_empty() => None,
            Stage::Open { back: None } => Some(format!("{} excluded", self.names(&out))),
            // No GPU has to be excluded or offered again: the next step resumes the node.
            Stage::Draining { .. } if target == out => Some("resuming".to_owned()),
            Stage::Draining { .. } if self.recount == Recount::Never => {
                Some(format!("drained {}; restart this container to use the working GPUs", purpose()))
            }
            Stage::Draining { .. } if self.recount == Recount::WithoutJobs => {
                Some(format!("drained {}, until all jobs on the node have ended", purpose()))
            }
            Stage::Draining { .. } => Some(match holders().as_str() {
                "" => format!("drained {}", purpose()),
                jobs => format!("drained {}, until all GPU jobs on the node have ended: {jobs}", purpose()),
            }),
            Stage::Reloading { .. } => Some("updating its GPU count".to_owned()),
        }
    }

    pub(super) fn query_jobs(&mut self) {
        if !std::mem::replace(&mut self.has_pending_query, true) {
            self.actions.push(Action::QueryJobs);
        }
    }
}
