//! A deadline that the kernel keeps (timerfd_create(2)).
//!
//! EDGE. tokio's own timers work in steps: for a deadline some seconds ahead they wake the process three times. This wakes
//! it once.

use std::os::fd::{AsFd as _, OwnedFd};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use crate::watch::watch;

/// One deadline at a time.
#[derive(Debug)]
pub(super) struct Alarm(Option<(TimerFd, AsyncFd<OwnedFd>)>);

impl Alarm {
    /// Needs a tokio runtime. Where the kernel has none to give, tokio's timers do it.
    pub(super) fn new() -> Self {
        let timer = || -> std::io::Result<_> {
            let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
            let readable = watch(timer.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
            Ok((timer, readable))
        };
        Self(timer().ok())
    }

    /// Waits until `deadline`.
    pub(super) async fn wait_until(&self, deadline: Instant) {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let once = Expiration::OneShot(TimeSpec::from_duration(left));
            let armed = self.0.as_ref().filter(|(timer, _)| timer.set(once, TimerSetTimeFlags::empty()).is_ok());
            let Some((_, readable)) = armed else { return tokio::time::sleep_until(deadline).await };
            // An earlier deadline that nobody waited for any more may be what is told here.
            match readable.readable().await {
                Ok(mut guard) => guard.clear_ready(),
                Err(_) => return tokio::time::sleep_until(deadline).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_rings_when_it_is_time_and_not_before() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
        runtime.block_on(async {
            let alarm = Alarm::new();
            assert!(alarm.0.is_some());
            let start = Instant::now();
            // One that is given up rings for nobody.
            let soon = alarm.wait_until(start + Duration::from_millis(5));
            assert!(tokio::time::timeout(Duration::from_millis(1), soon).await.is_err());
            for ms in [30, 60, 60, 0] {
                let deadline = start + Duration::from_millis(ms);
                alarm.wait_until(deadline).await;
                assert!(Instant::now() >= deadline);
            }
        });
    }
}
