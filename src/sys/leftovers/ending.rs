//! Ends the processes that a job left behind, within a second.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use super::look::{self, Mark};
use super::{Evidence, Job, leftovers};
use crate::proc::{Handle, Process};
use crate::tool;
use model::message;
use model::message::Report;

/// The time limit. After it, only the last rounds of SIGKILL follow.
const DEADLINE: Duration = Duration::from_millis(700);
/// The timeout for reading evidence, because processes can block it.
const EVIDENCE_TIMEOUT: Duration = Duration::from_millis(150);
/// The wait after SIGTERM.
const SIGTERM_WAIT: Duration = Duration::from_millis(250);
/// The wait after a round of SIGKILL.
const SIGKILL_WAIT: Duration = Duration::from_millis(20);
/// The wait after a round of SIGKILL past the deadline.
const LATE_SIGKILL_WAIT: Duration = Duration::from_millis(60);
/// The number of empty scans that prove that no leftovers exist. A process that keeps forking and exiting may escape a
/// single scan: its PID is gone before it is read.
const EMPTY_SCANS: usize = 8;
/// The maximum number of processes to name in the log; the others are counted.
const MAX_NAMED: usize = 10;

/// Ends the leftovers, and returns the messages for the log. `mark` is that of slurmd's descendants.
pub fn end(job: &Job, user: &str, mark: Mark) -> Vec<Report> {
    let mut search = Search {
        job,
        mark,
        until: Instant::now() + DEADLINE,
        evidence: BTreeMap::new(),
        found: BTreeMap::new(),
        user_has_only_leftovers: false,
    };
    let leftovers = search.scan();
    if leftovers.is_empty() {
        return Vec::new();
    }
    signal_all(&leftovers, Signal::SIGTERM, SIGTERM_WAIT);
    let surviving = search.scan();
    let all_obeyed_sigterm = surviving.is_empty();
    let left = search.kill(surviving);
    search.report(user, all_obeyed_sigterm, left)
}

struct Search<'a> {
    job: &'a Job,
    mark: Mark,
    until: Instant,
    evidence: BTreeMap<i32, Evidence>,
    /// All processes found so far, with their names.
    found: BTreeMap<i32, String>,
    /// Whether the user has no other processes in this container than leftovers.
    user_has_only_leftovers: bool,
}

impl Search<'_> {
    /// Inspects all processes, and returns the leftovers.
    fn scan(&mut self) -> Vec<Process> {
        // A PID that is dead in two scans in a row is a zombie, and hides no leftover.
        let mut known_dead = Vec::new();
        for _ in 0..EMPTY_SCANS {
            let (left, dead) = self.scan_once();
            if !left.is_empty() || dead == known_dead {
                return left;
            }
            known_dead = dead;
        }
        Vec::new()
    }

    /// The leftovers of one scan, and the PIDs that ended between being listed and being read.
    fn scan_once(&mut self) -> (Vec<Process>, Vec<i32>) {
        let (all, mut dead) = look::processes(self.mark, self.job.uid);
        let suspects = all.suspects(self.job);
        let new = suspects.into_iter().filter(|process| !self.evidence.contains_key(&process.pid));
        let new: Vec<Process> = new.cloned().collect();
        // If the user has no other job, no evidence is needed, except once for the report.
        if !new.is_empty() && (self.found.is_empty() || all.has_other_steps(self.job)) {
            self.evidence.extend(look::evidence(&new, self.until.min(Instant::now() + EVIDENCE_TIMEOUT)));
        }
        let known: BTreeSet<i32> = self.found.keys().copied().collect();
        let left = leftovers(&all, self.job, &self.evidence, &known);
        self.user_has_only_leftovers = all.user_has_only(self.job, &left);
        // A process that is exiting is not a leftover. It may be the epilog of another job, and its parent, which would
        // identify it, may be gone already.
        let (left, ending): (Vec<Process>, Vec<Process>) =
            left.into_iter().filter_map(|pid| all.get(pid).cloned()).partition(|process| {
                known.contains(&process.pid) || self.holds_gpu(process.pid) || look::is_running(process)
            });
        dead.extend(ending.iter().map(|process| process.pid));
        self.found.extend(left.iter().map(|process| (process.pid, process.name.clone())));
        (left, dead)
    }

    /// Kills these processes and their descendants until none is left or the deadline has passed; returns what is left.
    fn kill(&mut self, mut left: Vec<Process>) -> Vec<Process> {
        // Children of a dying process are found only after its death.
        let mut last_rounds = 3;
        while !left.is_empty() && last_rounds > 0 {
            let is_late = Instant::now() >= self.until;
            last_rounds -= u32::from(is_late);
            // A single system call hits all, even if they fork faster than they can be listed.
            if self.user_has_only_leftovers {
                kill_all_of_user(&left);
            }
            signal_all(&left, Signal::SIGKILL, if is_late { LATE_SIGKILL_WAIT } else { SIGKILL_WAIT });
            left = self.scan();
        }
        left
    }

    fn holds_gpu(&self, pid: i32) -> bool {
        self.evidence.get(&pid).is_some_and(|evidence| !evidence.devices.is_empty())
    }

    fn report(&self, user: &str, all_obeyed_sigterm: bool, left: Vec<Process>) -> Vec<Report> {
        let job = self.job.id;
        let how = if all_obeyed_sigterm { "ended with SIGTERM" } else { "ended with SIGTERM and SIGKILL" };
        let surviving_pids: BTreeSet<i32> = left.iter().map(|process| process.pid).collect();
        let mut ended: Vec<(&i32, &String)> =
            self.found.iter().filter(|(pid, _)| !surviving_pids.contains(pid)).collect();
        // Processes that held a GPU come first.
        ended.sort_by_key(|(pid, _)| !self.holds_gpu(**pid));
        let report = |(pid, name): &(&i32, &String)| {
            let devices = self.evidence.get(*pid).map(|evidence| evidence.devices.join(", ")).unwrap_or_default();
            Report::warn(match devices.is_empty() {
                true => message!(
                    "leftover-ended",
                    "job {job} of {user} left process {pid} ({name}) behind: {how}",
                    job,
                    user,
                    pid,
                    name,
                    how
                ),
                false => message!(
                    "leftover-ended",
                    "job {job} of {user} left process {pid} ({name}) behind, which held {devices} open: {how}",
                    job,
                    user,
                    pid,
                    name,
                    devices,
                    how
                ),
            })
        };
        let mut reports: Vec<Report> = ended.iter().take(MAX_NAMED).map(report).collect();
        if ended.len() > MAX_NAMED {
            reports.push(Report::warn(message!(
                "leftovers-ended",
                "job {job} of {user} left {count} more processes behind: {how}",
                job,
                user,
                count = ended.len() - MAX_NAMED,
                how
            )));
        }
        if let Some(survivor) = left.first() {
            reports.push(Report::error(message!(
                "leftovers-survive",
                "job {job} of {user} left {count} processes that survive SIGKILL and may hold its GPUs: {pid} ({name})",
                job,
                user,
                count = left.len(),
                pid = survivor.pid,
                name = survivor.name
            )));
            reports.push(Report::info(message!(
                "leftovers-to-kill",
                "to kill all processes of {user}: docker exec --user {user} CONTAINER sh -c 'kill -KILL -1'",
                user
            )));
        }
        reports
    }
}

/// Sends the signal to all processes, and waits up to `limit` until they have exited.
fn signal_all(processes: &[Process], signal: Signal, limit: Duration) {
    let handles: Vec<Handle> = processes.iter().filter_map(Process::handle).collect();
    handles.iter().for_each(|handle| handle.send(signal));
    let until = Instant::now() + limit;
    let mut alive: Vec<BorrowedFd> = handles.iter().filter_map(Handle::descriptor).collect();
    while !alive.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        let mut polled: Vec<PollFd> = alive.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        if left.is_zero()
            || !poll(&mut polled, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)).is_ok_and(|n| n > 0)
        {
            return;
        }
        let ended: Vec<bool> = polled.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        let mut ended = ended.into_iter();
        alive.retain(|_| !ended.next().unwrap_or(false));
    }
}

/// Kills all processes of the leftovers' user. Runs as that user, so that the kernel spares all other processes.
fn kill_all_of_user(leftovers: &[Process]) {
    let Some(process) = leftovers.first() else { return };
    // If this fails, for example at the user's process limit, the rounds of SIGKILL end the leftovers.
    let mut shell = Command::new("/bin/sh");
    let command = shell.args(["-c", "kill -KILL -1"]).uid(process.uid).gid(process.gid).env_clear();
    let _ = tool::output(command, LATE_SIGKILL_WAIT);
}
