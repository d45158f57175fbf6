//! Runs a program with a timeout.
//!
//! Not for PID 1, which must not block. No thread is started, because the caller may fork afterwards.

pub mod answer;
mod ending;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::system_calls::pidfd_open;
use crate::{outer_job, secret_variables};
use answer::Answer;
pub use ending::end;

/// The number of bytes after which the reading of a stream ends. Slurm's JSON of ten thousand jobs is smaller.
const MAX_OUTPUT: usize = 256 << 20;
/// The polling interval for the exit on a kernel without pidfd.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs `program` from PATH, and kills it at the deadline.
pub fn ask<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[S], deadline: Duration) -> Answer {
    // Callers compare messages with English text.
    match output(Command::new(program).args(arguments).env("LC_ALL", "C"), deadline) {
        Ok(output) => Answer::Ended {
            succeeded: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        },
        Err(error) => match error.kind() {
            ErrorKind::TimedOut => Answer::Silent,
            // `PermissionDenied` also means that this user may not search a directory of PATH.
            ErrorKind::NotFound | ErrorKind::PermissionDenied => Answer::Missing,
            // Too many processes or open files, too long arguments, no memory.
            _ => Answer::Ended {
                succeeded: false,
                stdout: String::new(),
                stderr: format!("cannot be executed: {error}"),
            },
        },
    }
}

/// Runs `command` with empty standard input, and returns its output and exit status.
///
/// # Errors
/// It cannot be executed, has not ended by the deadline (`TimedOut`), or cannot be waited for. If it is still running, it is killed.
pub fn output(command: &mut Command, deadline: Duration) -> Result<Output> {
    Running::start(command, b"")?.finish(deadline, MAX_OUTPUT)
}

/// A running program.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Starts the program without the variables of secrets and of an outer job. `input` is its standard input and must fit into a pipe
    /// (64 KiB).
    ///
    /// # Errors
    /// It cannot be executed, or `input` is too long.
    #[expect(clippy::disallowed_methods, reason = "this process is not PID 1, so it may wait for its children")]
    pub fn start(command: &mut Command, input: &[u8]) -> Result<Self> {
        ending::reap();
        secret_variables::remove_from(command);
        outer_job::remove_from(command);
        let stdin = if input.is_empty() { Stdio::null() } else { filled_pipe(input)?.into() };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map(Self)
    }

    /// The PID.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Returns the output and the exit status. A stream is closed once `max_output` bytes of it have been read; the last read may exceed
    /// this limit by up to 8 KiB.
    ///
    /// # Errors
    /// The program has not ended by the deadline (`TimedOut`), or cannot be waited for. It is then killed with its descendants.
    pub fn finish(mut self, deadline: Duration, max_output: usize) -> Result<Output> {
        let output = self.wait(Instant::now() + deadline, max_output);
        if output.is_err() {
            end(self.0);
        }
        output
    }

    /// Waits for the exit, not for the end of the output: a process that the program leaves in the background keeps the pipes
    /// open.
    fn wait(&mut self, until: Instant, max_output: usize) -> Result<Output> {
        let pipes = [self.0.stdout.take().map(OwnedFd::from), self.0.stderr.take().map(OwnedFd::from)];
        let mut output = [Vec::new(), Vec::new()];
        let mut open: Vec<(OwnedFd, &mut Vec<u8>)> = pipes.into_iter().flatten().zip(&mut output).collect();
        for (pipe, _) in &open {
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        let handle = i32::try_from(self.pid()).ok().and_then(pidfd_open);
        loop {
            let watched = open.iter().map(|(pipe, _)| pipe).chain(&handle);
            // Before Linux 5.3 there is no pidfd that reports the exit.
            let wake_up = if handle.is_some() { until } else { until.min(Instant::now() + POLL_INTERVAL) };
            match wait_for(watched, wake_up) {
                Err(error) if error.kind() == ErrorKind::TimedOut && Instant::now() < until => {}
                ready => drop(ready?),
            }
            // The exit is checked first, so that the read below gets all output written before it.
            let status = self.0.try_wait()?;
            // The pipe of a program that writes beyond the limit is closed.
            open.retain_mut(|(pipe, output)| read(pipe, output, max_output));
            if let Some(status) = status {
                let [stdout, stderr] = output;
                return Ok(Output { status, stdout, stderr });
            }
        }
    }
}

fn filled_pipe(input: &[u8]) -> Result<OwnedFd> {
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    File::from(write).write_all(input)?;
    fcntl(&read, FcntlArg::F_SETFL(OFlag::empty()))?;
    Ok(read)
}

/// Waits until one of these descriptors is readable.
fn wait_for<'a>(files: impl Iterator<Item = &'a OwnedFd>, until: Instant) -> Result<()> {
    let mut polled: Vec<PollFd> = files.map(|file| PollFd::new(file.as_fd(), PollFlags::POLLIN)).collect();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // Round up to whole milliseconds.
        let left = PollTimeout::try_from(left + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
        match poll(&mut polled, left) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(0) if Instant::now() >= until => return Err(Error::from(ErrorKind::TimedOut)),
            Ok(0) => {}
            Ok(_) => return Ok(()),
        }
    }
}

/// Reads the available bytes. Returns `false` at the end of the stream, at the limit and on an error.
fn read(pipe: &OwnedFd, output: &mut Vec<u8>, max_output: usize) -> bool {
    let mut chunk = [0; 8192];
    while output.len() < max_output {
        match nix::unistd::read(pipe, &mut chunk) {
            Ok(0) => return false,
            Ok(length) => output.extend_from_slice(&chunk[..length]),
            Err(Errno::EINTR) => {}
            Err(errno) => return errno == Errno::EAGAIN,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    #[test]
    fn distinguishes_exit_timeout_and_missing_program() {
        assert_eq!(
            ask("sh", &["-c", "echo out; echo err >&2; exit 3"], TIMEOUT),
            Answer::Ended { succeeded: false, stdout: "out\n".to_owned(), stderr: "err\n".to_owned() }
        );
        assert_eq!(ask("/nowhere/docker", &["info"], TIMEOUT), Answer::Missing);
        // Linux: 128 KiB for one argument.
        let long = "x".repeat(200 << 10);
        let answer = ask("true", &[long], TIMEOUT).output_of("true").unwrap_err();
        assert!(answer.contains("Argument list too long"), "{answer}");
        let soon = Duration::from_millis(50);
        for hangs in ["exec sleep 600", "exec >&- 2>&-; exec sleep 600"] {
            assert_eq!(ask("sh", &["-c", hangs], soon), Answer::Silent, "{hangs}");
        }
    }

    /// Checks a single PID because parallel tests have children, too.
    fn is_child(pid: i32) -> bool {
        crate::proc::children(i32::try_from(std::process::id()).unwrap()).contains(&pid)
    }

    #[test]
    fn returns_on_exit_and_keeps_background_process() {
        let output = output(Command::new("sh").args(["-c", "sleep 600 & echo $!; exit 3"]), 9 * TIMEOUT).unwrap();
        assert_eq!(output.status.code(), Some(3));
        let background: i32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        assert!(!crate::proc::stat(background).unwrap().is_dead());
        crate::system_calls::pidfd_send_signal(&pidfd_open(background).unwrap(), nix::libc::SIGKILL);
    }

    #[test]
    fn timeout_kills_descendants_and_leaves_no_zombie() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pids");
        // One descendant has its own session.
        let script = format!("setsid sleep 601 & sleep 602 & echo $! $$ > {}; wait", file.display());
        let child = Running::start(Command::new("sh").args(["-c", &script]), b"").unwrap();
        let pids: Vec<i32> = loop {
            let pids = std::fs::read_to_string(&file).unwrap_or_default();
            if pids.ends_with('\n') {
                break pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
            }
            std::thread::yield_now();
        };
        let descendants = crate::proc::children(pids[1]);
        assert_eq!(descendants.len(), 2);
        assert_eq!(child.finish(Duration::ZERO, 4096).unwrap_err().kind(), ErrorKind::TimedOut);
        let begin = Instant::now();
        // The next start reaps a child that took longer than KILL_TIMEOUT to die.
        while is_child(pids[1]) {
            assert!(begin.elapsed() < TIMEOUT, "a zombie is left");
            ending::reap();
            std::thread::yield_now();
        }
        for pid in descendants {
            let is_gone = || crate::proc::stat(pid).is_none_or(|stat| stat.is_dead());
            while !is_gone() {
                assert!(begin.elapsed() < TIMEOUT, "{pid} is still running");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn does_not_pass_secrets_to_tools() {
        let mut command = Command::new("env");
        let output = output(command.env(secret_variables::MUNGE_KEY, "x").env("OTHER", "y"), TIMEOUT).unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        assert!(output.contains("OTHER=y") && !output.contains("MUNGE_KEY"), "{output}");
    }

    #[test]
    fn truncates_excessive_output() {
        let output = Running::start(Command::new("sh").args(["-c", "cat; exec yes"]), b"fed\n").unwrap();
        let output = output.finish(TIMEOUT, 4096).unwrap();
        assert!(output.stdout.starts_with(b"fed\ny\n") && output.stdout.len() < 3 * 8192, "{}", output.stdout.len());
        assert!(!output.status.success());
    }
}
