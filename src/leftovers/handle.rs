//! A signal that hits the process that was looked at, and no other one that has its number by now.
//!
//! EDGE.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Process, look};

/// A process that cannot come to mean another one, from Linux 5.3 on.
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

    /// The same for the process of this id that started then.
    pub fn of(pid: i32, start: u64) -> Option<Self> {
        let handle = Self { pid: Pid::from_raw(pid), descriptor: pidfd_open(pid) };
        // Only now does the start time tell that the handle is of the process that was looked at.
        (look::start(pid) == Some(start)).then_some(handle)
    }

    /// Sends it. A process that has ended takes it without effect.
    pub fn send(&self, signal: Signal) {
        match &self.descriptor {
            Some(descriptor) => pidfd_send_signal(descriptor, signal),
            None => drop(kill(self.pid, signal)),
        }
    }

    /// Readable when the process has ended.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }
}

#[expect(unsafe_code, reason = "nix has no pidfd")]
fn pidfd_open(pid: i32) -> Option<OwnedFd> {
    // SAFETY: a system call without pointers; the descriptor it returns is new and nobody else's.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        i32::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

#[expect(unsafe_code, reason = "nix has no pidfd")]
fn pidfd_send_signal(descriptor: &OwnedFd, signal: Signal) {
    // SAFETY: a null siginfo asks the kernel to fill it in as kill() does.
    unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            descriptor.as_raw_fd(),
            signal as i32,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
}
