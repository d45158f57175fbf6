//! One GPU: its last sample and its faults.

use std::collections::{BTreeMap, BTreeSet};

use super::Clock;
use crate::fault::{FaultKind, Fix, Policy};
use crate::report::{Count, GpuReport, OpenFault};
use crate::sample::{GpuSample, Identity};
use model::inventory::{Condition, Readings, Slowdown};
use model::queued_job::OwnedJob;

/// The minimum number of consecutive samples without a fault before the fault is cleared.
const GOOD_SAMPLES: u32 = 2;
/// Memory in MiB that the driver and a display may use without a job.
const IDLE_MEMORY_MIB: u64 = 1024;
/// How many consecutive queries must find no job on a GPU in use before its memory counts as a leftover. During a single
/// query, a job may be starting or ending.
const UNOWNED_QUERIES: u32 = 2;
/// How long after an XID a recovery action of "none" is ignored, in ms: the driver may update the action late.
const XID_CLEAR_DELAY: u64 = 60_000;
/// The time without an error after which a GPU is offered again if its driver reports no recovery actions (releases before 570), in
/// ms: doubles with each further XID of the same number up to the maximum.
const XID_CLEAR_DELAY_INITIAL: u64 = 600_000;
const XID_CLEAR_DELAY_MAX: u64 = 6 * 3_600_000;
/// The timeout of a reset, in ms. A reset takes long, because all GPUs connected by XGMI are reset together.
const RESET_TIMEOUT: u64 = 30_000;

#[derive(Debug, Default)]
pub(super) struct Gpu {
    pub(super) identity: Identity,
    condition: Condition,
    readings: Readings,
    open: BTreeMap<FaultKind, FaultState>,
    counts: BTreeMap<FaultKind, Count>,
    /// Slurm's indices of the GPU or its MIG instances; empty if the GPU is unavailable to jobs.
    pub(super) offered: Vec<usize>,
    pub(super) jobs: Vec<OwnedJob>,
    since: u64,
    /// The number of consecutive queries without a job while the GPU was in use.
    unowned_queries: u32,
    /// Whether the end of the GPU's reset may have been missed.
    may_have_missed_reset_end: bool,
    /// Whether the GPU has responded at `counts_from` or later.
    pub(super) has_answered: bool,
    pub(super) counts_from: u64,
    /// The counts that are no fault, from the first sample since the start or from the last repair.
    baseline: Option<Baseline>,
    /// Whether the GPU has been reset or repaired.
    is_repaired: bool,
}

/// Counts above which there is a fault.
#[derive(Clone, Copy, Debug)]
struct Baseline {
    /// The number of NVLinks that were down: these are assumed not to be wired.
    links_down: Option<u32>,
    /// The uncorrectable errors that NVIDIA's driver had counted over the GPU's lifetime.
    errors: Option<u64>,
    /// The uncorrectable errors that AMD's driver had counted when the GPU was repaired; 0 if it was not repaired.
    ras_errors: Option<u64>,
}

#[derive(Clone, Debug)]
struct FaultState {
    policy: Policy,
    since: u64,
    /// When the fault was last seen in a sample or an event, in ms.
    last_seen_ms: u64,
    /// The number of consecutive samples without the fault.
    good_samples: u32,
}

impl Gpu {
    pub(super) fn new(identity: Identity, now: Clock) -> Self {
        Self { identity, since: now.unix, ..Self::default() }
    }

    /// Restores the state from an earlier agent's report.
    pub(super) fn restored(report: &GpuReport) -> Self {
        let state = |fault: &OpenFault| FaultState {
            policy: fault.policy,
            since: fault.since,
            last_seen_ms: 0,
            good_samples: 0,
        };
        let open = report.faults.iter().map(|fault| (fault.kind, state(fault)));
        Self {
            identity: report.identity.clone(),
            open: open.collect(),
            counts: report.counts.clone(),
            since: report.since,
            is_repaired: report.is_repaired,
            ..Self::default()
        }
    }

    /// Applies a sample; returns the new and the cleared faults.
    pub(super) fn apply_sample(
        &mut self,
        now: Clock,
        sample: GpuSample,
        policy: impl Fn(FaultKind) -> Policy,
    ) -> (Vec<FaultKind>, Vec<FaultKind>) {
        let kinds = match sample.trouble {
            // If values are missing, the other faults remain.
            Some(trouble) => BTreeSet::from([trouble]),
            None => self.sampled_faults(&sample),
        };
        let has_values = sample.trouble.is_none();
        if has_values {
            (self.condition, self.readings) = (sample.condition, sample.readings);
            self.has_answered |= now.ms >= self.counts_from;
        }
        if let Some(action) = kinds.iter().find(|kind| matches!(kind, FaultKind::RecoveryAction(_))) {
            // A new recovery action replaces the previous one.
            self.open.retain(|kind, _| !matches!(kind, FaultKind::RecoveryAction(_)) || kind == action);
        }
        let new: Vec<FaultKind> =
            kinds.iter().copied().filter(|kind| self.open_fault(now, *kind, policy(*kind))).collect();
        let mut cleared = Vec::new();
        if has_values {
            let missing = self.open.keys().copied().filter(|kind| !kinds.contains(kind)).collect::<Vec<_>>();
            cleared.extend(missing.into_iter().filter(|kind| self.try_clear(now, *kind)));
            // A lost GPU that responds again, or a GPU that no longer needs a recovery action, is assumed to have been reset. The driver's error
            // counters survive a reset.
            let was_lost = cleared.contains(&FaultKind::Lost);
            if was_lost || cleared.iter().any(|kind| matches!(kind, FaultKind::RecoveryAction(_))) {
                self.accept_errors();
                let ends = |kind: &FaultKind| match kind {
                    FaultKind::EccUncorrected => true,
                    kind => was_lost && (is_reset(*kind) || matches!(kind, FaultKind::Xid(_))),
                };
                cleared.extend(
                    self.open.keys().copied().filter(ends).filter(|kind| !cleared.contains(kind)).collect::<Vec<_>>(),
                );
            }
            self.open.retain(|kind, _| !cleared.contains(kind));
        }
        (new, cleared)
    }

    /// Clears all faults after a fix by the administrator: only later samples and events can report a fault.
    pub(super) fn forget_faults(&mut self) {
        self.open.clear();
        (self.has_answered, self.baseline, self.is_repaired) = (false, None, true);
    }

    /// After a reset: no longer counts the errors up to the last sample as a fault.
    const fn accept_errors(&mut self) {
        self.is_repaired = true;
        if let Some(baseline) = &mut self.baseline {
            (baseline.errors, baseline.ras_errors) = (self.readings.ecc_uncorrected, self.readings.ras_uncorrected);
        }
    }

    /// Counts an error that the driver reported as an event. If its policy is to drain, it also becomes a fault of the GPU.
    pub(super) fn add_event(&mut self, now: Clock, kind: FaultKind, policy: Policy) {
        self.count(now, kind);
        if policy == Policy::Drain {
            let open = FaultState { policy, since: now.unix, last_seen_ms: now.ms, good_samples: 0 };
            let known = self.open.entry(kind).or_insert(open);
            (known.last_seen_ms, known.good_samples) = (now.ms, 0);
        }
    }

    /// Records that the driver started a reset. Returns false if a reset is already recorded.
    pub(super) fn begin_reset(&mut self, now: Clock, policy: Policy) -> bool {
        self.may_have_missed_reset_end = false;
        self.open_fault(now, FaultKind::Reset, policy)
    }

    /// Records that the driver has finished a reset. Returns whether the start of the reset was recorded.
    pub(super) fn end_reset(&mut self) -> bool {
        let before = self.open.len();
        self.open.retain(|kind, _| !is_reset(*kind));
        let has_ended = self.open.len() < before;
        if has_ended {
            // The next sample still contains the errors that caused the reset.
            (self.baseline, self.is_repaired) = (None, true);
            self.open.remove(&FaultKind::EccUncorrected);
        }
        has_ended
    }

    /// The time at which the GPU's reset times out, in ms.
    pub(super) fn reset_deadline(&self) -> Option<u64> {
        let reset = self.open.get(&FaultKind::Reset)?;
        (!self.open.contains_key(&FaultKind::ResetUnfinished)).then_some(reset.last_seen_ms + RESET_TIMEOUT)
    }

    /// Applies a restart of the event watcher, which may have missed the end of a reset.
    pub(super) fn on_watcher_restart(&mut self) {
        let resets = self.open.iter_mut().filter(|(kind, _)| is_reset(**kind));
        for (_, open) in resets {
            self.may_have_missed_reset_end = true;
            open.good_samples = 0;
        }
    }

    fn count(&mut self, now: Clock, kind: FaultKind) {
        let count = self.counts.entry(kind).or_default();
        (count.count, count.last) = (count.count.saturating_add(1), now.unix);
    }

    /// Adds a fault, or records its recurrence; returns whether the fault is new.
    fn open_fault(&mut self, now: Clock, kind: FaultKind, policy: Policy) -> bool {
        if let Some(open) = self.open.get_mut(&kind) {
            (open.last_seen_ms, open.good_samples) = (now.ms, 0);
            return false;
        }
        self.count(now, kind);
        self.open.insert(kind, FaultState { policy, since: now.unix, last_seen_ms: now.ms, good_samples: 0 });
        true
    }

    /// Counts a sample without the fault; returns whether the fault is cleared.
    fn try_clear(&mut self, now: Clock, kind: FaultKind) -> bool {
        let delay = self.xid_clear_delay(kind);
        // AMD's power management processor does not respond during a reset or after a failed reset.
        let is_responding = self.condition.temperature.is_some() || self.condition.utilization.is_some();
        let Some(open) = self.open.get_mut(&kind) else { return false };
        open.good_samples += 1;
        let can_end = match kind {
            FaultKind::Xid(_) => delay.is_some_and(|delay| now.ms.saturating_sub(open.last_seen_ms) >= delay),
            // The driver reports the end of a reset. This fault is cleared here only if that report may have been missed.
            FaultKind::Reset | FaultKind::ResetUnfinished => self.may_have_missed_reset_end && is_responding,
            _ => true,
        };
        open.good_samples >= GOOD_SAMPLES && can_end
    }

    /// How long the fault of an XID lasts if the XID does not recur, in ms; `None` while the driver requires a fix.
    fn xid_clear_delay(&self, kind: FaultKind) -> Option<u64> {
        match self.readings.recovery_action {
            Some(0) => Some(XID_CLEAR_DELAY),
            Some(_) => None,
            None if self.readings.remapped_rows.is_some_and(|rows| rows.is_pending) => None,
            None => {
                let repetitions = self.counts.get(&kind).map_or(0, |count| count.count.saturating_sub(1)).min(6);
                Some((XID_CLEAR_DELAY_INITIAL << repetitions).min(XID_CLEAR_DELAY_MAX))
            }
        }
    }

    /// The message about when a GPU with an XID is offered again; `None` for any other fault, before the first sample, and if the driver reports
    /// recovery actions or a pending row remapping.
    pub(super) fn return_notice(&self, kind: FaultKind) -> Option<String> {
        let is_unreported =
            matches!(kind, FaultKind::Xid(_)) && self.baseline.is_some() && self.readings.recovery_action.is_none();
        let delay = self.xid_clear_delay(kind).filter(|_| is_unreported)?;
        Some(format!(
            "this driver does not report whether a GPU has recovered: the GPU is available again after {} min without an error",
            delay / 60_000
        ))
    }

    /// The faults in a sample.
    fn sampled_faults(&mut self, sample: &GpuSample) -> BTreeSet<FaultKind> {
        let (condition, readings) = (&sample.condition, &sample.readings);
        let (errors, ras_errors) = (readings.ecc_uncorrected, readings.ras_uncorrected);
        // Unless the GPU was repaired, all errors since AMD's driver was loaded are a fault.
        let first_ras_errors = if self.is_repaired { ras_errors } else { Some(0) };
        let baseline = *self.baseline.get_or_insert(Baseline {
            links_down: readings.nvlinks_down,
            errors,
            ras_errors: first_ras_errors,
        });
        let mut kinds = BTreeSet::new();
        let mut add = |kind, is_present: bool| {
            if is_present {
                kinds.insert(kind);
            }
        };
        let slowed = |slowdown: Slowdown| condition.slowdowns.iter().flatten().any(|known| *known == slowdown);
        if let Some(action) = readings.recovery_action.filter(|action| *action != 0) {
            add(FaultKind::RecoveryAction(action), true);
        }
        let is_used = condition.memory_mib.is_some_and(|(used, _)| used > IDLE_MEMORY_MIB);
        add(FaultKind::Leftover, is_used && self.unowned_queries >= UNOWNED_QUERIES);
        add(FaultKind::RowRemapFailed, readings.remapped_rows.is_some_and(|rows| rows.has_failed));
        add(FaultKind::Heat, slowed(Slowdown::Heat));
        add(FaultKind::PowerBrake, slowed(Slowdown::PowerBrake));
        // Links that were down in the first sample are assumed not to be wired. A counter that has decreased was reset, which is no fault.
        add(FaultKind::NvlinkDown, has_increased(readings.nvlinks_down, baseline.links_down));
        let has_errors = has_increased(errors, baseline.errors) || has_increased(ras_errors, baseline.ras_errors);
        add(FaultKind::EccUncorrected, has_errors);
        kinds
    }

    /// The fix for a fault. If the fix is a reset and the driver reports a recovery action, that action's fix replaces it: the driver may
    /// require a reboot.
    pub(super) fn fix(&self, kind: FaultKind) -> String {
        let own = kind.describe().1;
        let action = self.readings.recovery_action.filter(|action| *action != 0 && own == Fix::Reset);
        action.map_or(own, |action| FaultKind::RecoveryAction(action).describe().1).text(&self.identity)
    }

    pub(super) fn is_open(&self, kind: FaultKind) -> bool {
        self.open.contains_key(&kind)
    }

    /// Whether the GPU must be excluded from jobs.
    pub(super) fn is_faulty(&self) -> bool {
        self.open.values().any(|open| open.policy == Policy::Drain)
    }

    /// The faults that exclude the GPU from jobs.
    pub(super) fn excluding_faults(&self) -> Vec<FaultKind> {
        self.open.iter().filter(|(_, open)| open.policy == Policy::Drain).map(|(kind, _)| *kind).collect()
    }

    /// Whether more memory is in use than the driver itself needs.
    pub(super) fn is_in_use(&self) -> bool {
        self.condition.memory_mib.is_some_and(|(used, _)| used > IDLE_MEMORY_MIB)
    }

    /// The use of the GPU: `20480 MiB, PID 4711, 4712`.
    pub(super) fn usage(&self) -> String {
        let used = self.condition.memory_mib.map(|(used, _)| format!("{used} MiB")).unwrap_or_default();
        let pids = self.condition.processes.iter().flatten().map(|process| process.pid.to_string()).collect::<Vec<_>>();
        if pids.is_empty() { used } else { format!("{used}, PID {}", pids.join(", ")) }
    }

    pub(super) fn set_jobs(&mut self, now: Clock, jobs: Vec<OwnedJob>) {
        let is_unowned = jobs.is_empty() && self.is_in_use() && !self.offered.is_empty();
        self.unowned_queries = if is_unowned { self.unowned_queries.saturating_add(1) } else { 0 };
        if jobs.is_empty() != self.jobs.is_empty() {
            self.since = now.unix;
        }
        self.jobs = jobs;
    }

    pub(super) fn report(&self, is_out: bool) -> GpuReport {
        let fault = |(kind, open): (&FaultKind, &FaultState)| {
            let (what, fix) = (kind.describe().0, self.fix(*kind));
            OpenFault { kind: *kind, policy: open.policy, since: open.since, what, fix }
        };
        GpuReport {
            identity: self.identity.clone(),
            offered: self.offered.clone(),
            jobs: self.jobs.clone(),
            since: self.since,
            condition: self.condition.clone(),
            readings: self.readings.clone(),
            last_hour: Vec::new(),
            faults: self.open.iter().filter(|(_, open)| open.policy != Policy::Ignore).map(fault).collect(),
            counts: self.counts.clone(),
            is_repaired: self.is_repaired && !self.is_open(FaultKind::EccUncorrected),
            is_out,
            release: None,
        }
    }
}

const fn is_reset(kind: FaultKind) -> bool {
    matches!(kind, FaultKind::Reset | FaultKind::ResetUnfinished)
}

fn has_increased<T: PartialOrd>(now: Option<T>, first: Option<T>) -> bool {
    matches!((now, first), (Some(now), Some(first)) if now > first)
}
