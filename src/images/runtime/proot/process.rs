//! The processes of a step under PRoot.
//!
//! For slurmstepd this process is the step's task. PRoot is its child, slurminit (`run_inside`) is the child of PRoot,
//! and the program is the child of `run_inside`. That closes three gaps:
//!
//! 1. PRoot does not report the signal that ended a program. `run_inside` does, through a pipe, and this process ends
//!    by the same signal.
//! 2. PRoot waits for all processes that it traces, a step only for its program. So when the program has ended, SIGQUIT
//!    makes PRoot kill the other processes.
//! 3. A signal that slurmstepd sends to the task alone (`--signal=B:USR1`) must reach the program. But most signals are
//!    sent to all processes of the step, and must not reach it twice. A witness, another child, distinguishes them: it
//!    reports the signals that it receives.
//!
//! This process, the witness and `run_inside` block all signals. PRoot and the program start with the step's signal mask.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, pipe2, read, write};
use sys::inherited::block_all;
use sys::system_calls::{adopt_descriptor, fork, kill, reap};

/// The time within which the witness reports a signal that was sent to all processes of the step.
const WITNESS_TIMEOUT: Duration = Duration::from_millis(100);

/// A signal to this process, and the time at which it is forwarded to the program unless the witness has received it too.
struct PendingSignal {
    signal: i32,
    due: Instant,
}

/// Runs `proot` in a child. `proot` must exec PRoot. Its argument is the number of the descriptor for [`run_inside`]. All signals
/// must be blocked.
pub(super) fn run(proot: impl FnOnce(i32) -> i32) -> io::Result<ExitStatus> {
    let signals = signals()?;
    let (witnessed, witness_end) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let (reports, inner_end) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let witness = fork(|| witness(&witness_end))?;
    let proot = fork(|| match fcntl(&inner_end, FcntlArg::F_SETFD(FdFlag::empty())) {
        Ok(_) => proot(inner_end.as_raw_fd()),
        Err(_) => i32::from(super::NOT_STARTED),
    })?;
    drop(inner_end);
    let status =
        Step { proot, program: None, signals, witnessed, reports, is_pipe_closed: false, pending: Vec::new() }.wait();
    kill(witness.as_raw(), libc::SIGKILL);
    let _ = waitpid(witness, None);
    Ok(status)
}

/// Runs the program in a child, and reports its PID and its exit status. `program` must exec the program with the step's signal mask. PRoot
/// traces this process, too. It blocks all signals: one that ended it before the program would lose the program's exit status.
pub(super) fn run_inside(report: i32, program: impl FnOnce() -> i32) -> io::Result<u8> {
    let report = adopt_descriptor(report);
    fcntl(&report, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    block_all();
    let program = fork(program)?;
    write(&report, &program.as_raw().to_le_bytes())?;
    // Blocks until the program has ended, and leaves it as a zombie.
    let _ = nix::sys::wait::waitid(nix::sys::wait::Id::Pid(program), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
    let status = reap(program);
    write(&report, &status.into_raw().to_le_bytes())?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(super::NOT_STARTED))
}

fn signals() -> nix::Result<SignalFd> {
    SignalFd::with_flags(&SigSet::all(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// Reports the signals that other processes send to the witness.
fn witness(witnessed: &OwnedFd) -> i32 {
    let Ok(signals) = signals() else { return 1 };
    let _ = set_pdeathsig(Signal::SIGKILL);
    loop {
        let mut ready = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut ready, PollTimeout::NONE);
        for signal in read_sent_signals(&signals) {
            let _ = write(witnessed, &[signal.to_le_bytes()[0]]);
        }
    }
}

/// The signals that other processes sent since the last call. A terminal's signals come from the kernel, and the program receives them directly.
fn read_sent_signals(signals: &SignalFd) -> Vec<i32> {
    let mut all = Vec::new();
    while let Ok(Some(info)) = signals.read_signal() {
        if info.ssi_code <= 0 {
            all.extend(i32::try_from(info.ssi_signo));
        }
    }
    all
}

struct Step {
    proot: Pid,
    /// The program's PID, once [`run_inside`] has reported it.
    program: Option<i32>,
    signals: SignalFd,
    /// The pipe with the signals that the witness received.
    witnessed: OwnedFd,
    reports: OwnedFd,
    /// Whether the pipe of the reports is closed.
    is_pipe_closed: bool,
    pending: Vec<PendingSignal>,
}

impl Step {
    /// Waits until PRoot ends. Returns the exit status of the program, or that of PRoot if [`run_inside`] did not report one.
    fn wait(mut self) -> ExitStatus {
        let mut status = None;
        loop {
            // The end of PRoot also arrives as a signal (SIGCHLD). A closed pipe is not polled, because it would always be ready.
            let descriptors = [self.signals.as_fd(), self.reports.as_fd()];
            let open = if self.is_pipe_closed || status.is_some() { &descriptors[..1] } else { &descriptors };
            let mut ready: Vec<PollFd<'_>> = open.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
            let _ = poll(&mut ready, self.timeout());
            while let Some(number) = self.read_report().filter(|_| status.is_none()) {
                if self.program.is_none() {
                    self.program = Some(number);
                } else {
                    status = Some(ExitStatus::from_raw(number));
                    kill(self.proot.as_raw(), libc::SIGQUIT);
                }
            }
            self.forward();
            if let Some(proot_status) = exit_status(self.proot) {
                return status.or_else(|| self.read_report().map(ExitStatus::from_raw)).unwrap_or(proot_status);
            }
        }
    }

    /// The next number that [`run_inside`] wrote.
    fn read_report(&mut self) -> Option<i32> {
        let mut bytes = [0; 4];
        let length = read(&self.reports, &mut bytes);
        self.is_pipe_closed |= length == Ok(0);
        (length == Ok(4)).then(|| i32::from_le_bytes(bytes))
    }

    fn timeout(&self) -> PollTimeout {
        let due = self.pending.iter().map(|received| received.due.saturating_duration_since(Instant::now())).min();
        // Rounded up to the next millisecond, so that the due time has passed.
        let wait = due.map(|wait| wait + Duration::from_millis(1));
        wait.map_or(PollTimeout::NONE, |wait| PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX))
    }

    /// Forwards the signals that were sent to this process alone. Those that are due before the program's PID is known are dropped.
    fn forward(&mut self) {
        let now = Instant::now();
        let sent = read_sent_signals(&self.signals).into_iter();
        self.pending.extend(sent.map(|signal| PendingSignal { signal, due: now + WITNESS_TIMEOUT }));
        let mut buffer = [0; 64];
        while let Ok(length @ 1..) = read(&self.witnessed, &mut buffer) {
            for signal in &buffer[..length] {
                if let Some(at) = self.pending.iter().position(|received| received.signal == i32::from(*signal)) {
                    self.pending.remove(at);
                }
            }
        }
        let program = self.program;
        self.pending.retain(|received| {
            if let Some(program) = program.filter(|_| received.due <= now) {
                kill(program, received.signal);
            }
            received.due > now
        });
    }
}

/// The exit status of a child, if it has ended.
fn exit_status(child: Pid) -> Option<ExitStatus> {
    match waitpid(child, Some(WaitPidFlag::WNOHANG)) {
        Ok(WaitStatus::Exited(_, code)) => Some(ExitStatus::from_raw(code << 8)),
        Ok(WaitStatus::Signaled(_, signal, _)) => Some(ExitStatus::from_raw(signal as i32)),
        Ok(_) | Err(nix::Error::EINTR) => None,
        Err(_) => Some(ExitStatus::from_raw(libc::SIGKILL)),
    }
}
