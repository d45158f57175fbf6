//! The data about GPUs and jobs that the web page and `slurminit status` show.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::JobRecord;

/// The length of a part of the history, in ms, and the number of parts: together they cover an hour.
const PART_MS: u64 = 120_000;
const PARTS: u64 = 30;

/// The utilization of a GPU in the last hour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct History(VecDeque<(u64, u32, u32)>);

impl History {
    /// Adds a utilization in percent, at a time in ms since 1970.
    pub(super) fn add(&mut self, at: u64, percent: u32) {
        let number = at / PART_MS;
        match self.0.back_mut() {
            Some((last, sum, count)) if *last == number => (*sum, *count) = (*sum + percent, *count + 1),
            _ => self.0.push_back((number, percent, 1)),
        }
        // If the clock was set back, parts that now lie in the future are removed, too.
        self.0.retain(|(part, ..)| *part <= number && part + PARTS > number);
    }

    /// The mean of each part up to the oldest one with samples, the most recent part first; `None` for a part without samples. `now` is in ms
    /// since 1970.
    pub(super) fn means(&self, now: u64) -> Vec<Option<u32>> {
        let mean = |age: u64| {
            let part = self.0.iter().find(|(part, ..)| part + age == now / PART_MS);
            part.and_then(|(_, sum, count)| sum.checked_div(*count))
        };
        let mut means: Vec<Option<u32>> = (0..PARTS).map(mean).collect();
        means.truncate(means.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
        means
    }
}

/// The GPU use of one run of a job on this node. A value is `None` if it was not measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobUse {
    /// The job ID.
    pub job: u64,
    /// The user's name; untrusted text.
    pub user: String,
    /// The job state in capitals, such as `RUNNING`.
    pub state: String,
    /// The number of its GPUs, or parts of GPUs, on this node.
    pub gpus: usize,
    /// The start, in seconds since 1970.
    pub start: u64,
    /// The end, in seconds since 1970; `None` while it runs.
    pub end: Option<u64>,
    /// The mean utilization of its whole GPUs and MIG instances, in percent.
    pub percent: Option<u64>,
    /// The highest memory in use of one of its whole GPUs or MIG instances, in MiB.
    pub peak_memory_mib: Option<u64>,
    /// The energy that its whole GPUs used, in J. Drivers do not measure that of MIG instances.
    pub energy_j: Option<u64>,
}

impl From<&JobRecord> for JobUse {
    fn from(run: &JobRecord) -> Self {
        let own = || run.gpus.iter().filter(|gpu| !gpu.is_shared);
        let (busy, known): (u64, u64) = (own().map(|gpu| gpu.busy).sum(), own().map(|gpu| gpu.percent_ms).sum());
        Self {
            job: run.job.job,
            user: run.job.user.clone(),
            state: run.job.state.clone(),
            gpus: run.gpus.len(),
            start: run.job.start,
            end: run.job.end,
            percent: busy.checked_div(known),
            peak_memory_mib: own().filter(|gpu| gpu.memory_ms > 0).map(|gpu| gpu.peak_memory_mib).max(),
            energy_j: own().filter_map(|gpu| gpu.energy_mj).reduce(u64::saturating_add).map(|mj| mj / 1000),
        }
    }
}

/// Draws bars of eight possible heights, for 0 to 100 %, the oldest part first; a part without samples is a space. `means` begins with the most
/// recent part.
pub fn sparkline(means: &[Option<u32>]) -> String {
    const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let height = |percent: u32| HEIGHTS[(percent.min(100) * 7).div_ceil(100) as usize];
    means.iter().rev().map(|mean| mean.map_or(' ', height)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{GpuUse, Job};
    use super::*;

    #[test]
    fn history_contains_means_of_last_hour_and_gaps() {
        let minute = 60_000;
        let mut history = History::default();
        for (at, percent) in [(0, 10), (1, 30), (2, 100), (6, 0), (7, 1)] {
            history.add(600 * minute + at * minute, percent);
        }
        let means = history.means(609 * minute);
        assert_eq!(means, [None, Some(0), None, Some(100), Some(20)]);
        assert_eq!(sparkline(&means), "▃█ ▁ ");
        // An hour later the first part is gone; after the clock was set back, the future is not shown.
        history.add(661 * minute, 50);
        assert_eq!(history.means(661 * minute).iter().flatten().collect::<Vec<_>>(), [&50, &0, &100]);
        history.add(10 * minute, 7);
        assert_eq!(history.means(10 * minute), [Some(7)]);
        assert_eq!(history.means(500 * minute), []);
    }

    #[test]
    fn use_of_a_job_omits_shared_gpus_and_unknown_readings() {
        let gpu = |busy, memory_ms, peak_memory_mib, energy_mj, is_shared| GpuUse {
            busy,
            percent_ms: 10_000,
            memory_ms,
            peak_memory_mib,
            energy_mj,
            is_shared,
            ..GpuUse::default()
        };
        let run = JobRecord {
            job: Job { job: 7, user: "alice".to_owned(), state: "RUNNING".to_owned(), start: 5, ..Job::default() },
            gpus: vec![
                gpu(800_000, 1, 900, Some(3_000_999), false),
                gpu(400_000, 0, 5_000, None, false),
                gpu(0, 1, 7_000, Some(1_000), true),
            ],
            ..JobRecord::default()
        };
        let expected = JobUse {
            job: 7,
            user: "alice".to_owned(),
            state: "RUNNING".to_owned(),
            gpus: 3,
            start: 5,
            end: None,
            percent: Some(60),
            peak_memory_mib: Some(900),
            energy_j: Some(3_000),
        };
        assert_eq!(JobUse::from(&run), expected);
    }
}
