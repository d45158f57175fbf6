//! The system calls that neither std nor nix has in a safe form.
//!
//! All unsafe code outside the interfaces of GPU drivers is in this file. The documentation of each function states what a caller must ensure.

#![expect(unsafe_code, reason = "these calls have no safe form; each block has its reason")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;

use nix::errno::Errno;
use nix::libc;
use nix::unistd::{ForkResult, Pid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::inherited::{MAX_SIGNAL, before_main, bit};

// SAFETY: `before_main` has the signature of a constructor, and only makes system calls and stores atomics.
#[unsafe(link_section = ".init_array")]
#[used]
static BEFORE_MAIN: extern "C" fn() = before_main;

/// The exit code of a forked child after a panic, as in Rust's runtime.
const PANICKED: i32 = 101;

/// The action of a signal without a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalAction {
    /// `SIG_DFL`.
    Default,
    /// `SIG_IGN`.
    Ignore,
}

/// The part of `siginfo_t` that a handler receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalOrigin {
    /// `si_code`: above 0 if the kernel raised the signal.
    pub code: i32,
    /// `si_pid`: the sender, unless the kernel raised the signal for a fault.
    pub sender: i32,
}

/// Whether a signal is ignored. nix and std cannot read the action without changing it.
pub(crate) fn is_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero sigaction is valid, and without a new action the call only stores the old one.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    }
}

/// Sets the action of a signal, including real-time signals, which nix does not support.
pub fn set_action(signal: i32, action: SignalAction) {
    let action = match action {
        SignalAction::Default => libc::SIG_DFL,
        SignalAction::Ignore => libc::SIG_IGN,
    };
    // SAFETY: neither action runs code of this process.
    unsafe { libc::signal(signal, action) };
}

/// Calls `handler` at each arrival of a signal, including a fault such as SIGSEGV. The handler must be async-signal-safe: no lock, no
/// allocation, no panic. It may return from a fault only after it has reset the signal's action.
///
/// # Errors
/// The signal cannot be caught.
pub fn handle_signal(signal: i32, handler: impl Fn(SignalOrigin) + Send + Sync + 'static) -> io::Result<()> {
    let action = move |info: &libc::siginfo_t| {
        // SAFETY: the kernel initializes the whole siginfo_t, and every bit pattern is a valid PID.
        let sender = unsafe { info.si_pid() };
        handler(SignalOrigin { code: info.si_code, sender });
    };
    // SAFETY: the handler is async-signal-safe, as this function's documentation requires.
    unsafe { signal_hook_registry::register_unchecked(signal, action) }.map(drop)
}

/// Sets the signals that this thread blocks and returns the previous ones, including real-time signals, which nix does not support. Bit n-1
/// represents signal n. glibc never blocks its own two signals.
pub(crate) fn replace_signal_mask(mask: u64) -> u64 {
    // SAFETY: an all-zero sigset_t is valid, all pointers are to these two, and the call cannot fail with these arguments.
    unsafe {
        let (mut new, mut old): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        for signal in (1..=MAX_SIGNAL).filter(|signal| mask & bit(*signal) != 0) {
            libc::sigaddset(&raw mut new, signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const new, &raw mut old);
        let blocked = (1..=MAX_SIGNAL).filter(|signal| libc::sigismember(&raw const old, *signal) == 1);
        blocked.fold(0, |mask, signal| mask | bit(signal))
    }
}

/// kill(2) that also supports real-time signals, which nix does not. A process that has ended is not an error.
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: a system call without pointers.
    unsafe { libc::kill(pid, signal) };
}

/// A process handle that is immune to PID reuse, readable once the process has ended. `None` if the handle cannot
/// be opened: the process does not exist, the kernel is older than Linux 5.3, or a seccomp profile refuses pidfd_open(2).
pub fn pidfd_open(pid: i32) -> Option<OwnedFd> {
    // SAFETY: a system call without pointers; the descriptor that it returns is new.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        i32::try_from(fd).ok().filter(|fd| *fd >= 0).map(|fd| OwnedFd::from_raw_fd(fd))
    }
}

/// Sends a signal, which may be a real-time signal. A process that has ended is not an error.
pub fn pidfd_send_signal(handle: &OwnedFd, signal: i32) {
    // SAFETY: with a null siginfo the kernel fills it in as kill(2) does.
    unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, handle.as_raw_fd(), signal, std::ptr::null::<libc::siginfo_t>(), 0)
    };
}

/// Starts a child process that runs `child` and exits with its result, without the parent's exit handlers. Call it only in a process with
/// a single thread: otherwise another thread may hold a lock that `child` needs.
///
/// # Errors
/// fork(2) fails.
pub fn fork(child: impl FnOnce() -> i32) -> nix::Result<Pid> {
    // SAFETY: with a single thread, the child may call anything that the parent may.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(child),
        // A panic must not unwind into the parent's code.
        ForkResult::Child => exit_now(catch_unwind(AssertUnwindSafe(child)).unwrap_or(PANICKED)),
    }
}

/// Ends this process without running exit handlers or flushing buffers.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit(2) only ends the process.
    unsafe { libc::_exit(code) }
}

/// A child that has ended but has not been reaped, or `None` while all children live. nix's wait fails if a real-time signal ended the
/// child.
///
/// # Errors
/// `ECHILD` if there are no children.
pub fn find_zombie() -> nix::Result<Option<Pid>> {
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    loop {
        // SAFETY: an all-zero siginfo_t is valid, and the kernel fills it in; WNOHANG does not block.
        let (outcome, pid) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            (Errno::result(libc::waitid(libc::P_ALL, 0, &raw mut info, flags)), info.si_pid())
        };
        match outcome {
            Err(Errno::EINTR) => {}
            outcome => return outcome.map(|_| (pid != 0).then(|| Pid::from_raw(pid))),
        }
    }
}

/// Reaps this zombie and returns its exit status.
pub fn reap(zombie: Pid) -> ExitStatus {
    let mut status = 0;
    loop {
        // SAFETY: the pointer is to a local variable; WNOHANG does not block.
        let outcome = Errno::result(unsafe { libc::waitpid(zombie.as_raw(), &raw mut status, libc::WNOHANG) });
        if outcome != Err(Errno::EINTR) {
            return ExitStatus::from_raw(status);
        }
    }
}

/// Takes ownership of a descriptor that the program before the exec left open. Call this once per descriptor, before this process opens any
/// of its own.
pub fn adopt_descriptor(number: RawFd) -> OwnedFd {
    // SAFETY: nothing else in this process owns the number, as this function's documentation requires.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Registers a descriptor with the event loop. Call it only within a tokio runtime.
///
/// # Errors
/// The registration fails; regular files cannot be waited for (`EPERM`).
pub fn async_fd(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open until it is dropped, and the AsyncFd owns it.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

/// Receives a datagram into `buffer` without waiting. Returns its length and the sender's PID, which the kernel guarantees on a socket with
/// `SO_PASSCRED`. The PID is 0 if the kernel stored none.
///
/// The control buffer has no room for file descriptors, so the kernel closes any that arrive. nix and rustix cannot do this: nix returns an
/// error, and rustix's PID type cannot be 0, which is the PID of a sender in another PID namespace.
///
/// # Errors
/// `EAGAIN` if no datagram is queued.
pub fn receive_with_sender(socket: &OwnedFd, buffer: &mut [u8]) -> nix::Result<(usize, i32)> {
    const SIZE: libc::c_uint = size_of::<libc::ucred>() as libc::c_uint;
    let mut control = [0_u64; 4];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    loop {
        // SAFETY: the pointers are to the buffers above, with their lengths; the control buffer is aligned for its header, and has room
        // for exactly the sender's credentials, which are read only if the kernel stored them there.
        unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = &raw mut part;
            header.msg_iovlen = 1;
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(SIZE) as _;
            let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
            let length = match Errno::result(libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags)) {
                Err(Errno::EINTR) => continue,
                outcome => outcome?.unsigned_abs(),
            };
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            let sender = first.as_ref().filter(|first| {
                (first.cmsg_level, first.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS)
                    && first.cmsg_len >= libc::CMSG_LEN(SIZE) as _
            });
            let sender = sender.map_or(0, |first| libc::CMSG_DATA(first).cast::<libc::ucred>().read_unaligned().pid);
            return Ok((length, sender));
        }
    }
}

/// Removes an extended attribute.
///
/// # Errors
/// The system call's error: `ENODATA` if the attribute is missing, `EOPNOTSUPP` if the file system does not support attributes.
pub fn remove_xattr(file: &CStr, name: &CStr) -> nix::Result<()> {
    // SAFETY: both strings end with a NUL.
    Errno::result(unsafe { libc::removexattr(file.as_ptr(), name.as_ptr()) }).map(drop)
}

/// Sets an extended attribute of a file. The path may be `/proc/self/fd/N`.
///
/// # Errors
/// The system call's error: `EOPNOTSUPP` if the file system does not support attributes.
pub fn set_xattr(file: &CStr, name: &CStr, value: &[u8]) -> nix::Result<()> {
    // SAFETY: both strings end with a NUL, and the kernel reads `value.len()` bytes of the value.
    Errno::result(unsafe { libc::setxattr(file.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) })
        .map(drop)
}

/// The value of an extended attribute of at most `N` bytes. The path may be `/proc/self/fd/N`.
///
/// # Errors
/// The system call's error: `ENODATA` if the attribute is missing, `ERANGE` if it is longer, `EOPNOTSUPP` if the file system does not
/// support attributes.
pub fn get_xattr<const N: usize>(file: &CStr, name: &CStr) -> nix::Result<Vec<u8>> {
    let mut value = vec![0_u8; N];
    // SAFETY: both strings end with a NUL, and the kernel writes at most `N` bytes into the value.
    let read = unsafe { libc::getxattr(file.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), N) };
    value.truncate(usize::try_from(Errno::result(read)?).unwrap_or_default());
    Ok(value)
}
