//! Receives signals: each one that can be caught sets a bit and wakes the event loop.
//!
//! EDGE.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::watch::watch;

/// The highest signal number of Linux (`_NSIG`).
const HIGHEST: i32 = 64;
/// glibc reserves these two and refuses a handler.
const GLIBC_OWN: [i32; 2] = [32, 33];
/// These cannot be caught, or are job control rather than messages.
const NOT_CAUGHT: [i32; 5] = [libc::SIGKILL, libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
/// The kernel raises these for faults in our own code. A handler that returns would repeat the fault for ever.
const FAULTS: [i32; 4] = [libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGBUS];

static PENDING: AtomicU64 = AtomicU64::new(0);
static WAKE_FD: AtomicI32 = AtomicI32::new(-1);
static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Rust's runtime ignores SIGPIPE before `main`. Only a constructor can see the setting before that.
extern "C" fn record_sigpipe() {
    SIGPIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
}

#[expect(unsafe_code, reason = "the loader calls every function in .init_array before Rust's runtime starts")]
// SAFETY: `record_sigpipe` has the signature of a constructor, and does only a system call and an atomic store.
#[unsafe(link_section = ".init_array")]
#[used]
static RECORD_SIGPIPE: extern "C" fn() = record_sigpipe;

/// The signal mask and the ignored signals at the start of slurminit. Its children get them back.
#[derive(Clone, Debug)]
pub struct Inherited {
    mask: SigSet,
    ignored: Vec<i32>,
}

impl Inherited {
    /// Records both, and blocks all signals until [`Signals::install`]: the kernel discards signals to a PID 1 that has
    /// no handler, but queues blocked ones.
    pub fn capture() -> Self {
        let mask = SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty());
        let ignored = (1..=HIGHEST)
            .filter(|signal| match *signal {
                libc::SIGPIPE => SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed),
                signal => is_ignored(signal),
            })
            .collect();
        // It cannot fail with these arguments.
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
        Self { mask, ignored }
    }

    /// Applies them to this process, a child about to exec. Handlers need no reset: `execve` resets them.
    pub fn restore(&self) {
        for signal in 1..=HIGHEST {
            let action = if self.ignored.contains(&signal) { libc::SIG_IGN } else { libc::SIG_DFL };
            if !GLIBC_OWN.contains(&signal) {
                set_action(signal, action);
            }
        }
        // It cannot fail with these arguments.
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.mask), None);
    }
}

#[expect(unsafe_code, reason = "neither nix nor std can read a disposition without changing it")]
fn is_ignored(signal: i32) -> bool {
    // SAFETY: an all-zero sigaction is valid, and without a new action the call only stores the old one.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    }
}

#[expect(unsafe_code, reason = "nix's `signal` takes no real-time signal")]
fn set_action(signal: i32, action: libc::sighandler_t) {
    // SAFETY: only SIG_IGN and SIG_DFL come here: no code of ours runs in a handler.
    unsafe { libc::signal(signal, action) };
}

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
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
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

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
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
