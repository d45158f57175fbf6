//! Receives signals: each one that can be caught sets a bit and wakes the event loop.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use nix::fcntl::OFlag;
use nix::libc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use sys::async_fd::watch;
use sys::inherited::{GLIBC_OWN, HIGHEST, bit, set_action, set_mask};

/// These cannot be caught, or are job control rather than messages.
const NOT_CAUGHT: [i32; 5] = [libc::SIGKILL, libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
/// The kernel raises these for faults in our own code. A handler that returns would repeat the fault for ever.
const FAULTS: [i32; 4] = [libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGBUS];

static PENDING: AtomicU64 = AtomicU64::new(0);
static WAKE_FD: AtomicI32 = AtomicI32::new(-1);

/// The caught signals.
#[derive(Debug)]
pub struct Signals {
    wake: AsyncFd<OwnedFd>,
}

impl Signals {
    /// Catches and unblocks every signal that can be caught. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// No pipe can be made, or a signal cannot be caught.
    pub fn install() -> std::io::Result<Self> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        WAKE_FD.store(write.as_raw_fd(), Ordering::Relaxed);
        // The handlers use it until the process ends.
        std::mem::forget(write);
        for signal in (1..=HIGHEST).filter(|signal| !GLIBC_OWN.contains(signal) && !NOT_CAUGHT.contains(signal)) {
            catch(signal)?;
        }
        // If slurminit runs in the background of a terminal, it may still write its log there.
        set_action(libc::SIGTTOU, libc::SIG_IGN);
        set_action(libc::SIGTTIN, libc::SIG_IGN);
        set_mask(0);
        Ok(Self { wake: watch(read, Interest::READABLE)? })
    }

    /// Waits for signals and returns them, lowest number first. Several of the same number count as one.
    ///
    /// # Errors
    /// Reading the pipe fails. No cause is known.
    pub async fn next(&self) -> std::io::Result<Vec<i32>> {
        let mut guard = self.wake.readable().await?;
        let mut buffer = [0; 64];
        while matches!(nix::unistd::read(self.wake.get_ref(), &mut buffer), Ok(n) if n == buffer.len()) {}
        guard.clear_ready();
        // This comes after draining the pipe: a bit that is set later writes a new byte.
        let pending = PENDING.swap(0, Ordering::AcqRel);
        Ok((1..=HIGHEST).filter(|signal| pending & bit(*signal) != 0).collect())
    }
}

#[expect(unsafe_code, reason = "a signal handler: it only touches atomics, and calls getpid, signal and write")]
fn catch(signal: i32) -> std::io::Result<()> {
    let action = move |info: &libc::siginfo_t| {
        if FAULTS.contains(&signal) && info.si_code > 0 {
            // Returning repeats the faulting instruction, which now kills the process as it should.
            set_action(signal, libc::SIG_DFL);
            return;
        }
        // SAFETY: si_code is <= 0 or the signal is from another process or SIGCHLD: in all cases si_pid is set.
        let sender = unsafe { info.si_pid() };
        // The kernel sends us SIGPIPE when our own log is closed. That must not be passed on to CMD.
        if signal == libc::SIGPIPE && sender == nix::unistd::getpid().as_raw() {
            return;
        }
        PENDING.fetch_or(bit(signal), Ordering::AcqRel);
        let byte = 0_u8;
        // SAFETY: the descriptor is never closed and one byte is readable. If the pipe is full, the loop was already
        // woken.
        unsafe { libc::write(WAKE_FD.load(Ordering::Relaxed), (&raw const byte).cast(), 1) };
    };
    // SAFETY: the action above is async-signal-safe and covers the faults for which a handler is dangerous.
    unsafe { signal_hook_registry::register_unchecked(signal, action) }.map(drop)
}
