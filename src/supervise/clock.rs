//! Whether somebody has set the clock. slurminit's own deadlines do not go by it; Slurm's times and credentials do.
//!
//! EDGE.

use nix::time::{ClockId, clock_gettime};

/// Less is what keeps a clock right (NTP steps it by up to half a second), or our own being interrupted.
const WORTH_A_WORD_MS: i64 = 2000;

/// The wall clock, as it was seen last.
#[derive(Debug)]
pub(super) struct Clock {
    offset_ms: Option<i64>,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { offset_ms: offset_ms() }
    }

    /// How far the clock has been set since the last call: `3600 s ahead`.
    pub(super) fn jump(&mut self) -> Option<String> {
        let now = offset_ms();
        let before = std::mem::replace(&mut self.offset_ms, now);
        jump(before?, now?)
    }
}

/// The wall clock less the time since the machine was booted, in which a machine that slept is no jump.
fn offset_ms() -> Option<i64> {
    let ms = |clock| clock_gettime(clock).ok().map(|time| time.tv_sec() * 1000 + time.tv_nsec() / 1_000_000);
    Some(ms(ClockId::CLOCK_REALTIME)? - ms(ClockId::CLOCK_BOOTTIME)?)
}

fn jump(before: i64, now: i64) -> Option<String> {
    let by = now - before;
    let seconds = (by.abs() + 500) / 1000;
    (by.abs() >= WORTH_A_WORD_MS).then(|| format!("{seconds} s {}", if by > 0 { "ahead" } else { "back" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_is_told_from_one_that_is_corrected() {
        assert_eq!(jump(5_000_000, 5_000_500), None);
        assert_eq!(jump(5_000_000, 8_600_000), Some("3600 s ahead".to_owned()));
        assert_eq!(jump(5_000_000, 1_400_000), Some("3600 s back".to_owned()));
        assert_eq!(Clock::new().jump(), None);
    }
}
