//! Ends the processes that a job left behind, in about a second at most.

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
/// The timeout for reading evidence, because a process can block reads of its memory.
const EVIDENCE_TIMEOUT: Duration = Duration::from_millis(150);
/// The wait after SIGTERM.
const SIGTERM_WAIT: Duration = Duration::from_millis(250);
/// The wait after a round of SIGKILL.
const SIGKILL_WAIT: Duration = Duration::from_millis(20);
/// The wait after a round of SIGKILL past the deadline.
const LATE_SIGKILL_WAIT: Duration = Duration::from_millis(60);
/// The maximum number of consecutive scans without leftovers before the search ends. A single scan may miss a process that keeps forking
/// and exiting: its PID no longer exists when it is read.
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
    /// All leftovers found so far, with their names.
    found: BTreeMap<i32, String>,
    /// Whether the user has no other processes in this container than leftovers.
    user_has_only_leftovers: bool,
}

impl Search<'_> {
    /// Inspects all processes, and returns the leftovers.
    fn scan(&mut self) -> Vec<Process> {
        // If the same PIDs are dead in two consecutive scans, they are zombies and hide no leftover.
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

    /// The leftovers of one scan, and the PIDs of zombies, of exiting processes and of processes that ended before they were read.
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

    /// Kills these processes and their descendants until none is left, or until the last rounds after the deadline. Returns the survivors.
    fn kill(&mut self, mut left: Vec<Process>) -> Vec<Process> {
        // Several rounds, because the children of a dying process are found only after its death.
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
        let how = if all_obeyed_sigterm { "ended with SIGTERM" } else { "ended with SIGTERM or SIGKILL" };
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
                "job {job} of {user} left more processes behind ({count}): {how}",
                job,
                user,
                count = ended.len() - MAX_NAMED,
                how
            )));
        }
        if let Some(survivor) = left.first() {
            reports.push(Report::error(message!(
                "leftovers-survive",
                "job {job} of {user} left processes that survive SIGKILL and may hold its GPUs: {pid} ({name}); {count} in all",
                job,
                user,
                count = left.len(),
                pid = survivor.pid,
                name = survivor.name
            )));
            // As root, this command would kill the processes of all users.
            if survivor.uid != 0 {
                reports.push(Report::info(message!(
                    "leftovers-to-kill",
                    "to kill all processes of {user}: docker exec --user {user} CONTAINER sh -c 'kill -KILL -1'",
                    user
                )));
            }
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

/// Kills all processes of the leftovers' user. The signal is sent as that user, so that the kernel spares all other processes.
fn kill_all_of_user(leftovers: &[Process]) {
    let Some(process) = leftovers.first() else { return };
    // If this fails, for example at the user's process limit, the rounds of SIGKILL end the leftovers.
    let mut shell = Command::new("/bin/sh");
    let command = shell.args(["-c", "kill -KILL -1"]).uid(process.uid).gid(process.gid).env_clear();
    let _ = tool::output(command, LATE_SIGKILL_WAIT);
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::ops::RangeInclusive;
    use std::process::{Child, Stdio};

    use model::log::Level;

    use super::*;
    use crate::proc;

    /// Reached only if an event is missed.
    const NEVER: Duration = Duration::from_secs(600);

    /// Starts a script, which writes a line once it is ready for signals.
    #[expect(clippy::disallowed_methods, reason = "a test, in which nothing else reaps")]
    fn start(script: &str) -> (Child, Process) {
        let mut child = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
        let process = Process::read(i32::try_from(child.id()).unwrap()).unwrap();
        (child, process)
    }

    fn is_dead(process: &Process) -> bool {
        proc::stat(process.pid).is_none_or(|stat| stat.is_dead())
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test, in which nothing else reaps")]
    fn waits_for_last_process_to_exit_but_not_for_one_that_ignores_the_signal() {
        let (mut fast, one) = start("echo; exec sleep 600");
        let (mut slow, other) = start("trap 'kill $!; sleep 0.1; exit' TERM; sleep 600 & echo; wait");
        signal_all(&[one.clone(), other.clone()], Signal::SIGTERM, NEVER);
        assert!(is_dead(&one) && is_dead(&other));
        let (mut deaf, third) = start("trap '' TERM; echo; exec sleep 600");
        signal_all(std::slice::from_ref(&third), Signal::SIGTERM, Duration::from_millis(20));
        assert!(!is_dead(&third));
        signal_all(std::slice::from_ref(&third), Signal::SIGKILL, NEVER);
        assert!(is_dead(&third));
        for child in [&mut fast, &mut slow, &mut deaf] {
            child.wait().unwrap();
        }
    }

    /// The reports after a search that found these processes, the last of which are left.
    fn reports(
        found: RangeInclusive<i32>,
        all_obeyed_sigterm: bool,
        left: RangeInclusive<i32>,
    ) -> Vec<(Level, String)> {
        let job = Job { id: 7, ..Job::default() };
        let process = |pid: i32| Process { pid, uid: 1501, name: format!("p{pid}"), ..Process::default() };
        let devices = ["/dev/nvidia0", "/dev/nvidia1"].map(str::to_owned).to_vec();
        let search = Search {
            job: &job,
            mark: Mark(0),
            until: Instant::now(),
            evidence: [(20, Evidence::default()), (21, Evidence { devices, ..Evidence::default() })].into(),
            found: found.map(|pid| (pid, process(pid).name)).collect(),
            user_has_only_leftovers: false,
        };
        let reports = search.report("alice", all_obeyed_sigterm, left.map(process).collect());
        reports.into_iter().map(|report| (report.level, report.message.text)).collect()
    }

    #[test]
    fn names_process_with_gpu_first_and_counts_those_beyond_ten() {
        let none = RangeInclusive::new(1, 0);
        let start = "job 7 of alice left";
        let held = "which held /dev/nvidia0, /dev/nvidia1 open";
        let expected = [
            format!("{start} process 21 (p21) behind, {held}: ended with SIGTERM"),
            format!("{start} process 20 (p20) behind: ended with SIGTERM"),
        ];
        assert_eq!(reports(20..=21, true, none.clone()), expected.map(|text| (Level::Warn, text)));
        assert_eq!(reports(20..=29, true, none.clone()).len(), 10);
        let many = reports(20..=31, false, none);
        let more = format!("{start} more processes behind (2): ended with SIGTERM or SIGKILL");
        assert_eq!((many.len(), many.last()), (11, Some(&(Level::Warn, more))));
        let [ended, survives, fix] = reports(20..=22, false, 21..=22).try_into().unwrap();
        let text = format!("{start} process 20 (p20) behind: ended with SIGTERM or SIGKILL");
        assert_eq!(ended, (Level::Warn, text));
        let text = format!("{start} processes that survive SIGKILL and may hold its GPUs: 21 (p21); 2 in all");
        assert_eq!(survives, (Level::Error, text));
        assert_eq!(fix.0, Level::Info);
    }
}
