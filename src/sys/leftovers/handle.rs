//! Signals exactly the process that was inspected, even if its PID is reused.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Process, look};
use crate::system_calls::{pidfd_open, pidfd_send_signal};

/// A pidfd, which is immune to PID reuse (Linux 5.3 and later); before that, a PID.
#[derive(Debug)]
pub struct Handle {
    pid: Pid,
    descriptor: Option<OwnedFd>,
}

impl Handle {
    /// `None` if the process has ended.
    pub fn open(process: &Process) -> Option<Self> {
        Self::of(process.pid, process.start)
    }

    /// Like [`Self::open`], by PID and start time.
    pub fn of(pid: i32, start: u64) -> Option<Self> {
        let handle = Self { pid: Pid::from_raw(pid), descriptor: pidfd_open(pid) };
        // The pidfd is open, so a matching start time now proves that it refers to the inspected process.
        (look::start_time(pid) == Some(start)).then_some(handle)
    }

    /// Sends a signal. A process that has ended ignores it.
    pub fn send(&self, signal: Signal) {
        match &self.descriptor {
            Some(descriptor) => pidfd_send_signal(descriptor, signal as i32),
            None => drop(kill(self.pid, signal)),
        }
    }

    /// Becomes readable when the process ends.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }
}
