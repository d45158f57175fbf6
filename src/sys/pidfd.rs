//! A process that its number cannot come to mean another one for: pidfd_open(2), from Linux 5.3 on.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use nix::libc;

/// Readable once the process has ended; `None` on a kernel without, and under a seccomp profile that refuses it.
#[expect(unsafe_code, reason = "nix has no pidfd")]
pub fn open(pid: i32) -> Option<OwnedFd> {
    // SAFETY: a system call without pointers; the descriptor it returns is new and nobody else's.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        i32::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

/// Sends a signal, a real-time one too. A process that has ended takes it without effect.
#[expect(unsafe_code, reason = "nix has no pidfd")]
pub fn send(handle: &OwnedFd, signal: i32) {
    // SAFETY: a null siginfo asks the kernel to fill it in as kill() does.
    unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, handle.as_raw_fd(), signal, std::ptr::null::<libc::siginfo_t>(), 0)
    };
}
