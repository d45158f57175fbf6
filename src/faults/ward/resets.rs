//! Resets that a driver makes of itself, and tells of: AMD's.
//!
//! A reset ends what runs on the GPU, and then the GPU is as good as before. One that does not end leaves a GPU that nobody can use.

use super::{Act, Clock, FaultKind, Key, Seen, Ward};
use crate::look::Phase;
use model::inventory::Vendor;
use model::printable;

impl Ward {
    /// A reset begins or ends.
    pub fn reset(&mut self, now: Clock, vendor: Vendor, key: &Key, phase: &Phase) {
        let policy = self.policies.policy(FaultKind::Reset);
        let Some(gpu) = self.gpus.get_mut(key).filter(|gpu| gpu.identity.vendor == vendor) else { return };
        match phase {
            Phase::Begins { cause } => {
                if gpu.reset_begins(now, policy) {
                    let cause = cause.as_deref().map(printable::line);
                    self.note(now, key, FaultKind::Reset, policy, cause.as_deref());
                }
            }
            Phase::Ends => {
                if gpu.reset_ends() {
                    let line = format!("{}: the driver has reset it, and it can be used again", self.name(key));
                    self.acts.push(Act::Say { is_good: true, line });
                }
            }
        }
    }

    /// Whoever hears the driver's events was started anew: the end of a reset may have passed meanwhile.
    pub fn hears_anew(&mut self, vendor: Vendor) {
        self.gpus.values_mut().filter(|gpu| gpu.identity.vendor == vendor).for_each(super::Gpu::hears_anew);
    }

    pub(super) fn check_resets(&mut self, now: Clock) {
        let is_late = |gpu: &super::Gpu| gpu.reset_is_due().is_some_and(|due| now.ms >= due);
        let late: Vec<Key> = self.gpus.iter().filter(|(_, gpu)| is_late(gpu)).map(|(key, _)| key.clone()).collect();
        for key in late {
            self.fault(now, &key, Seen { trouble: Some(FaultKind::ResetUnfinished), ..Seen::default() }, None);
        }
    }
}
