//! PCI Express throughput, from the driver's byte counters (driver 550 and newer).
//!
//! `nvmlDeviceGetPcieThroughput` would block for 20 ms per GPU and direction. Reading the counters does not block.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;

use faults::sample::Key;
use model::inventory::PcieTraffic;

/// `NVML_FI_DEV_PCIE_COUNT_TX_BYTES` and `..._RX_BYTES` of nvml.h.
const SENT: u32 = 197;
const RECEIVED: u32 = 198;

/// The counters of each GPU's last sample.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// `None` for a GPU whose driver has no counters.
    by_gpu: BTreeMap<Key, Option<CounterSample>>,
}

#[derive(Clone, Copy, Debug)]
struct CounterSample {
    at: Instant,
    bytes: [Option<u64>; 2],
}

impl Counters {
    /// The mean traffic since the previous sample, in bytes per second; empty at the first sample, after a failed call, and without usable counters
    /// (see [`rate`]).
    pub(super) fn traffic(&mut self, gpu: &Key, device: &Device<'_>) -> PcieTraffic {
        let previous = self.by_gpu.get(gpu).copied();
        if matches!(previous, Some(None)) {
            return PcieTraffic::default();
        }
        let bytes = match device.field_values_for(&[SENT, RECEIVED].map(FieldId)) {
            Ok(values) => values.into_iter().map(|value| number(value.ok()?.value.ok()?)).collect(),
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => Vec::new(),
            Err(_) => {
                self.by_gpu.remove(gpu);
                return PcieTraffic::default();
            }
        };
        let now = CounterSample { at: Instant::now(), bytes: [0, 1].map(|field| bytes.get(field).copied().flatten()) };
        // A driver without counters is not queried again.
        self.by_gpu.insert(gpu.clone(), Some(now).filter(|now| now.bytes != [None; 2]));
        previous.flatten().map(|previous| previous.traffic(&now)).unwrap_or_default()
    }
}

impl CounterSample {
    fn traffic(&self, now: &Self) -> PcieTraffic {
        let [sent, received] = [0, 1].map(|direction| {
            let (previous, bytes) = self.bytes[direction].zip(now.bytes[direction])?;
            rate(previous, bytes, now.at.saturating_duration_since(self.at))
        });
        PcieTraffic { sent, received }
    }
}

pub(crate) fn number(value: SampleValue) -> Option<u64> {
    match value {
        SampleValue::U64(number) => Some(number).filter(|number| *number != u64::MAX),
        SampleValue::U32(number) => Some(number.into()).filter(|number| *number != u64::from(u32::MAX)),
        SampleValue::I64(number) => number.try_into().ok(),
        SampleValue::F64(_) => None,
    }
}

/// Bytes per second; `None` if the counter is not usable. The counters wrap (nvml.h), and on some GPUs they have 32 bits, which a fast link fills
/// ten times per second. Such wraps cannot be detected, so a counter is used only once its value exceeds 32 bits.
fn rate(previous: u64, now: u64, elapsed: Duration) -> Option<u64> {
    let bytes = now.checked_sub(previous).filter(|_| previous > u64::from(u32::MAX))?;
    let rate = u128::from(bytes) * 1_000_000 / Some(elapsed.as_micros()).filter(|elapsed| *elapsed > 0)?;
    u64::try_from(rate).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_requires_non_decreasing_64_bit_counter() {
        let start = 1 << 33;
        let rate_between = |previous, now| rate(previous, now, Duration::from_millis(500));
        assert_eq!((rate_between(start, start + 1000), rate_between(start, start)), (Some(2000), Some(0)));
        for (previous, now) in [(start, start - 1), (start, 0), (1000, 2000), (u32::MAX.into(), start)] {
            assert_eq!(rate_between(previous, now), None, "{previous} {now}");
        }
        assert_eq!(rate(start, start + 1, Duration::ZERO), None);
    }

    #[test]
    fn traffic_requires_both_samples_of_a_direction() {
        let (at, start) = (Instant::now(), 1_u64 << 33);
        let sample = |seconds, bytes| CounterSample { at: at + Duration::from_secs(seconds), bytes };
        let first = sample(0, [Some(start), Some(start)]);
        let traffic = first.traffic(&sample(2, [Some(start + 4000), Some(start + 20)]));
        assert_eq!((traffic.sent, traffic.received), (Some(2000), Some(10)));
        let traffic = first.traffic(&sample(2, [None, Some(start)]));
        assert_eq!((traffic.sent, traffic.received), (None, Some(0)));
    }
}
