//! Runs a program of the host, with a deadline. EDGE.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::answer::Answer;

/// Runs `program`, looked for in PATH, and waits for its end until `deadline`. Then it is killed.
///
/// Starts a thread: nothing in this process may fork afterwards.
#[expect(clippy::disallowed_methods, reason = "this verb is nobody's PID 1: it may wait for the programs that it runs")]
pub fn ask<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[S], deadline: Duration) -> Answer {
    let mut command = Command::new(program);
    // Messages are compared with English words.
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(child) = command.spawn() else { return Answer::Missing };
    let pid = i32::try_from(child.id()).map(Pid::from_raw);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(child.wait_with_output()));
    match told.recv_timeout(deadline) {
        Ok(Ok(output)) => Answer::Ended {
            succeeded: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        },
        Ok(Err(_)) => Answer::Missing,
        Err(_) => {
            // It may also have closed nothing and be stuck in the kernel: the thread is left to it.
            let _ = pid.map(|pid| kill(pid, Signal::SIGKILL));
            Answer::Silent
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_ends_hangs_or_is_missing() {
        let some_time = Duration::from_secs(20);
        assert_eq!(
            ask("sh", &["-c", "echo out; echo err >&2; exit 3"], some_time),
            Answer::Ended { succeeded: false, stdout: "out\n".to_owned(), stderr: "err\n".to_owned() }
        );
        assert_eq!(ask("/nowhere/docker", &["info"], some_time), Answer::Missing);
        assert_eq!(ask("sleep", &["600"], Duration::from_millis(50)), Answer::Silent);
    }
}
