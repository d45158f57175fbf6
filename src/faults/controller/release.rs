//! GPUs that an administrator releases for work on the host, and returns.
//!
//! NVIDIA's tools refuse to reset a GPU, or to change its MIG mode, while any process has it open. So an excluded NVIDIA GPU is not kept open: it is
//! opened only for an occasional check, and not at all while it is released. The tools of the other vendors accept open GPUs, so their GPUs stay
//! open.

use std::collections::BTreeSet;

use super::{Gpu, HealthController, Identity, Key, Vendor};
use crate::report::Release;

impl HealthController {
    /// Sets the released GPUs. A returned GPU must respond before it is offered to jobs; its earlier faults are cleared.
    pub fn set_released(&mut self, released: &[Identity]) {
        let released: BTreeSet<Key> = released.iter().map(|gpu| self.key_of(gpu)).collect();
        for key in self.released.difference(&released) {
            let Some(gpu) = self.gpus.get_mut(key) else { continue };
            gpu.forget_faults();
            self.returning.insert(key.clone());
        }
        self.returning.retain(|key| !released.contains(key));
        self.released = released;
    }

    /// The GPUs of a vendor whose device files must be closed.
    pub fn gpus_to_close(&self, vendor: Vendor) -> Vec<Identity> {
        let is_unused = |key: &Key, gpu: &Gpu| self.released.contains(key) && gpu.offered.is_empty();
        let all = self.gpus.iter().filter(|(_, gpu)| gpu.identity.vendor == vendor);
        let closed = all.filter(|(key, gpu)| self.applied.contains(*key) || is_unused(key, gpu));
        closed.map(|(_, gpu)| gpu.identity.clone()).collect()
    }

    /// The closed GPUs that are opened periodically for a check.
    pub fn gpus_to_check(&self, vendor: Vendor) -> Vec<Identity> {
        let mut all = self.gpus_to_close(vendor);
        all.retain(|gpu| !self.released.contains(&gpu.key()));
        all
    }

    /// Whether the GPU was returned and must be checked at once.
    pub fn is_returning(&self, key: &Key) -> bool {
        self.returning.contains(key)
    }

    /// Sets the GPUs that no process of slurminit has open.
    pub fn set_closed(&mut self, closed: BTreeSet<Key>) {
        self.closed = closed;
    }

    /// Whether the GPU is released or not yet checked after its return, so that it must not be offered to jobs.
    pub(super) fn is_released(&self, key: &Key) -> bool {
        self.released.contains(key) || self.returning.contains(key)
    }

    pub(super) fn release_of(&self, key: &Key) -> Option<Release> {
        if self.returning.contains(key) {
            return Some(Release::Returning);
        }
        let is_done = self.gpus.get(key).is_some_and(|gpu| {
            let needs_closed_gpu = gpu.identity.vendor.traits().fix.needs_closed_gpu;
            gpu.offered.is_empty() && (self.closed.contains(key) || !needs_closed_gpu)
        });
        self.released.contains(key).then_some(if is_done { Release::Done } else { Release::Pending })
    }
}
