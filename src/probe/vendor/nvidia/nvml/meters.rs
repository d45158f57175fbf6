//! Measurements that need extra calls, and often a previous sample. MIG instances are always measured, whole GPUs only if metrics are enabled.

use nvml_wrapper::{Device, Nvml};

use super::gpm::{Gpm, Instance};
use super::pcie::Counters;
use super::{Answers, mig};
use faults::sample::Key;
use model::inventory::{InstanceReadings, PcieTraffic, Readings};

/// The previous samples, with which the next samples are compared.
pub(crate) struct Meters<'nvml> {
    gpm: Gpm<'nvml>,
    counters: Counters,
}

impl<'nvml> Meters<'nvml> {
    pub(crate) fn new(nvml: &'nvml Nvml) -> Self {
        Self { gpm: Gpm::new(nvml), counters: Counters::default() }
    }

    /// Adds the measurements of MIG instances.
    pub(crate) fn read_mig(&mut self, gpu: &Key, device: &Device<'nvml>, readings: &mut Readings) {
        readings.instances = mig::readings(device, &Answers::default());
        self.read_instances(gpu, device, &mut readings.instances);
    }

    /// Adds the measurements of a whole GPU.
    pub(crate) fn read(&mut self, gpu: &Key, device: &Device<'nvml>, readings: &mut Readings) {
        let whole = self.gpm.activity(gpu, None, device);
        readings.tensor_ppm = whole.tensor_ppm;
        // GPM measures PCI Express traffic on all GPUs that support GPM; the counters are usable only with 64 bits.
        let counted = self.counters.traffic(gpu, device);
        readings.pcie_traffic =
            PcieTraffic { sent: whole.pcie.sent.or(counted.sent), received: whole.pcie.received.or(counted.received) };
    }

    fn read_instances(&mut self, gpu: &Key, device: &Device<'nvml>, instances: &mut [InstanceReadings]) {
        let mut sampled: Vec<Instance> = Vec::new();
        for instance in instances {
            // A GPU instance is represented by its first compute instance.
            if sampled.iter().any(|other| other.number == instance.gpu_instance) {
                continue;
            }
            let name = Instance { number: instance.gpu_instance, uuid: instance.uuid.clone() };
            let activity = self.gpm.activity(gpu, Some(name.clone()), device);
            (instance.sm_ppm, instance.tensor_ppm) = (activity.sm_ppm, activity.tensor_ppm);
            sampled.push(name);
        }
        self.gpm.retain_instances(gpu, &sampled);
    }
}
