//! Reads processes from /proc (proc(5)).

pub mod parse;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use nix::unistd::getppid;

pub use parse::Stat;

use crate::container::Container;

/// The PIDs of all processes in this container.
pub fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let container = Some(Container::of_this_process()).filter(Container::shares_pid_namespace);
    let is_own = move |pid: &i32| container.as_ref().is_none_or(|container| container.has_process(*pid));
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_own)
}

/// The PIDs of a process's children, including those forked by its threads.
pub fn children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Reads `/proc/PID/stat`; `None` if the process does not exist. A zombie still exists.
pub fn stat(pid: i32) -> Option<Stat> {
    Stat::parse(&text(pid, "stat")?)
}

/// The program that supervises the daemons, as the kernel names it.
const SUPERVISOR: &str = "slurminit-init";

/// The ancestors of this process, from the parent upwards, as far as this PID namespace has them.
pub fn ancestors() -> impl Iterator<Item = Stat> {
    std::iter::successors(stat(getppid().as_raw()), |child| stat(child.parent))
}

/// The PID of slurminit, from which this process descends. Another program may be PID 1 (`docker run --init`, `slurminit up`).
pub fn supervisor() -> i32 {
    ancestors().find(|ancestor| ancestor.name == SUPERVISOR).map_or(1, |ancestor| ancestor.pid)
}

/// Reads `/proc/PID/status`.
pub fn status(pid: i32) -> Option<String> {
    text(pid, "status")
}

/// Reads `/proc/PID/cmdline`, which the process can overwrite. Empty for a zombie.
pub fn title(pid: i32) -> Option<String> {
    text(pid, "cmdline")
}

/// Whether the real user is root. The effective one may differ: slurmstepd switches to the job's user to open files.
pub fn is_root_process(pid: i32) -> bool {
    status(pid).and_then(|status| parse::numbers(&status, "Uid")).is_some_and(|[real]| real == 0)
}

/// The title of a slurmstepd. Any user can forge the title and name, but not the real user root.
pub fn step_title(stat: &Stat) -> Option<String> {
    (stat.name == "slurmstepd" && is_root_process(stat.pid)).then(|| title(stat.pid)).flatten()
}

/// The processes of jobs.
#[derive(Clone, Debug, Default)]
pub struct JobProcesses {
    /// The jobs that have a slurmstepd.
    pub jobs: BTreeSet<u32>,
    /// The processes below each slurmstepd, with its job.
    pub processes: Vec<(Stat, u32)>,
}

/// Reads the processes below each slurmstepd.
pub fn job_processes() -> JobProcesses {
    let mut all: BTreeMap<i32, (Stat, Option<u32>)> = BTreeMap::new();
    for stat in pids().filter_map(stat) {
        let job = step_title(&stat).and_then(|title| Some(parse::step(&title)?.0));
        all.insert(stat.pid, (stat, job));
    }
    let job = |stat: &Stat| {
        let mut parent = stat.parent;
        // The list is no snapshot, so it may contain a cycle.
        for _ in 0..all.len() {
            match all.get(&parent)? {
                (_, Some(job)) => return Some(*job),
                (stat, None) => parent = stat.parent,
            }
        }
        None
    };
    let no_steps = all.values().filter(|(_, step)| step.is_none());
    let processes = no_steps.filter_map(|(stat, _)| Some((stat.clone(), job(stat)?))).collect();
    JobProcesses { jobs: all.values().filter_map(|(_, job)| *job).collect(), processes }
}

/// Reads a file of the process. Process names may be invalid UTF-8.
fn text(pid: i32, file: &str) -> Option<String> {
    Some(String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{file}")).ok()?).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command};

    use nix::unistd::getuid;

    use super::*;

    /// Starts a process that looks like the slurmstepd of a job.
    #[expect(clippy::disallowed_methods, reason = "a test, in which nothing else reaps")]
    fn start_forged_slurmstepd(uid: u32, program: &std::path::Path) -> Child {
        Command::new(program).arg0("slurmstepd: [5.batch]").arg("1000").uid(uid).spawn().unwrap()
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test, in which nothing else reaps")]
    fn only_root_process_counts_as_slurmstepd() {
        let directory = tempfile::tempdir().unwrap();
        set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let program = directory.path().join("slurmstepd");
        fs::copy("/bin/sleep", &program).unwrap();
        let unprivileged = if getuid().is_root() { 65534 } else { getuid().as_raw() };
        for (uid, counts) in [(getuid().as_raw(), getuid().is_root()), (unprivileged, false)] {
            let mut child = start_forged_slurmstepd(uid, &program);
            let pid = child.id().try_into().unwrap();
            let found = stat(pid).unwrap();
            assert_eq!((found.name.as_str(), is_root_process(pid)), ("slurmstepd", counts), "{uid}");
            assert_eq!(step_title(&found).as_deref().and_then(parse::step).is_some(), counts, "{uid}");
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(!is_root_process(-1));
    }
}
