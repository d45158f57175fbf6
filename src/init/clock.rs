//! Detects that the wall clock was set. slurminit's own deadlines use the monotonic clock; Slurm's timestamps and
//! credentials do not.

use nix::time::{ClockId, clock_gettime};

/// Smaller jumps are not reported: time synchronization makes small corrections, and this process can be preempted
/// between reading the two clocks.
const REPORTED_JUMP_MS: i64 = 2000;

/// The last known offset of the wall clock.
#[derive(Debug)]
pub(super) struct Clock {
    offset_ms: Option<i64>,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { offset_ms: offset_ms() }
    }

    /// How far the clock has been set since the last call, such as `3600 s ahead`; `None` if there is nothing to report.
    pub(super) fn jump(&mut self) -> Option<String> {
        let now = offset_ms();
        let before = std::mem::replace(&mut self.offset_ms, now);
        jump(before?, now?)
    }
}

/// The wall clock minus CLOCK_BOOTTIME, in ms. CLOCK_BOOTTIME includes the time of a suspend, so a resume is not a
/// jump.
fn offset_ms() -> Option<i64> {
    let ms = |clock| clock_gettime(clock).ok().map(|time| time.tv_sec() * 1000 + time.tv_nsec() / 1_000_000);
    Some(ms(ClockId::CLOCK_REALTIME)? - ms(ClockId::CLOCK_BOOTTIME)?)
}

fn jump(before: i64, now: i64) -> Option<String> {
    let difference = now - before;
    let seconds = (difference.abs() + 500) / 1000;
    let direction = if difference.is_positive() { "ahead" } else { "back" };
    (difference.abs() >= REPORTED_JUMP_MS).then(|| format!("{seconds} s {direction}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_set_clock_from_slewed_clock() {
        for slewed in [5_000_500, 5_001_999, 4_998_001] {
            assert_eq!(jump(5_000_000, slewed), None);
        }
        assert_eq!(jump(5_000_000, 5_002_000), Some("2 s ahead".to_owned()));
        assert_eq!(jump(5_000_000, 4_997_500), Some("3 s back".to_owned()));
        assert_eq!(jump(5_000_000, 8_600_000), Some("3600 s ahead".to_owned()));
        assert_eq!(jump(5_000_000, 1_400_000), Some("3600 s back".to_owned()));
        assert_eq!(Clock::new().jump(), None);
    }
}
