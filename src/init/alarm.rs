//! A deadline kept by the kernel (timerfd_create(2)).
//!
//! tokio's timer wheel wakes the process three times for a deadline a few seconds ahead. A timerfd wakes it once.

use std::os::fd::{AsFd as _, OwnedFd};

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use sys::system_calls::async_fd;

/// A timer for one deadline at a time. If no timerfd can be created, tokio's timers are used.
#[derive(Debug)]
pub(super) struct Alarm(Option<(TimerFd, AsyncFd<OwnedFd>)>);

impl Alarm {
    /// Must be called within a tokio runtime.
    pub(super) fn new() -> Self {
        let timer = || -> std::io::Result<_> {
            let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
            let readable = async_fd(timer.as_fd().try_clone_to_owned()?, Interest::READABLE)?;
            Ok((timer, readable))
        };
        Self(timer().ok())
    }

    pub(super) async fn wait_until(&self, deadline: Instant) {
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return;
            }
            let expiration = Expiration::OneShot(TimeSpec::from_duration(remaining));
            let armed = self.0.as_ref().filter(|(timer, _)| timer.set(expiration, TimerSetTimeFlags::empty()).is_ok());
            let Some((_, readable)) = armed else { return tokio::time::sleep_until(deadline).await };
            // The timer may have expired for an earlier deadline that was replaced, so the loop checks the time again.
            match readable.readable().await {
                Ok(mut guard) => guard.clear_ready(),
                Err(_) => return tokio::time::sleep_until(deadline).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;
    use std::time::Duration;

    use super::*;

    #[test]
    fn expires_at_deadline_and_not_before() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
        runtime.block_on(async {
            let alarm = Alarm::new();
            assert!(alarm.0.is_some());
            let start = Instant::now();
            // A cancelled wait must not fire.
            {
                let mut soon = pin!(alarm.wait_until(start + Duration::from_millis(300)));
                let is_pending = poll_fn(|context| Poll::Ready(soon.as_mut().poll(context).is_pending())).await;
                assert!(is_pending);
            }
            for ms in [350, 400, 400, 0] {
                let deadline = start + Duration::from_millis(ms);
                alarm.wait_until(deadline).await;
                assert!(Instant::now() >= deadline);
            }
        });
    }
}
