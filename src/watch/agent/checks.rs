//! Schedules the checks of closed GPUs. Only the process of a check opens such a GPU.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use faults::sample::{Identity, Key};

/// The interval from the end of a check of a GPU to its next check, in sampling intervals.
const CHECK_EACH: u32 = 12;

#[derive(Debug)]
pub(super) struct CheckSchedule {
    interval: Duration,
    /// The time of the next check of each GPU; `None` while a check is running.
    next: BTreeMap<Key, Option<Instant>>,
}

impl CheckSchedule {
    pub(super) fn new(sampling_interval: Duration) -> Self {
        Self { interval: sampling_interval * CHECK_EACH, next: BTreeMap::new() }
    }

    /// The GPUs among these whose check is due: after an interval, or at once for a returning GPU. Their checks count as running until
    /// [`Self::end`].
    pub(super) fn begin(
        &mut self,
        now: Instant,
        mut gpus: Vec<Identity>,
        is_returning: impl Fn(&Key) -> bool,
    ) -> Vec<Identity> {
        self.next.retain(|key, _| gpus.iter().any(|gpu| gpu.key() == *key));
        gpus.retain(|gpu| {
            let key = gpu.key();
            let next = self.next.entry(key.clone()).or_insert(Some(now + self.interval));
            next.take_if(|due| *due <= now || is_returning(&key)).is_some()
        });
        gpus
    }

    /// Schedules the next check of a GPU.
    pub(super) fn end(&mut self, now: Instant, key: &Key) {
        if let Some(next) = self.next.get_mut(key) {
            *next = Some(now + self.interval);
        }
    }

    /// Whether a check has the GPU open.
    pub(super) fn is_running(&self, key: &Key) -> bool {
        self.next.get(key).is_some_and(Option::is_none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLING: Duration = Duration::from_secs(5);

    fn gpu(index: u32) -> Identity {
        Identity { index, uuid: Some(format!("GPU-{index}")), ..Identity::default() }
    }

    #[test]
    fn closed_gpu_is_checked_after_each_interval_and_at_once_when_it_returns() {
        let (mut checks, start) = (CheckSchedule::new(SAMPLING), Instant::now());
        let begun = |checks: &mut CheckSchedule, ms: u64, returning: Option<u32>| {
            let now = start + Duration::from_millis(ms);
            let begun =
                checks.begin(now, vec![gpu(0), gpu(1)], |key| returning.is_some_and(|index| gpu(index).key() == *key));
            begun.iter().map(|gpu| gpu.index).collect::<Vec<_>>()
        };
        assert_eq!(begun(&mut checks, 0, None), [0; 0], "a GPU that was just closed");
        assert_eq!(begun(&mut checks, 59_999, Some(1)), [1]);
        assert_eq!([0, 1].map(|index| checks.is_running(&gpu(index).key())), [false, true]);
        assert_eq!(begun(&mut checks, 60_000, Some(1)), [0], "one check at a time");
        checks.end(start + Duration::from_secs(70), &gpu(0).key());
        assert!(!checks.is_running(&gpu(0).key()) && checks.is_running(&gpu(1).key()));
        assert_eq!(begun(&mut checks, 129_999, None), [0; 0]);
        assert_eq!(begun(&mut checks, 130_000, None), [0]);
    }

    #[test]
    fn gpu_that_was_open_in_between_is_not_due() {
        let (mut checks, start) = (CheckSchedule::new(SAMPLING), Instant::now());
        assert_eq!(checks.begin(start, vec![gpu(0)], |_| true).len(), 1);
        assert!(checks.begin(start, Vec::new(), |_| true).is_empty() && !checks.is_running(&gpu(0).key()));
        let later = start + Duration::from_secs(60);
        assert!(checks.begin(later, vec![gpu(0)], |_| false).is_empty());
    }
}
