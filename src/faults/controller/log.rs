//! Reports of faults: the GPU, the jobs that used it, the cause, the fix.

use super::{Action, Clock, FaultKind, HealthController, Key, MAX_RECENT, Policy, Recount, ReportedFault};
use model::message;
use model::queued_job::OwnedJob;

/// The minimum interval between two reports of one fault of one GPU, in ms.
const REPEAT_INTERVAL: u64 = 60_000;

/// How long a report waits for Slurm's answer about the jobs on the GPU, in ms.
const JOBS_TIMEOUT: u64 = 400;

/// A fault that is reported once the jobs on the GPU are known, or at a deadline.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    key: Key,
    kind: FaultKind,
    policy: Policy,
    /// Details in addition to the kind.
    detail: Option<String>,
    /// When the fault is reported at the latest, in ms.
    due: u64,
    /// Whether the fault was reported less than [`REPEAT_INTERVAL`] ago, so that it is reported again only if it lasts.
    is_repeat: bool,
}

/// A fault that was reported before the jobs on the GPU were known.
#[derive(Clone, Debug)]
pub(super) struct WithoutJobs {
    key: Key,
    kind: FaultKind,
    at: u64,
    jobs: Vec<OwnedJob>,
}

impl HealthController {
    /// Queues a fault for reporting, if its policy is at least `Warn`. A fault that was reported recently is reported again later, if it lasts.
    pub(super) fn queue_report(
        &mut self,
        now: Clock,
        key: &Key,
        kind: FaultKind,
        policy: Policy,
        detail: Option<&str>,
    ) {
        if policy < Policy::Warn || self.pending.iter().any(|pending| pending.kind == kind && pending.key == *key) {
            return;
        }
        let last = self.last_logged.get(&(key.clone(), kind)).copied();
        let again = last.map(|last| last + REPEAT_INTERVAL).filter(|again| now.ms < *again);
        let pending = Pending {
            key: key.clone(),
            kind,
            policy,
            detail: detail.map(str::to_owned),
            due: again.unwrap_or(now.ms + JOBS_TIMEOUT),
            is_repeat: again.is_some(),
        };
        self.pending.push(pending);
        if again.is_none() {
            self.last_logged.insert((key.clone(), kind), now.ms);
            self.query_jobs();
        }
    }

    /// When the next report is due, in ms.
    pub(super) fn next_log(&self) -> Option<u64> {
        self.pending.iter().map(|pending| pending.due).min()
    }

    /// Logs the new faults. Their jobs are now known, or cannot be determined.
    pub(super) fn log_pending(&mut self, now: Clock) {
        let (repeats, new) = std::mem::take(&mut self.pending).into_iter().partition(|pending| pending.is_repeat);
        self.pending = repeats;
        self.log(now, new, true);
    }

    /// Logs the faults whose deadline has passed: those whose jobs are still unknown, and repeated faults that last.
    pub(super) fn log_due(&mut self, now: Clock) {
        let (due, later): (Vec<_>, _) =
            std::mem::take(&mut self.pending).into_iter().partition(|pending| now.ms >= pending.due);
        self.pending = later;
        let lasts = |one: &Pending| !one.is_repeat || self.gpus.get(&one.key).is_some_and(|gpu| gpu.is_open(one.kind));
        let due: Vec<Pending> = due.into_iter().filter(lasts).collect();
        for repeat in due.iter().filter(|one| one.is_repeat) {
            self.last_logged.insert((repeat.key.clone(), repeat.kind), now.ms);
        }
        self.log(now, due, false);
    }

    fn log(&mut self, now: Clock, all: Vec<Pending>, has_jobs: bool) {
        for pending in all {
            let Some(gpu) = self.gpus.get(&pending.key) else { continue };
            let jobs = gpu.jobs.clone();
            let (what, _) = pending.kind.describe();
            let what = pending.detail.map_or(what.clone(), |detail| format!("{what}: {detail}"));
            let end = match (pending.policy, self.recount, gpu.offered.is_empty()) {
                (Policy::Drain, _, true) => "; already unavailable to jobs",
                (Policy::Drain, Recount::WithoutGpuJobs, _) => {
                    "; draining the node until its GPU jobs have ended, then resuming it without this GPU"
                }
                (Policy::Drain, Recount::WithoutJobs, _) => {
                    "; draining the node until all jobs on it have ended, then resuming it without this GPU"
                }
                (Policy::Drain, Recount::Never, _) => "; draining the node",
                _ => "",
            };
            let returns = (pending.policy == Policy::Drain).then(|| gpu.return_notice(pending.kind)).flatten();
            let returns = returns.map(|returns| format!("; {returns}")).unwrap_or_default();
            let message = message!(
                "gpu-fault",
                "{gpu}: {fault}{jobs}{consequence}. Fix: {fix}",
                gpu = self.name(&pending.key),
                fault = what,
                jobs = job_suffix(&jobs),
                consequence = format!("{end}{returns}"),
                fix = gpu.fix(pending.kind)
            );
            let fault = ReportedFault {
                at: now.unix,
                gpu: gpu.identity.index,
                kind: pending.kind,
                policy: pending.policy,
                jobs: jobs.clone(),
                line: message.text.clone(),
            };
            self.recent.push_back(fault.clone());
            while self.recent.len() > MAX_RECENT {
                self.recent.pop_front();
            }
            if !has_jobs {
                self.without_jobs.push(WithoutJobs { key: pending.key, kind: pending.kind, at: now.unix, jobs });
            }
            self.warn(message);
            self.actions.push(Action::Notify(fault));
        }
    }

    /// Logs the jobs of faults that were reported before the jobs were known.
    pub(super) fn log_jobs(&mut self) {
        for fault in std::mem::take(&mut self.without_jobs) {
            let Some(gpu) = self.gpus.get(&fault.key).filter(|gpu| !gpu.jobs.is_empty() && gpu.jobs != fault.jobs)
            else {
                continue;
            };
            let (index, jobs) = (gpu.identity.index, gpu.jobs.clone());
            let message = message!(
                "gpu-fault-jobs",
                "{gpu}: {fault}{jobs}",
                gpu = self.name(&fault.key),
                fault = fault.kind.describe().0,
                jobs = job_suffix(&jobs)
            );
            let is_same_fault =
                |recent: &&mut ReportedFault| (recent.at, recent.gpu, recent.kind) == (fault.at, index, fault.kind);
            self.recent.iter_mut().filter(is_same_fault).for_each(|recent| recent.jobs = jobs.clone());
            self.warn(message);
        }
    }

    /// Logs the end of a fault, unless a repeated report of it is still queued; that report is then dropped.
    pub(super) fn log_cleared(&mut self, key: &Key, kind: FaultKind) {
        let before = self.pending.len();
        self.pending.retain(|pending| !(pending.is_repeat && pending.kind == kind && pending.key == *key));
        if self.pending.len() < before {
            return;
        }
        let (what, _) = kind.describe();
        let gpu = self.name(key);
        self.info(message!("gpu-fault-cleared", "{gpu}: cleared: {fault}", gpu, fault = what));
    }

    /// The GPU's name in messages: `GPU 3 (/dev/nvidia3, NVIDIA H200, GPU-fa4e..., 0000:13:00.0)`.
    pub(super) fn name(&self, key: &Key) -> String {
        let Some(gpu) = self.gpus.get(key) else { return format!("GPU {key}") };
        let identity = &gpu.identity;
        let address = identity.pci_address.map(|address| address.to_string());
        let parts: Vec<String> = [identity.file.clone(), identity.model.clone(), identity.uuid.clone(), address]
            .into_iter()
            .flatten()
            .collect();
        match parts.is_empty() {
            true => format!("GPU {}", identity.index),
            false => format!("GPU {} ({})", identity.index, parts.join(", ")),
        }
    }
}

/// Formats the jobs as the end of a message: `; used by job 17 of alice`; empty without jobs.
fn job_suffix(jobs: &[OwnedJob]) -> String {
    let each = jobs.iter().map(|job| format!("job {} of {}", job.job, job.user)).collect::<Vec<_>>();
    if each.is_empty() { String::new() } else { format!("; used by {}", each.join(", ")) }
}
