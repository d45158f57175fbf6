//! Runs a probe in a child process, so that a driver that hangs, crashes or sends invalid data affects only the child.
//!
//! The child sends one line of JSON per answer over a pipe. Several sandboxes can run at the same time.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::marker::PhantomData;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, close, getpid, getppid, pipe2};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::system_calls::fork;

/// The maximum length of a reply in bytes. A thousand GPUs need a fifth of it.
const MAX_REPLY_LENGTH: usize = 4 << 20;
/// How long a child may take to become reapable after its pipe has closed.
const REAP_TIMEOUT: Duration = Duration::from_millis(500);

/// Why there is no valid reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The child did not reply by the deadline; it is killed when its [`Sandbox`] is dropped.
    #[error("timed out after {}", seconds(*.0))]
    TimedOut(Duration),
    /// The child was killed by this signal.
    #[error("crashed ({0})")]
    Crashed(Signal),
    /// The child exited with this code before it replied.
    #[error("exited with code {0} without a reply")]
    Exited(i32),
    /// The child's reply could not be parsed, was too long, or was missing although the child kept running.
    #[error("sent an unparsable reply: {0}")]
    Malformed(String),
    /// No child could be started because no process or pipe was available.
    #[error("could not be started ({0})")]
    NotStarted(#[from] Errno),
    /// The pipe from the child could not be read.
    #[error("sent no readable reply ({0})")]
    Unreadable(Errno),
}

impl SandboxError {
    /// Cause and fix if no process could be started, or its pipe could not be read. For the other errors they depend on the probe.
    pub const NO_PROCESS: (&str, &str) = (
        "the container has reached its limit on processes, file descriptors or memory",
        "raise the limits (docker run --pids-limit, --ulimit nofile, --memory)",
    );
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// A running probe.
#[derive(Debug)]
pub struct Sandbox<T> {
    child: Result<Child, Errno>,
    started: Instant,
    answer: PhantomData<T>,
}

impl<T: Serialize + DeserializeOwned> Sandbox<T> {
    /// Forks and runs `probe` in the child, which dies with the calling thread. The process must be single-threaded.
    pub fn start(probe: impl FnOnce() -> T) -> Self {
        Self::new(Child::fork(|pipe| send(pipe, &probe())))
    }

    /// Like [`Self::start`] for a probe that answers several times: see [`Self::next`].
    pub fn start_stream(probe: impl FnOnce(&mut dyn FnMut(&T) -> io::Result<()>) -> io::Result<()>) -> Self {
        Self::new(Child::fork(|pipe| probe(&mut |answer| send(pipe, answer))))
    }

    fn new(child: Result<Child, Errno>) -> Self {
        Self { child, started: Instant::now(), answer: PhantomData }
    }

    /// Waits for the next answer until `deadline`. Call this again after a timeout, but not after any other error.
    ///
    /// # Errors
    /// As for [`Self::finish`].
    pub fn next(&mut self, deadline: Instant) -> Result<T, SandboxError> {
        let started = std::mem::replace(&mut self.started, Instant::now());
        match &mut self.child {
            Ok(child) => child.answer(started, deadline),
            Err(errno) => Err(SandboxError::NotStarted(*errno)),
        }
    }

    /// Waits for the answer until `deadline`. Afterwards the child is gone or killed.
    ///
    /// # Errors
    /// Why there is no valid reply.
    pub fn finish(self, deadline: Instant) -> Result<T, SandboxError> {
        self.child?.answer(self.started, deadline)
    }
}

/// The outcome of reading an answer.
enum ReadOutcome {
    Line(Vec<u8>),
    Closed,
    TooLong,
    Deadline,
}

/// The child process; dropping it kills it.
#[derive(Debug)]
struct Child {
    pid: Pid,
    pipe: File,
    /// Bytes read after the last complete line.
    unread: Vec<u8>,
    reaped: bool,
}

impl Child {
    fn fork(work: impl FnOnce(&mut File) -> io::Result<()>) -> Result<Self, Errno> {
        // Close-on-exec: NVML runs nvidia-modprobe, which must not keep the pipe open.
        let (read_end, write_end) = pipe2(OFlag::O_CLOEXEC)?;
        let parent = getpid();
        // The verbs that run detection are single-threaded.
        let pid = fork(|| {
            // This closes only the child's copy.
            let _ = close(read_end.as_raw_fd());
            run_child(parent, write_end, work)
        })?;
        Ok(Self { pid, pipe: File::from(read_end), unread: Vec::new(), reaped: false })
    }

    fn answer<T: DeserializeOwned>(&mut self, started: Instant, deadline: Instant) -> Result<T, SandboxError> {
        match self.read_line(deadline) {
            Ok(ReadOutcome::Line(line)) => {
                serde_json::from_slice(&line).map_err(|error| SandboxError::Malformed(error.to_string()))
            }
            Ok(ReadOutcome::Closed) => Err(self.exit_error()),
            Ok(ReadOutcome::TooLong) => {
                Err(SandboxError::Malformed(format!("more than {} MiB", MAX_REPLY_LENGTH >> 20)))
            }
            Ok(ReadOutcome::Deadline) => Err(SandboxError::TimedOut(deadline.saturating_duration_since(started))),
            Err(error) => Err(SandboxError::Unreadable(error)),
        }
    }

    fn read_line(&mut self, deadline: Instant) -> Result<ReadOutcome, Errno> {
        let mut chunk = [0; 8192];
        loop {
            // A line of JSON contains no raw newline. The end of the pipe is not awaited, because releasing a GPU can
            // take the driver a second.
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let rest = self.unread.split_off(end + 1);
                return Ok(ReadOutcome::Line(std::mem::replace(&mut self.unread, rest)));
            }
            let remaining = deadline.saturating_duration_since(Instant::now());
            match self.is_readable(remaining) {
                Ok(true) => {}
                Ok(false) => return Ok(ReadOutcome::Deadline),
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error),
            }
            match self.pipe.read(&mut chunk) {
                Ok(0) => return Ok(ReadOutcome::Closed),
                Ok(count) => self.unread.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))),
            }
            if self.unread.len() > MAX_REPLY_LENGTH {
                return Ok(ReadOutcome::TooLong);
            }
        }
    }

    fn is_readable(&self, remaining: Duration) -> Result<bool, Errno> {
        // Rounded up, to avoid spinning through the last part of a millisecond.
        let millis = remaining.as_millis() + u128::from(!remaining.is_zero());
        let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
        Ok(poll(&mut [PollFd::new(self.pipe.as_fd(), PollFlags::POLLIN)], timeout)? > 0)
    }

    /// The error for a child that closed its pipe without an answer.
    fn exit_error(&mut self) -> SandboxError {
        match self.reap(REAP_TIMEOUT) {
            Some(WaitStatus::Exited(_, code)) => SandboxError::Exited(code),
            Some(WaitStatus::Signaled(_, signal, _)) => SandboxError::Crashed(signal),
            _ => {
                SandboxError::Malformed("it is empty, because the process closed its pipe but kept running".to_owned())
            }
        }
    }

    /// Reaps the child, but gives up after `timeout`: a process stuck in the driver never ends.
    fn reap(&mut self, timeout: Duration) -> Option<WaitStatus> {
        let deadline = Instant::now() + timeout;
        while !self.reaped {
            match waitpid(self.pid, Some(WaitPidFlag::WNOHANG)) {
                // No portable call waits for a child with a timeout (pidfd_open needs Linux 5.3, and some seccomp profiles
                // refuse it), hence the polling.
                Ok(WaitStatus::StillAlive) if Instant::now() < deadline => {
                    let _ = poll(&mut [], PollTimeout::from(1_u8));
                }
                Ok(WaitStatus::StillAlive) => return None,
                Ok(status) => {
                    self.reaped = true;
                    return Some(status);
                }
                Err(Errno::EINTR) => {}
                Err(_) => self.reaped = true,
            }
        }
        None
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            // The child was not reaped, so the PID is still its own. Releasing its GPUs can take a long time and its status is
            // not needed: if it is not dead at once, PID 1 reaps it after this process has ended.
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = waitpid(self.pid, Some(WaitPidFlag::WNOHANG));
        }
    }
}

/// The main function of the child; returns its exit code.
fn run_child(parent: Pid, pipe: OwnedFd, work: impl FnOnce(&mut File) -> io::Result<()>) -> i32 {
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
    if getppid() != parent {
        return 0;
    }
    // A crash is expected here, but must not leave a core dump on the host.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    discard_output(&pipe);
    i32::from(work(&mut File::from(pipe)).is_err())
}

fn send<T: Serialize>(pipe: &mut File, answer: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer).map_err(io::Error::other)?;
    line.push(b'\n');
    pipe.write_all(&line)
}

/// Redirects the standard streams to /dev/null, because libraries may write to them: standard output belongs to the verb, and may be JSON for
/// a program.
fn discard_output(pipe: &OwnedFd) {
    let Ok(null) = File::options().read(true).write(true).open("/dev/null") else { return };
    let _ = (nix::unistd::dup2_stdin(&null), nix::unistd::dup2_stdout(&null), nix::unistd::dup2_stderr(&null));
    debug_assert!(pipe.as_raw_fd() > 2, "Rust opens file descriptors 0, 1 and 2 before main");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system_calls::exit_now;

    /// Exceeded only by a sandbox that hangs.
    const HANG_TIMEOUT: Duration = Duration::from_secs(60);

    fn deadline() -> Instant {
        Instant::now() + HANG_TIMEOUT
    }

    fn sandbox_error<T: Serialize + DeserializeOwned + std::fmt::Debug>(probe: impl FnOnce() -> T) -> SandboxError {
        Sandbox::start(probe).finish(deadline()).unwrap_err()
    }

    #[test]
    fn answer_round_trips() {
        let text = "a\nb\0\u{7f}".repeat(100_000);
        assert_eq!(Sandbox::start(|| text.clone()).finish(deadline()), Ok(text));
    }

    #[test]
    fn runs_sandboxes_in_parallel() {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let (mut reader, mut writer) = (File::from(reader), File::from(writer));
        // The first child waits for a byte from the second.
        let first = Sandbox::start(|| {
            let mut byte = [0];
            reader.read_exact(&mut byte).map(|()| byte[0]).ok()
        });
        let second = Sandbox::start(|| writer.write_all(&[7]).is_ok());
        assert_eq!(first.finish(deadline()), Ok(Some(7)));
        assert_eq!(second.finish(deadline()), Ok(true));
    }

    #[test]
    fn kills_endless_program_at_deadline() {
        let started = Instant::now();
        let limit = Duration::from_millis(100);
        let sandbox = Sandbox::<u8>::start(|| {
            loop {
                std::hint::spin_loop();
            }
        });
        let pid = sandbox.child.as_ref().unwrap().pid;
        assert!(matches!(sandbox.finish(started + limit), Err(SandboxError::TimedOut(_))));
        assert!(started.elapsed() >= limit && started.elapsed() < HANG_TIMEOUT);
        // A child that is not yet dead is left to PID 1, here to this test.
        let status = waitpid(pid, None);
        assert!(matches!(status, Err(Errno::ECHILD) | Ok(WaitStatus::Signaled(_, Signal::SIGKILL, _))), "{status:?}");
    }

    #[test]
    fn crash_reports_signal() {
        assert_eq!(sandbox_error::<u8>(|| std::process::abort()), SandboxError::Crashed(Signal::SIGABRT));
        let raise = || nix::sys::signal::raise(Signal::SIGFPE).is_ok();
        assert_eq!(sandbox_error(raise), SandboxError::Crashed(Signal::SIGFPE));
    }

    #[test]
    fn unreadable_pipe_is_not_a_failed_start() {
        let mut sandbox = Sandbox::start(|| 1);
        // A directory polls as readable, but cannot be read.
        sandbox.child.as_mut().unwrap().pipe = File::open("/").unwrap();
        assert_eq!(sandbox.finish(deadline()), Err(SandboxError::Unreadable(Errno::EISDIR)));
    }

    #[test]
    fn exit_without_answer_reports_exit_code() {
        assert_eq!(sandbox_error::<u8>(|| exit_now(0)), SandboxError::Exited(0));
        assert_eq!(sandbox_error::<u8>(|| exit_now(9)), SandboxError::Exited(9));
    }

    /// Serializes as a text but deserializes as a number.
    #[derive(Debug, serde::Deserialize)]
    struct MismatchedAnswer(#[expect(dead_code, reason = "never read")] u8);

    impl Serialize for MismatchedAnswer {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_str("seven")
        }
    }

    #[test]
    fn rejects_answer_of_wrong_type_or_size() {
        assert!(matches!(sandbox_error(|| MismatchedAnswer(7)), SandboxError::Malformed(why) if why.contains("seven")));
        let long_reply = || "x".repeat(MAX_REPLY_LENGTH + 9);
        assert_eq!(sandbox_error(long_reply), SandboxError::Malformed("more than 4 MiB".to_owned()));
    }

    #[test]
    fn library_output_reaches_neither_answer_nor_caller() {
        // Writes to the descriptors directly, as a C library does.
        let sandbox = Sandbox::start(|| {
            let junk = b"{\"junk\": 1}\n";
            let written = nix::unistd::write(io::stdout(), junk).and(nix::unistd::write(io::stderr(), junk));
            assert_eq!(written, Ok(junk.len()));
            std::fs::read_link("/proc/self/fd/1").ok()
        });
        assert_eq!(sandbox.finish(deadline()), Ok(Some("/dev/null".into())));
    }
}
