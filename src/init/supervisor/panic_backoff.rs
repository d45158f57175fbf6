//! A backoff after an internal error.
//!
//! A panic leaves an expired deadline in place. Without a backoff the loop would handle it again immediately and forever, and the
//! runtime would never poll for signals.

use std::time::Duration;

/// A pause that doubles, up to [`LONGEST`], while every step panics.
#[derive(Debug, Default)]
pub(super) struct PanicBackoff {
    panics: u32,
    until: Option<Duration>,
}

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

impl PanicBackoff {
    /// Starts or doubles the pause, after a step has panicked.
    pub(super) fn begin(&mut self, now: Duration) {
        let doubled = 1_u32.checked_shl(self.panics).unwrap_or(u32::MAX);
        self.until = Some(now + FIRST.saturating_mul(doubled).min(LONGEST));
        self.panics = self.panics.saturating_add(1);
    }

    /// Resets the pause, after a step has succeeded.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// When to handle a deadline: at the end of the pause, if that is later.
    pub(super) fn wake(&self, deadline: Duration) -> Duration {
        self.until.map_or(deadline, |until| until.max(deadline))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backs_off_after_each_panic_until_step_succeeds() {
        let (mut backoff, mut now) = (PanicBackoff::default(), Duration::from_secs(100));
        let deadline = Duration::from_secs(1);
        assert_eq!(backoff.wake(deadline), deadline);
        let mut pauses = Vec::new();
        for _ in 0..40 {
            backoff.begin(now);
            pauses.push(backoff.wake(deadline) - now);
            now = backoff.wake(deadline);
        }
        assert_eq!((pauses[0], pauses[1], pauses[39]), (FIRST, FIRST * 2, LONGEST));
        backoff.end();
        assert_eq!(backoff.wake(deadline), deadline);
    }
}
