//! GPUs that jobs cannot get without a fault of theirs: those that the driver had not initialised when the configuration was made.

use std::collections::BTreeSet;

use super::{Clock, Gpu, HealthController, Identity, Key};
use crate::prepared::AwaitedGpu;

/// The time after a reload that did not wait for a GPU either before the next one, in ms.
const AWAIT_AGAIN: u64 = 60_000;

impl HealthController {
    /// Sets the GPUs that the last start or reload did not wait for.
    pub fn await_gpus(&mut self, awaited: Vec<AwaitedGpu>) {
        self.awaited = awaited;
    }

    /// The driver initialises a GPU.
    pub fn opening(&mut self, now: Clock, identity: Identity) {
        let is_known = self.gpus.values().any(|gpu| identity.is_earlier_name_of(&gpu.identity));
        if !is_known {
            let new = || Gpu::new(identity.clone(), now);
            let gpu = self.gpus.entry(identity.key()).or_insert_with(new);
            gpu.offered = gpu.identity.indices(&self.offered);
        }
    }

    /// The name of a GPU for messages, by what is known of it before it answers.
    pub fn name_of(&self, identity: &Identity) -> String {
        let known = self.gpus.iter().find(|(_, gpu)| identity.is_earlier_name_of(&gpu.identity));
        known.map_or_else(|| self.name(&identity.key()), |(key, _)| self.name(key))
    }

    /// The key of a GPU that is known by this place.
    pub fn key_of(&self, identity: &Identity) -> Key {
        let known = self.gpus.iter().find(|(_, gpu)| identity.is_earlier_name_of(&gpu.identity));
        known.map_or_else(|| identity.key(), |(key, _)| key.clone())
    }

    /// Gives a GPU that was known by its place alone the name that the driver tells.
    pub(super) fn adopt(&mut self, identity: &Identity) {
        let key = identity.key();
        if self.gpus.contains_key(&key) {
            return;
        }
        let is_it = |(_, gpu): &(&Key, &Gpu)| gpu.identity.is_earlier_name_of(identity);
        let Some(former) = self.gpus.iter().find(is_it).map(|(key, _)| key.clone()) else { return };
        self.gpus.remove(&former).into_iter().for_each(|gpu| drop(self.gpus.insert(key.clone(), gpu)));
        for keys in [&mut self.looked, &mut self.applied] {
            if keys.remove(&former) {
                keys.insert(key.clone());
            }
        }
    }

    /// The GPUs that the configuration excludes.
    pub(super) fn out(&self) -> BTreeSet<Key> {
        let awaited = self.gpus.iter().filter(|(_, gpu)| self.is_awaited(gpu)).map(|(key, _)| key.clone());
        awaited.chain(self.applied.iter().cloned()).collect()
    }

    /// Whether the GPU has not responded since the configuration was made without the GPU.
    pub(super) fn is_missing(&self, gpu: &Gpu) -> bool {
        self.is_awaited(gpu) && !gpu.has_answered
    }

    fn is_awaited(&self, gpu: &Gpu) -> bool {
        self.awaited.iter().any(|awaited| {
            let is_place = match (awaited.pci_address, gpu.identity.pci_address) {
                (Some(awaited), Some(own)) => awaited == own,
                _ => awaited.index == gpu.identity.index,
            };
            awaited.vendor == gpu.identity.vendor && is_place
        })
    }

    /// After a reload: a GPU that it did not wait for either is tried again later.
    pub(super) fn rest_awaited(&mut self, now: Clock) {
        let still: Vec<Key> =
            self.gpus.iter().filter(|(_, gpu)| self.is_awaited(gpu)).map(|(key, _)| key.clone()).collect();
        for key in still {
            let Some(gpu) = self.gpus.get_mut(&key) else { continue };
            (gpu.has_answered, gpu.counts_from) = (false, now.ms + AWAIT_AGAIN);
        }
    }
}
