//! Reports of faults: the GPU, the jobs that used it, the cause, the repair.

use super::{Act, Clock, FaultKind, Key, Policy, RECENT, Recount, Told, Ward};
use crate::faults::policy;
use crate::queued_job::OwnedJob;

/// The minimum interval between two reports of one fault of one GPU, in ms.
const AGAIN: u64 = 60_000;

/// A fault that is reported once the jobs on the GPU are known.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) key: Key,
    pub(super) kind: FaultKind,
    pub(super) policy: Policy,
    /// Details in addition to the kind.
    pub(super) detail: Option<String>,
}

impl Ward {
    /// Queues a fault for reporting, unless it was reported recently.
    pub(super) fn note(&mut self, now: Clock, key: &Key, kind: FaultKind, policy: Policy, detail: Option<&str>) {
        if policy < Policy::Warn {
            return;
        }
        let last = self.last_told.insert((key.clone(), kind), now.ms);
        if last.is_some_and(|last| now.ms.saturating_sub(last) < AGAIN) {
            // The interval starts at the reported line.
            self.last_told.extend(last.map(|last| ((key.clone(), kind), last)));
            return;
        }
        self.pending.push(Pending { key: key.clone(), kind, policy, detail: detail.map(str::to_owned) });
        self.ask();
    }

    pub(super) fn tell_pending(&mut self, now: Clock) {
        for pending in std::mem::take(&mut self.pending) {
            let Some(gpu) = self.gpus.get(&pending.key) else { continue };
            let jobs = gpu.jobs.clone();
            let (what, repair) = policy::words(pending.kind);
            let what = pending.detail.map_or(what.clone(), |detail| format!("{what}: {detail}"));
            let end = match (pending.policy, self.recount, gpu.offered.is_empty()) {
                (Policy::Drain, _, true) => "; already unavailable to jobs",
                (Policy::Drain, Recount::WithoutGpuJobs, _) => {
                    "; draining the node until its GPU jobs have ended, then resuming it without this GPU"
                }
                (Policy::Drain, Recount::WithoutJobs, _) => {
                    "; draining the node until all of its jobs have ended, then resuming it without this GPU"
                }
                (Policy::Drain, Recount::Never, _) => "; draining the node",
                _ => "",
            };
            let line = format!("{}: {what}{}{end}. Repair: {repair}", self.name(&pending.key), whose(&jobs));
            let told = Told {
                at: now.unix,
                gpu: gpu.identity.index,
                kind: pending.kind,
                policy: pending.policy,
                jobs,
                line: line.clone(),
            };
            self.recent.push_back(told.clone());
            while self.recent.len() > RECENT {
                self.recent.pop_front();
            }
            self.acts.push(Act::Say { is_good: false, line });
            self.acts.push(Act::Notify(told));
        }
    }

    pub(super) fn say_over(&mut self, key: &Key, kind: FaultKind) {
        let (what, _) = policy::words(kind);
        self.last_told.remove(&(key.clone(), kind));
        self.acts.push(Act::Say { is_good: true, line: format!("{}: cleared: {what}", self.name(key)) });
    }

    /// `GPU 3 (NVIDIA H200, GPU-fa4e..., 0000:13:00.0)`.
    pub(super) fn name(&self, key: &Key) -> String {
        let Some(gpu) = self.gpus.get(key) else { return format!("GPU {key}") };
        let identity = &gpu.identity;
        let address = identity.pci_address.map(|address| address.to_string());
        let parts: Vec<String> =
            [identity.model.clone(), identity.uuid.clone(), address].into_iter().flatten().collect();
        match parts.is_empty() {
            true => format!("GPU {}", identity.index),
            false => format!("GPU {} ({})", identity.index, parts.join(", ")),
        }
    }
}

/// `, which job 17 of alice had`.
fn whose(jobs: &[OwnedJob]) -> String {
    let each = jobs.iter().map(|job| format!("job {} of {}", job.job, job.user)).collect::<Vec<_>>();
    if each.is_empty() { String::new() } else { format!("; {} had it", each.join(", ")) }
}
