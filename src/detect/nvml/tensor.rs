//! How busy a GPU's tensor cores are, by NVML's GPM (GPU performance monitoring): Hopper and newer, driver 525 and newer.
//!
//! What GPM refuses is no fault of the GPU: there is no value then.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::{Device, GpmSample, Nvml};

use crate::gpu_health::look::Key;

/// The driver renews its counters each 100 ms (NVML's documentation, "GPM Functions"), so samples are no closer than that.
const APART: Duration = Duration::from_millis(100);

/// The last sample of each GPU, with which the next one is compared.
pub(in crate::detect) struct Tensors<'nvml> {
    nvml: &'nvml Nvml,
    of: BTreeMap<Key, Gpm<'nvml>>,
}

enum Gpm<'nvml> {
    /// The GPU has no GPM, or the driver.
    Missing,
    Sampled {
        sample: GpmSample<'nvml>,
        at: Instant,
        ppm: Option<u32>,
    },
}

impl<'nvml> Tensors<'nvml> {
    pub(in crate::detect) const fn new(nvml: &'nvml Nvml) -> Self {
        Self { nvml, of: BTreeMap::new() }
    }

    /// How much of the time since the last look they were busy, in parts per million. `None` at the first look.
    pub(in crate::detect) fn busy(&mut self, gpu: &Key, device: &Device<'nvml>) -> Option<u32> {
        let former = match self.of.remove(gpu) {
            Some(Gpm::Sampled { sample, at, ppm }) if at.elapsed() < APART => {
                self.of.insert(gpu.clone(), Gpm::Sampled { sample, at, ppm });
                return ppm;
            }
            Some(Gpm::Sampled { sample, .. }) => Some(sample),
            Some(Gpm::Missing) => return self.is_missing(gpu),
            None => match device.gpm_support() {
                Ok(true) => None,
                Ok(false) | Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => {
                    return self.is_missing(gpu);
                }
                Err(_) => return None,
            },
        };
        // If this fails, the next look begins anew.
        let sample = device.gpm_sample().ok()?;
        let ppm = former.and_then(|former| between(self.nvml, &former, &sample));
        self.of.insert(gpu.clone(), Gpm::Sampled { sample, at: Instant::now(), ppm });
        ppm
    }

    fn is_missing(&mut self, gpu: &Key) -> Option<u32> {
        self.of.insert(gpu.clone(), Gpm::Missing);
        None
    }
}

fn between<'nvml>(nvml: &'nvml Nvml, former: &GpmSample<'nvml>, now: &GpmSample<'nvml>) -> Option<u32> {
    let answers = gpm_metrics_get(nvml, former, now, &[GpmMetricId::AnyTensorUtil]).ok()?;
    ppm(answers.into_iter().next()?.ok()?.value)
}

/// NVML's percentage in parts per million.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 100 was checked")]
fn ppm(percent: f64) -> Option<u32> {
    (0.0..=100.0).contains(&percent).then(|| (percent * 10_000.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_one_from_0_to_100() {
        assert_eq!([0.0, 40.5, 100.0].map(ppm), [Some(0), Some(405_000), Some(1_000_000)]);
        assert_eq!([f64::NAN, -0.1, 100.1, f64::INFINITY].map(ppm), [None; 4]);
    }
}
