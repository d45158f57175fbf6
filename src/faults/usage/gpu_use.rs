//! The use of one GPU by one job: sums over time.

use serde::{Deserialize, Serialize};

use super::{Part, Sample};

/// Below this utilization, in percent, a GPU counts as idle.
const IDLE_PERCENT: u32 = 5;
/// The maximum plausible power draw, in mW. A faster rise of the energy counter is ignored.
const MAX_POWER_MW: u64 = 100_000_000;

/// How a job used a GPU, or a part of a GPU. Times are in ms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuUse {
    /// The GPU or MIG instance.
    #[serde(flatten)]
    pub part: Part,
    /// Whether the job has only a part of the GPU (shards, MPS). Then other jobs may have used the GPU, too, and the values include their use.
    pub is_shared: bool,
    /// The size of the job's part, in ppm of the GPU; `None` for a whole GPU or MIG instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_ppm: Option<u32>,
    /// The time that the samples cover.
    pub measured_ms: u64,
    /// The time that samples with a utilization cover.
    pub percent_ms: u64,
    /// The integral of the utilization: percent times ms.
    pub busy: u64,
    /// The highest utilization, in percent.
    pub peak_percent: u32,
    /// The time with a utilization below 5 %.
    pub idle_ms: u64,
    /// The time that samples with a memory value cover.
    pub memory_ms: u64,
    /// The integral of the memory in use: MiB times ms.
    pub memory: u64,
    /// The highest memory in use, in MiB.
    pub peak_memory_mib: u64,
    /// The energy in mJ; `None` without samples, or if the driver measures neither energy nor power, as for a MIG instance.
    pub energy_mj: Option<u64>,
    /// The time during which heat, or the machine's power supply, limited the clocks.
    pub throttled_ms: u64,
    /// The number of errors that the driver reported.
    pub errors: u64,
    /// The last sample that was added, or skipped because the job was suspended; `None` before the first sample and after the end of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<Sample>,
}

impl GpuUse {
    /// The job's share of a value of the GPU: the whole value, unless the job has only a part of the GPU.
    pub fn share_of(&self, value: u64) -> u64 {
        self.share_ppm
            .map_or(value, |ppm| value / 1_000_000 * u64::from(ppm) + value % 1_000_000 * u64::from(ppm) / 1_000_000)
    }

    /// The mean utilization in percent.
    #[expect(clippy::cast_precision_loss, reason = "a mean needs no more digits")]
    pub fn mean_percent(&self) -> Option<f64> {
        (self.percent_ms > 0).then(|| self.busy as f64 / self.percent_ms as f64)
    }

    /// The mean memory in use, in MiB.
    pub fn mean_memory_mib(&self) -> Option<u64> {
        self.memory.checked_div(self.memory_ms)
    }

    /// Adds the samples from `start` to `until` that are not included yet. A gap between samples counts for at most `longest`. Samples of a
    /// suspended job are skipped.
    pub(super) fn add<'a>(
        &mut self,
        samples: impl Iterator<Item = &'a Sample>,
        start: u64,
        until: u64,
        longest: u64,
        is_suspended: bool,
    ) {
        for sample in samples {
            let is_new = self.last.is_none_or(|last| sample.at > last.at) && (start..=until).contains(&sample.at);
            if is_new && is_suspended {
                self.last = Some(*sample);
            } else if is_new {
                let from = self.last.map_or(start, |last| last.at.max(start));
                self.count(sample, (sample.at - from).min(longest));
                self.last = Some(*sample);
            }
        }
    }

    /// Extends the last sample to the end of the job, by at most `longest`.
    pub(super) fn extend(&mut self, start: u64, end: u64, longest: u64) {
        let Some(last) = self.last.take() else { return };
        let rest = end.saturating_sub(last.at.max(start)).min(longest);
        // The increase of the energy counter is unknown.
        self.count(&Sample { energy_mj: None, errors: 0, ..last }, rest);
    }

    fn count(&mut self, sample: &Sample, ms: u64) {
        self.measured_ms += ms;
        if let Some(percent) = sample.percent {
            self.percent_ms += ms;
            self.busy += u64::from(percent) * ms;
            self.peak_percent = self.peak_percent.max(percent);
            self.idle_ms += if percent < IDLE_PERCENT { ms } else { 0 };
        }
        if let Some(memory) = sample.memory_mib {
            self.memory_ms += ms;
            self.memory = self.memory.saturating_add(memory.saturating_mul(ms));
            self.peak_memory_mib = self.peak_memory_mib.max(memory);
        }
        self.throttled_ms += if sample.is_throttled { ms } else { 0 };
        self.errors = self.errors.saturating_add(sample.errors.into());
        if let Some(energy) = self.energy(sample, ms) {
            self.energy_mj = Some(self.energy_mj.unwrap_or_default().saturating_add(energy));
        }
    }

    /// The energy since the last sample, in mJ: the increase of the driver's counter if it is known and plausible, otherwise the power times
    /// the time.
    fn energy(&self, sample: &Sample, ms: u64) -> Option<u64> {
        let former = self.last.and_then(|last| last.energy_mj);
        let counted = former.zip(sample.energy_mj).and_then(|(former, now)| now.checked_sub(former));
        let counted = counted.filter(|rise| *rise <= MAX_POWER_MW / 1000 * ms);
        counted.or_else(|| Some(sample.power_mw?.saturating_mul(ms) / 1000))
    }
}
