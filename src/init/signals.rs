//! Receives signals: each caught signal sets a bit and wakes the event loop.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::OFlag;
use nix::libc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use sys::inherited::{GLIBC_SIGNALS, MAX_SIGNAL, bit, set_mask};
use sys::system_calls::{SignalAction, async_fd, handle_signal, set_action};

/// Signals that cannot be caught, or that are only for job control.
const NOT_CAUGHT: [i32; 5] = [libc::SIGKILL, libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
/// Signals that the kernel raises for faults in slurminit's own code. A handler that returns would repeat the fault forever.
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
    /// Catches every signal except [`NOT_CAUGHT`] and those of glibc, and unblocks all signals. Must be called within a
    /// tokio runtime.
    ///
    /// # Errors
    /// No pipe can be created or registered, a signal cannot be caught, or the handlers are installed already.
    pub(super) fn install() -> std::io::Result<Self> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        WAKE.set(write).map_err(|_| std::io::ErrorKind::AlreadyExists)?;
        let is_caught = |signal: &i32| !GLIBC_SIGNALS.contains(signal) && !NOT_CAUGHT.contains(signal);
        for signal in (1..=MAX_SIGNAL).filter(is_caught) {
            catch(signal)?;
        }
        // slurminit may be in the background of its terminal, and must not be stopped when it writes its log there.
        set_action(libc::SIGTTOU, SignalAction::Ignore);
        set_action(libc::SIGTTIN, SignalAction::Ignore);
        set_mask(0);
        Ok(Self { wake: async_fd(read, Interest::READABLE)? })
    }

    /// Waits for signals and returns them, lowest number first. Several signals with the same number are returned as one.
    ///
    /// # Errors
    /// The pipe cannot be polled, which is not expected.
    pub(super) async fn next(&self) -> std::io::Result<Vec<i32>> {
        let mut guard = self.wake.readable().await?;
        let mut buffer = [0; 64];
        while matches!(nix::unistd::read(self.wake.get_ref(), &mut buffer), Ok(n) if n == buffer.len()) {}
        guard.clear_ready();
        // This comes after draining the pipe: a signal that arrives later also writes a new byte.
        let pending = PENDING.swap(0, Ordering::AcqRel);
        Ok((1..=MAX_SIGNAL).filter(|signal| pending & bit(*signal) != 0).collect())
    }
}

/// Installs a handler for a signal. The handler uses only atomics, and calls only getpid, signal and write.
fn catch(signal: i32) -> std::io::Result<()> {
    handle_signal(signal, move |origin| {
        if FAULTS.contains(&signal) && origin.code > 0 {
            // Returning repeats the faulting instruction, which now kills the process as it should.
            set_action(signal, SignalAction::Default);
            return;
        }
        // The kernel sends SIGPIPE to this process if it writes its log after the reader has exited. That must not be passed on to CMD.
        if signal == libc::SIGPIPE && origin.sender == nix::unistd::getpid().as_raw() {
            return;
        }
        PENDING.fetch_or(bit(signal), Ordering::AcqRel);
        // If the pipe is full, the loop was already woken.
        let _ = WAKE.get().map(|pipe| nix::unistd::write(pipe, &[0]));
    })
}
