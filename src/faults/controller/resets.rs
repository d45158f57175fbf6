//! GPU resets that the driver initiates and reports (AMD).
//!
//! A reset kills the processes on the GPU. Afterwards the GPU is usable again, unless the reset does not end.

use super::{Clock, FaultKind, GpuSample, HealthController, Key};
use crate::sample::Phase;
use model::inventory::Vendor;
use model::message;
use model::printable;

impl HealthController {
    /// Applies the start or the end of a reset.
    pub fn on_reset(&mut self, now: Clock, vendor: Vendor, key: &Key, phase: &Phase) {
        let policy = self.policies.policy(FaultKind::Reset);
        let Some(gpu) = self.gpus.get_mut(key).filter(|gpu| gpu.identity.vendor == vendor) else { return };
        match phase {
            Phase::Begins { cause } => {
                if gpu.begin_reset(now, policy) {
                    let cause = cause.as_deref().map(printable::line);
                    self.queue_report(now, key, FaultKind::Reset, policy, cause.as_deref());
                }
            }
            Phase::Ends => {
                if gpu.end_reset() {
                    let gpu = self.name(key);
                    self.info(message!("gpu-reset", "{gpu}: reset by the driver, usable again", gpu));
                }
            }
        }
    }

    /// Applies a restart of the event watcher, which may have missed the end of a reset.
    pub fn on_watcher_restart(&mut self, vendor: Vendor) {
        self.gpus.values_mut().filter(|gpu| gpu.identity.vendor == vendor).for_each(super::Gpu::on_watcher_restart);
    }

    pub(super) fn check_resets(&mut self, now: Clock) {
        let is_late = |gpu: &super::Gpu| gpu.reset_deadline().is_some_and(|due| now.ms >= due);
        let late: Vec<Key> = self.gpus.iter().filter(|(_, gpu)| is_late(gpu)).map(|(key, _)| key.clone()).collect();
        for key in late {
            let sample = GpuSample { trouble: Some(FaultKind::ResetUnfinished), ..GpuSample::default() };
            self.apply_sample(now, &key, sample, None);
        }
    }
}
