//! Utilization and PCI Express traffic of a GPU or MIG instance between two samples, from NVML's GPM (GPU performance monitoring): Hopper and
//! newer, driver 525 and newer.
//!
//! A GPM error is not a fault of the GPU; the value is missing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::{Device, GpmSample, Nvml};

use faults::sample::Key;
use model::inventory::PcieTraffic;

/// The driver updates its counters every 100 ms (NVML's documentation, "GPM Functions"), so samples are taken no more often.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

const METRICS: [GpmMetricId; 4] =
    [GpmMetricId::SmUtil, GpmMetricId::AnyTensorUtil, GpmMetricId::PcieTxPerSec, GpmMetricId::PcieRxPerSec];

/// 1 TiB/s, in MiB/s. No PCI Express link is that fast.
const MAX_MIB: f64 = 1_048_576.0;

/// A GPU instance. The driver can give the number of a removed instance to a new one at once, so the UUID of a MIG device in it is part of the key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instance {
    pub(super) number: u32,
    pub(super) uuid: Option<String>,
}

/// A whole GPU, or one of its MIG instances.
type DeviceKey = (Key, Option<Instance>);

/// Means between two samples.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Activity {
    /// The share of time in which multiprocessors were busy, in parts per million.
    pub(super) sm_ppm: Option<u32>,
    /// The share of time in which tensor cores were busy, in parts per million.
    pub(super) tensor_ppm: Option<u32>,
    pub(super) pcie: PcieTraffic,
}

/// The last sample of each GPU and instance, for comparison with the next sample.
pub(super) struct Gpm<'nvml> {
    nvml: &'nvml Nvml,
    states: BTreeMap<DeviceKey, State<'nvml>>,
}

enum State<'nvml> {
    /// The GPU, the driver or the library does not support GPM.
    Unsupported,
    Sampled {
        sample: GpmSample<'nvml>,
        at: Instant,
        activity: Activity,
    },
}

impl<'nvml> Gpm<'nvml> {
    pub(super) const fn new(nvml: &'nvml Nvml) -> Self {
        Self { nvml, states: BTreeMap::new() }
    }

    /// The activity since the previous sample; less than [`MIN_INTERVAL`] after it, the last result again. Empty at the first sample, after a
    /// failure, and without support for GPM. `device` is the whole GPU, also for an instance.
    pub(super) fn activity(&mut self, gpu: &Key, instance: Option<Instance>, device: &Device<'nvml>) -> Activity {
        let number = instance.as_ref().map(|instance| instance.number);
        let key = (gpu.clone(), instance);
        let previous = match self.states.remove(&key) {
            Some(State::Sampled { sample, at, activity }) if at.elapsed() < MIN_INTERVAL => {
                self.states.insert(key, State::Sampled { sample, at, activity });
                return activity;
            }
            Some(State::Sampled { sample, .. }) => Some(sample),
            Some(State::Unsupported) => return self.mark_unsupported(key),
            None => match device.gpm_support() {
                Ok(true) => None,
                Ok(false) | Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => {
                    return self.mark_unsupported(key);
                }
                Err(_) => return Activity::default(),
            },
        };
        let result = number.map_or_else(|| device.gpm_sample(), |number| device.gpm_mig_sample(number));
        // After a failure, the next sample counts as a first sample.
        let Ok(sample) = result else { return Activity::default() };
        let activity = previous.map(|previous| activity_between(self.nvml, &previous, &sample)).unwrap_or_default();
        self.states.insert(key, State::Sampled { sample, at: Instant::now(), activity });
        activity
    }

    /// Frees the samples of removed instances of `gpu`.
    pub(super) fn retain_instances(&mut self, gpu: &Key, instances: &[Instance]) {
        self.states.retain(|(owner, instance), _| {
            owner != gpu || instance.as_ref().is_none_or(|instance| instances.contains(instance))
        });
    }

    fn mark_unsupported(&mut self, key: DeviceKey) -> Activity {
        self.states.insert(key, State::Unsupported);
        Activity::default()
    }
}

fn activity_between<'nvml>(nvml: &'nvml Nvml, previous: &GpmSample<'nvml>, now: &GpmSample<'nvml>) -> Activity {
    let Ok(answers) = gpm_metrics_get(nvml, previous, now, &METRICS) else { return Activity::default() };
    let values: Vec<Option<f64>> = answers.into_iter().map(|answer| answer.ok().map(|answer| answer.value)).collect();
    let [sm, tensor, sent, received] = values[..] else { return Activity::default() };
    Activity {
        sm_ppm: sm.and_then(ppm),
        tensor_ppm: tensor.and_then(ppm),
        pcie: PcieTraffic { sent: sent.and_then(bytes), received: received.and_then(bytes) },
    }
}

/// NVML's percentage in parts per million.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 100 was checked")]
fn ppm(percent: f64) -> Option<u32> {
    (0.0..=100.0).contains(&percent).then(|| (percent * 10_000.0).round() as u32)
}

/// NVML's MiB in bytes.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked")]
fn bytes(mib: f64) -> Option<u64> {
    (0.0..=MAX_MIB).contains(&mib).then(|| (mib * 1_048_576.0).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_percentage_outside_0_to_100() {
        assert_eq!([0.0, 40.5, 100.0].map(ppm), [Some(0), Some(405_000), Some(1_000_000)]);
        assert_eq!([f64::NAN, -0.1, 100.1, f64::INFINITY].map(ppm), [None; 4]);
    }

    #[test]
    fn converts_mebibytes_and_rejects_invalid_values() {
        assert_eq!([0.0, 1.5].map(bytes), [Some(0), Some(3 << 19)]);
        assert_eq!([f64::NAN, -1.0, 1e300].map(bytes), [None; 3]);
    }
}
