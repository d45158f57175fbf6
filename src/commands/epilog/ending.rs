//! Ends what a job has left, within a second.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use crate::leftovers::look::{self, Mark};
use crate::leftovers::{Evidence, Handle, Job, Process, leftovers};

/// After it, only the last rounds of KILL come.
const DEADLINE: Duration = Duration::from_millis(700);
/// How long a look into processes may take, which can keep what they show from being read.
const LOOK: Duration = Duration::from_millis(150);
/// From TERM to KILL.
const NOTICE: Duration = Duration::from_millis(250);
/// How long a round of KILL waits for its effect.
const ROUND: Duration = Duration::from_millis(20);
/// The same after the deadline.
const LATE_ROUND: Duration = Duration::from_millis(60);
/// As many processes are named, and the others counted.
const NAMED: usize = 10;

/// Ends it, and returns what there is to say.
pub(super) fn end_leftovers(job: &Job, user: &str) -> Vec<String> {
    let Some(mark) = Mark::own() else {
        return vec![format!(
            "warning: job {} of {user}: what it may have left is not looked for: slurmd was not started by slurminit",
            job.id
        )];
    };
    let mut hunt = Hunt {
        job,
        mark,
        until: Instant::now() + DEADLINE,
        told: BTreeMap::new(),
        found: BTreeMap::new(),
        is_all: false,
    };
    let first = hunt.look();
    if first.is_empty() {
        return Vec::new();
    }
    signal_all(&first, Signal::SIGTERM, NOTICE);
    let deaf = hunt.look();
    let willing = deaf.is_empty();
    let left = hunt.kill(deaf);
    hunt.report(user, willing, left)
}

struct Hunt<'a> {
    job: &'a Job,
    mark: Mark,
    until: Instant,
    told: BTreeMap<i32, Evidence>,
    /// All that was found, with their names.
    found: BTreeMap<i32, String>,
    /// Whether the user has nothing else in this container.
    is_all: bool,
}

impl Hunt<'_> {
    /// Looks at all processes, and returns those that the job has left.
    fn look(&mut self) -> Vec<Process> {
        let all = look::processes(self.mark, self.job.uid);
        let suspects = all.suspects(self.job);
        let new = suspects.into_iter().filter(|process| !self.told.contains_key(&process.pid));
        let new: Vec<&Process> = new.collect();
        // What a user's only job left needs no evidence; the first look takes it for the report.
        if !new.is_empty() && (self.found.is_empty() || all.has_other_steps(self.job)) {
            self.told.extend(look::evidence(&new, self.until.min(Instant::now() + LOOK)));
        }
        let known: BTreeSet<i32> = self.found.keys().copied().collect();
        let left = leftovers(&all, self.job, &self.told, &known);
        self.is_all = all.is_all_of_user(self.job, &left);
        let left: Vec<Process> = left.into_iter().filter_map(|pid| all.get(pid).cloned()).collect();
        self.found.extend(left.iter().map(|process| (process.pid, process.name.clone())));
        left
    }

    /// Kills these and what they start until nothing is left, or until the deadline; returns what is left.
    fn kill(&mut self, mut left: Vec<Process>) -> Vec<Process> {
        // What a dying process has started is found only after its death.
        let mut last_rounds = 3;
        while !left.is_empty() && last_rounds > 0 {
            let is_late = Instant::now() >= self.until;
            last_rounds -= u32::from(is_late);
            // One system call hits all, also those that fork faster than they can be listed.
            if self.is_all {
                kill_all_of(&left);
            }
            signal_all(&left, Signal::SIGKILL, if is_late { LATE_ROUND } else { ROUND });
            left = self.look();
        }
        left
    }

    fn report(&self, user: &str, willing: bool, left: Vec<Process>) -> Vec<String> {
        let job = self.job.id;
        let how = if willing { "ended with TERM" } else { "ended with TERM and KILL" };
        let still: BTreeSet<i32> = left.iter().map(|process| process.pid).collect();
        let mut ended: Vec<(&i32, &String)> = self.found.iter().filter(|(pid, _)| !still.contains(pid)).collect();
        // Those that held a GPU are of interest first.
        let holds = |pid: &i32| self.told.get(pid).is_some_and(|told| !told.devices.is_empty());
        ended.sort_by_key(|(pid, _)| !holds(pid));
        let mut lines: Vec<String> = ended
            .iter()
            .take(NAMED)
            .map(|(pid, name)| {
                let held = self.told.get(*pid).map(|told| told.devices.join(", ")).unwrap_or_default();
                let held = if held.is_empty() { String::new() } else { format!(", which held {held} open") };
                format!("warning: job {job} of {user} left process {pid} ({name}) behind{held}: {how}")
            })
            .collect();
        if ended.len() > NAMED {
            lines.push(format!(
                "warning: job {job} of {user} left {} more processes behind: {how}",
                ended.len() - NAMED
            ));
        }
        if let Some(one) = left.first() {
            lines.push(format!(
                "error: job {job} of {user} left processes behind that still run, and may hold its GPUs: {}, the first is {} ({}); \
                 they start faster than they can be ended one by one, or hang in a driver; \
                 `docker exec --user {user} CONTAINER sh -c 'kill -KILL -1'` ends all that {user} runs here",
                left.len(), one.pid, one.name
            ));
        }
        lines
    }
}

/// Sends the signal, and waits until they have ended, no longer than that.
fn signal_all(processes: &[Process], signal: Signal, patience: Duration) {
    let handles: Vec<Handle> = processes.iter().filter_map(Handle::open).collect();
    handles.iter().for_each(|handle| handle.send(signal));
    let until = Instant::now() + patience;
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

/// As that user, for then the kernel spares all others.
#[expect(clippy::disallowed_methods, reason = "this is no child of PID 1's, and waits for its own child only")]
fn kill_all_of(left: &[Process]) {
    let Some(one) = left.first() else { return };
    // What hinders it, such as the user's limit of processes, leaves it to the rounds.
    let _ = Command::new("/bin/sh").args(["-c", "kill -KILL -1"]).uid(one.uid).gid(one.gid).env_clear().status();
}
