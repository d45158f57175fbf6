//! Kills the processes of jobs that have used up the grace period.
//!
//! slurmctld refuses to signal a job that is completing, and slurmd sends SIGKILL only `KillWait` (30 s) after SIGTERM. Until
//! then slurmd does not react to its own SIGTERM. So the processes are killed here. Their slurmstepd stays: it reports the end of
//! the job.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;

use sys::leftovers::Handle;
use sys::proc;
use sys::proc::{Stat, parse};

/// A process and the job of its slurmstepd.
type Process = (Stat, Option<String>);

/// Sends SIGKILL to every process below a slurmstepd of these jobs. Returns whether they have a slurmstepd,
/// which ends after it has reported to slurmctld.
pub(super) fn kill(jobs: &BTreeSet<&str>) -> bool {
    let process = |pid| {
        let stat = proc::stat(pid)?;
        let step = proc::step_title(&stat).and_then(|title| Some(parse::step(&title)?.0.to_string()));
        Some((stat, step))
    };
    let all: Vec<Process> = proc::pids().filter_map(process).collect();
    let handles = below_steps(&all, jobs).into_iter().filter_map(|stat| Handle::of(stat.pid, stat.start));
    handles.for_each(|handle| handle.send(Signal::SIGKILL));
    steps(&all, jobs).next().is_some()
}

/// The slurmstepd processes of these jobs.
fn steps<'a>(all: &'a [Process], jobs: &BTreeSet<&str>) -> impl Iterator<Item = &'a Stat> {
    let is_step = |(_, step): &&Process| step.as_deref().is_some_and(|job| jobs.contains(job));
    all.iter().filter(is_step).map(|(stat, _)| stat)
}

/// The living descendants of the slurmstepd processes of these jobs.
fn below_steps<'a>(all: &'a [Process], jobs: &BTreeSet<&str>) -> Vec<&'a Stat> {
    let mut parents: BTreeSet<i32> = steps(all, jobs).map(|stat| stat.pid).collect();
    let mut found: Vec<&Stat> = Vec::new();
    while !parents.is_empty() {
        let is_child = |stat: &&Stat| parents.contains(&stat.parent) && !found.iter().any(|old| old.pid == stat.pid);
        let children: Vec<&Stat> = all.iter().map(|(stat, _)| stat).filter(is_child).collect();
        parents = children.iter().map(|stat| stat.pid).collect();
        found.extend(children);
    }
    found.retain(|stat| !stat.is_dead());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, state: char, step: Option<&str>) -> Process {
        let stat = Stat { pid, name: String::new(), state, has_threads: false, parent, session: 0, start: 0 };
        (stat, step.map(str::to_owned))
    }

    #[test]
    fn kills_only_descendants_of_job_steps() {
        let all = [
            process(1, 0, 'S', None),
            process(10, 1, 'S', Some("5")),
            process(11, 10, 'S', None),
            process(12, 11, 'T', None),
            process(13, 11, 'Z', None),
            process(20, 1, 'S', Some("6")),
            process(21, 20, 'S', None),
            process(30, 1, 'S', None),
        ];
        let pids = |jobs: &[&str]| {
            let jobs = jobs.iter().copied().collect();
            below_steps(&all, &jobs).iter().map(|stat| stat.pid).collect::<Vec<_>>()
        };
        assert_eq!(pids(&["5"]), [11, 12]);
        assert_eq!(pids(&["5", "6"]), [11, 21, 12]);
        assert_eq!(pids(&["7"]), [0; 0]);
    }
}
