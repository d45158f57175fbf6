//! Receives signals: each one that can be caught sets a bit and wakes the event loop.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::OFlag;
use nix::libc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use sys::inherited::{GLIBC_SIGNALS, MAX_SIGNAL, bit, set_mask};
use sys::system_calls::{SignalAction, async_fd, handle_signal, set_action};

/// These cannot be caught, or are job control rather than messages.
const NOT_CAUGHT: [i32; 5] = [libc::SIGKILL, libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
/// The kernel raises these for faults in our own code. A handler that returns would repeat the fault for ever.
const FAULTS: [i32; 4] = [libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGBUS];

static PENDING: AtomicU64 = AtomicU64::new(0);
/// The writing end of the pipe that wakes the event loop.
static WAKE: OnceLock<OwnedFd> = OnceLock::new();

/// The caught signals.
#[derive(Debug)]
pub(super) struct Signals {
    wake: AsyncFd<OwnedFd>,
}

impl Signals {
    /// Catches and unblocks every signal that can be caught. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// No pipe can be made, a signal cannot be caught, or the handlers are installed already.
    pub(super) fn install() -> std::io::Result<Self> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        WAKE.set(write).map_err(|_| std::io::ErrorKind::AlreadyExists)?;
        let is_caught = |signal: &i32| !GLIBC_SIGNALS.contains(signal) && !NOT_CAUGHT.contains(signal);
        for signal in (1..=MAX_SIGNAL).filter(is_caught) {
            catch(signal)?;
        }
        // If slurminit runs in the background of a terminal, it may still write its log there.
        set_action(libc::SIGTTOU, SignalAction::Ignore);
        set_action(libc::SIGTTIN, SignalAction::Ignore);
        set_mask(0);
        Ok(Self { wake: async_fd(read, Interest::READABLE)? })
    }

    /// Waits for signals and returns them, lowest number first. Several of the same number count as one.
    ///
    /// # Errors
    /// Reading the pipe fails. No cause is known.
    pub(super) async fn next(&self) -> std::io::Result<Vec<i32>> {
        let mut guard = self.wake.readable().await?;
        let mut buffer = [0; 64];
        while matches!(nix::unistd::read(self.wake.get_ref(), &mut buffer), Ok(n) if n == buffer.len()) {}
        guard.clear_ready();
        // This comes after draining the pipe: a bit that is set later writes a new byte.
        let pending = PENDING.swap(0, Ordering::AcqRel);
        Ok((1..=MAX_SIGNAL).filter(|signal| pending & bit(*signal) != 0).collect())
    }
}

/// The handler only touches atomics, and calls getpid, signal and write.
fn catch(signal: i32) -> std::io::Result<()> {
    handle_signal(signal, move |origin| {
        if FAULTS.contains(&signal) && origin.code > 0 {
            // Returning repeats the faulting instruction, which now kills the process as it should.
            set_action(signal, SignalAction::Default);
            return;
        }
        // The kernel sends us SIGPIPE when our own log is closed. That must not be passed on to CMD.
        if signal == libc::SIGPIPE && origin.sender == nix::unistd::getpid().as_raw() {
            return;
        }
        PENDING.fetch_or(bit(signal), Ordering::AcqRel);
        // If the pipe is full, the loop was already woken.
        let _ = WAKE.get().map(|pipe| nix::unistd::write(pipe, &[0]));
    })
}
