//! Stops processes of users temporarily.
//!
//! A helper process resumes them, even if this program is killed. It is started before the first process is stopped, receives
//! the PID of each process over a pipe before that process is stopped, and resumes all of them when the pipe is closed.

use std::collections::BTreeSet;
use std::io::{BufRead, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use sys::open_files;
use sys::proc::{Handle, Process};

/// Maximum number of rounds: each stops the processes that were created since the last one.
const MAX_PASSES: usize = 50;
/// How long to wait for a killed process to end, in ms.
const END_TIMEOUT_MS: u16 = 200;

/// Processes by PID and start time.
type List = BTreeSet<(i32, u64)>;

/// The processes that this program has stopped. They stay stopped until [`Self::finish`], or until this program ends.
#[derive(Debug, Default)]
pub(crate) struct Stopped {
    helper: Option<Child>,
    list: List,
}

impl Stopped {
    /// Stops all processes of these users, including those that are created meanwhile. Gives up after [`MAX_PASSES`], or if the helper fails.
    pub(crate) fn stop_all(&mut self, uids: &BTreeSet<u32>) {
        for _ in 0..MAX_PASSES {
            let is_running = |process: &Process| uids.contains(&process.uid) && !open_files::is_stopped(process);
            let running: Vec<Process> = open_files::user_processes().into_iter().filter(is_running).collect();
            let mut handles = running.iter().filter_map(|process| Some((process.key(), process.handle()?)));
            if running.is_empty() || !handles.all(|(key, handle)| self.stop(key, &handle)) {
                return;
            }
        }
    }

    /// Stops a process, if it is sure to be resumed. Returns whether it is stopped.
    fn stop(&mut self, key: (i32, u64), handle: &Handle) -> bool {
        if self.helper.is_none() {
            self.helper = start_helper().ok();
        }
        // A write to a pipe without a reader fails instead of killing this process, because std ignores SIGPIPE.
        let pipe = self.helper.as_mut().and_then(|helper| helper.stdin.as_mut());
        let is_recorded = pipe.is_some_and(|pipe| pipe.write_all(format!("{}:{}\n", key.0, key.1).as_bytes()).is_ok());
        if is_recorded {
            self.list.insert(key);
            handle.send(Signal::SIGSTOP);
        }
        is_recorded
    }

    /// Has the helper resume the stopped processes. If the helper fails, this process resumes them.
    #[expect(clippy::disallowed_methods, reason = "a helper that ends at once; this process is not PID 1")]
    pub(crate) fn finish(mut self) {
        let Some(mut helper) = self.helper.take() else { return };
        drop(helper.stdin.take());
        if !helper.wait().is_ok_and(|status| status.success()) {
            resume(&self.list);
        }
    }
}

/// Starts the helper in its own process group, so that it outlives this program.
#[expect(clippy::disallowed_methods, reason = "`finish` waits for it; if this process is killed, PID 1 reaps it")]
fn start_helper() -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["prolog", "--resume"]).env_clear().process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// The helper: reads processes until the input ends, and resumes them.
pub fn resume_after(input: impl BufRead) {
    resume(&read(input));
}

/// Parses one line `PID:START_TIME` per process. A line that was cut off when its writer was killed is left out: that process was not stopped.
fn read(mut input: impl BufRead) -> List {
    let (mut list, mut line) = (List::new(), String::new());
    while input.read_line(&mut line).is_ok_and(|read| read > 0) {
        let process = line.strip_suffix('\n').and_then(|line| line.split_once(':'));
        list.extend(process.and_then(|(pid, start)| Some((pid.parse().ok()?, start.parse().ok()?))));
        line.clear();
    }
    list
}

fn resume(list: &List) {
    for (pid, start) in list {
        let _ = Handle::of(*pid, *start).map(|handle| handle.send(Signal::SIGCONT));
    }
}

/// Waits until a killed process has ended, but at most [`END_TIMEOUT_MS`]. The kernel has closed the descriptors of an ended process, but closes
/// an io_uring(7) ring a moment later.
pub(crate) fn await_end(handle: &Handle) {
    if let Some(descriptor) = handle.descriptor() {
        let _ = poll(&mut [PollFd::new(descriptor, PollFlags::POLLIN)], PollTimeout::from(END_TIMEOUT_MS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_processes_up_to_truncated_line() {
        assert_eq!(read("1:10\n2:20\n\n3:30\n4:4".as_bytes()), List::from([(1, 10), (2, 20), (3, 30)]));
        assert_eq!(read("nonsense\n1\n:\nx:1\n".as_bytes()), List::new());
    }
}
