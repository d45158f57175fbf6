//! Awaited GPUs: the driver had not initialized them when the configuration was written, so they are not available to jobs yet.

use std::collections::BTreeSet;

use super::{Clock, Gpu, HealthController, Identity, Key};

/// The delay, in ms, before a reload is retried because the last one did not include an awaited GPU.
const AWAIT_RETRY: u64 = 60_000;

impl HealthController {
    /// Sets the awaited GPUs, as of the last start or reload.
    pub fn set_awaited(&mut self, awaited: Vec<Identity>) {
        self.awaited = awaited;
    }

    /// Adds a GPU that the driver is initializing.
    pub fn on_gpu_opening(&mut self, now: Clock, identity: Identity) {
        let is_known = self.gpus.values().any(|gpu| identity.is_same_gpu(&gpu.identity));
        if !is_known {
            let new = || Gpu::new(identity.clone(), now);
            let gpu = self.gpus.entry(identity.key()).or_insert_with(new);
            gpu.offered = super::indices(&gpu.identity, &self.offered);
        }
    }

    /// The name of a GPU for messages, even before its first sample.
    pub fn name_of(&self, identity: &Identity) -> String {
        self.name(&self.key_of(identity))
    }

    /// The key of a GPU. Before its first sample, it is known only by its PCI address or index.
    pub fn key_of(&self, identity: &Identity) -> Key {
        let known = self.gpus.iter().find(|(_, gpu)| identity.is_same_gpu(&gpu.identity));
        known.map_or_else(|| identity.key(), |(key, _)| key.clone())
    }

    /// Replaces the key of a GPU that was known only by its PCI address or index with the key from its UUID.
    pub(super) fn adopt(&mut self, identity: &Identity) {
        let key = identity.key();
        if self.gpus.contains_key(&key) {
            return;
        }
        let is_same_gpu = |(_, gpu): &(&Key, &Gpu)| gpu.identity.uuid.is_none() && gpu.identity.is_same_gpu(identity);
        let Some(former) = self.gpus.iter().find(is_same_gpu).map(|(key, _)| key.clone()) else { return };
        self.gpus.remove(&former).into_iter().for_each(|gpu| drop(self.gpus.insert(key.clone(), gpu)));
        for keys in [&mut self.listed, &mut self.applied] {
            if keys.remove(&former) {
                keys.insert(key.clone());
            }
        }
    }

    /// The GPUs that the configuration excludes.
    pub(super) fn left_out(&self) -> BTreeSet<Key> {
        let awaited = self.gpus.iter().filter(|(_, gpu)| self.is_awaited(gpu)).map(|(key, _)| key.clone());
        awaited.chain(self.applied.iter().cloned()).collect()
    }

    /// Whether the GPU is awaited, and has not responded at [`Gpu::counts_from`] or later.
    pub(super) fn is_missing(&self, gpu: &Gpu) -> bool {
        self.is_awaited(gpu) && !gpu.has_answered
    }

    fn is_awaited(&self, gpu: &Gpu) -> bool {
        self.awaited.iter().any(|awaited| awaited.is_same_gpu(&gpu.identity))
    }

    /// Delays the next retry for the GPUs that are still awaited after a reload.
    pub(super) fn postpone_awaited(&mut self, now: Clock) {
        let awaited: Vec<Key> =
            self.gpus.iter().filter(|(_, gpu)| self.is_awaited(gpu)).map(|(key, _)| key.clone()).collect();
        for key in awaited {
            let Some(gpu) = self.gpus.get_mut(&key) else { continue };
            (gpu.has_answered, gpu.counts_from) = (false, now.ms + AWAIT_RETRY);
        }
    }
}
