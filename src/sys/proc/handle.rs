//! Signals exactly the process that was inspected, even if its PID is reused.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::stat;
use crate::system_calls::{pidfd_open, pidfd_send_signal};

/// A pidfd, which is immune to PID reuse (Linux 5.3 and later); a PID if no pidfd is available.
#[derive(Debug)]
pub struct Handle {
    pid: Pid,
    descriptor: Option<OwnedFd>,
}

impl Handle {
    /// The process with this PID and start time; `None` if it has ended.
    pub fn of(pid: i32, start: u64) -> Option<Self> {
        let handle = Self { pid: Pid::from_raw(pid), descriptor: pidfd_open(pid) };
        // The pidfd is open, so a matching start time now proves that it refers to the inspected process.
        stat(pid).is_some_and(|stat| stat.start == start && !stat.is_dead()).then_some(handle)
    }

    /// Sends a signal; has no effect if the process has ended.
    pub fn send(&self, signal: Signal) {
        match &self.descriptor {
            Some(descriptor) => pidfd_send_signal(descriptor, signal as i32),
            None => drop(kill(self.pid, signal)),
        }
    }

    /// A descriptor that becomes readable when the process ends; `None` without a pidfd.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }
}
