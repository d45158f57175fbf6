//! Stops processes of users for a while.
//!
//! A helper resumes them: it is started before the first is stopped, gets each by a pipe before it is stopped, and acts when the
//! pipe ends. So they are resumed even if this program is killed.

use std::collections::BTreeSet;
use std::io::{BufRead, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use sys::leftovers::Handle;
use sys::open_files::{self, Process};
use sys::proc::{self, parse};
use sys::sockets;

/// How long processes stay stopped at most: the longest pause before the unit's restart, and its start.
const MAX_STOP: Duration = Duration::from_secs(6);
/// Maximum number of rounds: each stops the processes that were created since the last one.
const MAX_PASSES: usize = 50;
/// The limit for the end of a killed process, in ms.
const END_TIMEOUT_MS: u16 = 200;

/// Processes by PID and start time.
type List = BTreeSet<(i32, u64)>;

/// The processes that this program has stopped.
#[derive(Debug)]
pub(crate) struct Stopped {
    port: Option<u16>,
    helper: Option<Child>,
    list: List,
}

impl Stopped {
    /// They stay stopped until this program ends, and then until a daemon listens on the port.
    pub(crate) const fn until_listens(port: u16) -> Self {
        Self { port: Some(port), helper: None, list: List::new() }
    }

    /// They stay stopped until [`Self::finish`], or until this program ends.
    pub(crate) const fn until_end() -> Self {
        Self { port: None, helper: None, list: List::new() }
    }

    /// Like [`Self::until_end`], with the helper started.
    pub(crate) fn prepared() -> Self {
        Self { helper: start_helper(None).ok(), ..Self::until_end() }
    }

    /// Stops all processes of these users, also those that are created meanwhile, except those of these sessions.
    pub(crate) fn stop_all(&mut self, uids: &BTreeSet<u32>, spared_sessions: &[i32]) {
        for _ in 0..MAX_PASSES {
            let is_running = |process: &Process| {
                uids.contains(&process.uid) && !process.is_stopped && !spared_sessions.contains(&process.session)
            };
            let running: Vec<Process> = open_files::user_processes().into_iter().filter(is_running).collect();
            if running.is_empty() || !handles(running).iter().all(|(process, handle)| self.stop(process, handle)) {
                return;
            }
        }
    }

    /// Like [`Self::stop_all`], by user ID and as fast as possible: the newest first, and without reading their descriptors.
    pub(crate) fn stop_users(&mut self, is_selected: impl Fn(u32) -> bool) {
        for _ in 0..MAX_PASSES {
            let mut pids: Vec<i32> = proc::pids().collect();
            pids.sort_unstable_by(|one, other| other.cmp(one));
            let mut has_found = false;
            for pid in pids {
                let uid = proc::status(pid).and_then(|status| parse::numbers(&status, "Uid"));
                let Some(stat) = proc::stat(pid).filter(|_| uid.is_some_and(|[uid]| is_selected(uid))) else {
                    continue;
                };
                let key = (pid, stat.start);
                // If only the first thread has ended, its state is not that of the others.
                let is_done = matches!(stat.state, 'T' | 't') || stat.state == 'Z' && self.list.contains(&key);
                if let Some(handle) = Handle::of(pid, stat.start).filter(|_| !stat.is_dead() && !is_done) {
                    has_found |= self.stop_running(key, &handle);
                }
            }
            if !has_found {
                return;
            }
        }
    }

    /// Stops a process that runs, if it is sure to be resumed. Returns whether it is stopped.
    pub(crate) fn stop(&mut self, process: &Process, handle: &Handle) -> bool {
        process.is_stopped && !self.list.contains(&process.key()) || self.stop_running(process.key(), handle)
    }

    fn stop_running(&mut self, key: (i32, u64), handle: &Handle) -> bool {
        if self.helper.is_none() {
            self.helper = start_helper(self.port).ok();
        }
        let is_recorded = self.record('+', key);
        if is_recorded {
            self.list.insert(key);
            handle.send(Signal::SIGSTOP);
        }
        is_recorded
    }

    /// Resumes a process now, unless its user had stopped it.
    pub(crate) fn resume(&mut self, process: &Process, handle: &Handle) {
        if self.list.remove(&process.key()) {
            handle.send(Signal::SIGCONT);
            self.record('-', process.key());
        }
    }

    /// Has the helper resume the stopped processes.
    #[expect(clippy::disallowed_methods, reason = "a helper that ends at once; this process is not PID 1")]
    pub(crate) fn finish(mut self) {
        let Some(mut helper) = self.helper.take() else { return };
        let is_helper_running = helper.stdin.as_mut().is_some_and(|pipe| pipe.write_all(b"\n").is_ok());
        if !is_helper_running {
            resume(&self.list);
        }
        drop(helper.stdin.take());
        if self.port.is_none() {
            let _ = helper.wait();
        }
    }

    /// Returns whether the helper received the entry. A pipe without a reader fails; std ignores SIGPIPE.
    fn record(&mut self, sign: char, (pid, start): (i32, u64)) -> bool {
        let pipe = self.helper.as_mut().and_then(|helper| helper.stdin.as_mut());
        pipe.is_some_and(|pipe| pipe.write_all(format!("{sign}{pid}:{start}\n").as_bytes()).is_ok())
    }
}

/// Starts the helper in its own process group, so that it outlives this program.
#[expect(clippy::disallowed_methods, reason = "PID 1 reaps it: this process ends before it")]
fn start_helper(port: Option<u16>) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    let port = port.unwrap_or_default().to_string();
    command.args(["free-port", "--port", &port, "--unit", "", "--resume"]).env_clear().process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// The helper: reads processes until the input ends, waits until a daemon listens on the port unless it is 0, and resumes them.
pub fn resume_after_listen(port: u16, input: impl BufRead) {
    let list = read(input);
    let begin = Instant::now();
    let slurm = sys::users::local("slurm").map(|user| user.uid);
    let is_daemons = |uid: u32| uid == 0 || Some(uid) == slurm;
    let listens = || sockets::listeners(port).is_some_and(|found| found.iter().any(|tcp| is_daemons(tcp.uid)));
    while port != 0 && !list.is_empty() && begin.elapsed() < MAX_STOP && !listens() {
        crate::free_port::pause();
    }
    resume(&list);
}

/// `+PID:START` adds a process, `-PID:START` removes it. A line that was cut off when its writer was killed is left out: that process
/// was not stopped.
fn read(mut input: impl BufRead) -> List {
    let mut list = List::new();
    let mut line = String::new();
    while input.read_line(&mut line).is_ok_and(|read| read > 0) {
        let words = line.strip_suffix('\n').and_then(|line| line.split_at_checked(1));
        let process = words.and_then(|(sign, process)| {
            let (pid, start) = process.split_once(':')?;
            Some((sign, (pid.parse().ok()?, start.parse().ok()?)))
        });
        match process {
            Some(("+", process)) => drop(list.insert(process)),
            Some(("-", process)) => drop(list.remove(&process)),
            _ => {}
        }
        line.clear();
    }
    list
}

fn resume(list: &List) {
    for (pid, start) in list {
        let _ = Handle::of(*pid, *start).map(|handle| handle.send(Signal::SIGCONT));
    }
}

/// Handles of those processes that still run.
pub(crate) fn handles(processes: Vec<Process>) -> Vec<(Process, Handle)> {
    processes.into_iter().filter_map(|process| process.handle().map(|handle| (process, handle))).collect()
}

/// Waits for the end of a killed process, which has then closed its descriptors; a ring (io_uring(7)) is closed a moment later.
pub(crate) fn await_end(handle: &Handle) {
    if let Some(descriptor) = handle.descriptor() {
        let _ = poll(&mut [PollFd::new(descriptor, PollFlags::POLLIN)], PollTimeout::from(END_TIMEOUT_MS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_still_stopped_processes_up_to_truncated_line() {
        assert_eq!(read("+1:10\n+2:20\n\n-1:10\n+3:30\n+4:4".as_bytes()), List::from([(2, 20), (3, 30)]));
        assert_eq!(read("nonsense\n+1\n+:\n-9:9\n+x:1\n".as_bytes()), List::new());
    }
}
