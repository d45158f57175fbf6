//! How many times the container has hit its process and memory limits, from the cgroup's counters.
//!
//! The counters are read when a unit starts and when it dies: if a counter rose in between, the death may not be the unit's fault.

use std::fs;
use std::path::Path;

use nix::libc;

use machine::{Exit, ExternalCause};

/// The mount point of the container's cgroup (version 2), or the parent directory of its controllers (version 1).
const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// A file that exists only in version 2.
const VERSION_2_FILE: &str = "cgroup.controllers";
/// Files with a line `max N`, where N is the number of failed forks.
const FORK_FAILURE_FILES: [&str; 2] = ["pids.events", "pids/pids.events"];
/// The prefix of Slurm's cgroups for jobs, whose counters disappear with the job.
const JOB_CGROUP: &str = "job_";
/// The maximum depth of slurmd's cgroups.
const MAX_DEPTH: usize = 4;
/// Files with the current number of processes, and with the limit (`max` means none).
const PROCESS_COUNT_FILES: [&str; 2] = ["pids.current", "pids/pids.current"];
const PROCESS_LIMIT_FILES: [&str; 2] = ["pids.max", "pids/pids.max"];
/// Files with a line `oom_kill N`: processes killed because the container or the machine ran out of memory.
const OOM_KILL_FILES: [&str; 2] = ["memory.events", "memory/memory.oom_control"];

/// The number of free processes and threads with which a Slurm daemon can start.
const MIN_FREE_PROCESSES: u64 = 32;

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LimitCounts {
    /// The number of forks that failed at the process limit.
    failed_forks: u64,
    oom_kills: u64,
}

impl LimitCounts {
    /// The current values. An unreadable counter is taken as 0, so it never rises.
    pub(super) fn now() -> Self {
        Self::read(Path::new(CGROUP_ROOT))
    }

    fn read(root: &Path) -> Self {
        let counter = |files: [&str; 2], name| {
            files.iter().find_map(|file| count(&fs::read_to_string(root.join(file)).ok()?, name)).unwrap_or(0)
        };
        let depth = if root.join(VERSION_2_FILE).exists() { MAX_DEPTH } else { 0 };
        let failed_forks = counter(FORK_FAILURE_FILES, "max") + failed_forks_below(root, depth);
        Self { failed_forks, oom_kills: counter(OOM_KILL_FILES, "oom_kill") }
    }

    /// The limit that ended a process; `None` if no limit did. `self` contains the counts at the start of the process, and `now` those at its end.
    pub(super) fn shortage(self, exit: &Exit, now: Self) -> Option<ExternalCause> {
        match exit {
            Exit::Signal(libc::SIGKILL) if now.oom_kills > self.oom_kills => Some(ExternalCause::Memory),
            // A process that cannot fork reports that and exits; nothing kills it.
            Exit::Code(0) | Exit::Signal(libc::SIGKILL) | Exit::NotStarted(_) => None,
            _ if now.failed_forks > self.failed_forks => Some(ExternalCause::Processes),
            _ => None,
        }
    }
}

/// The number of free processes below the limit, if a fork has failed before and the number is too low for a Slurm daemon to start.
pub(super) fn process_shortage() -> Option<u64> {
    (LimitCounts::now().failed_forks > 0).then(|| free_processes_if_too_few(Path::new(CGROUP_ROOT))).flatten()
}

/// The number of free processes, if it is below the minimum. A small limit never leaves the usual minimum free, so the minimum is at most a quarter
/// of the limit.
fn free_processes_if_too_few(root: &Path) -> Option<u64> {
    let number = |files: [&str; 2]| {
        files.iter().find_map(|file| fs::read_to_string(root.join(file)).ok()?.trim().parse::<u64>().ok())
    };
    let limit = number(PROCESS_LIMIT_FILES)?;
    Some(limit.saturating_sub(number(PROCESS_COUNT_FILES)?)).filter(|free| *free < MIN_FREE_PROCESSES.min(limit / 4))
}

/// The failed forks in the cgroups below `directory`, except those of jobs. Before Linux 6.11 a failed fork is counted only in the process's own
/// cgroup. If the container may create cgroups, that is not the root: slurmd moves all daemons into a cgroup below it. Later kernels count the fork
/// twice here, which does not matter: only whether the sum is above 0 or rises is evaluated.
fn failed_forks_below(directory: &Path, depth: usize) -> u64 {
    let children = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_cgroup = |entry: &fs::DirEntry| {
        let is_job = entry.file_name().to_string_lossy().starts_with(JOB_CGROUP);
        !is_job && entry.file_type().is_ok_and(|kind| kind.is_dir())
    };
    let below = children.filter(is_cgroup).filter(|_| depth > 0).map(|entry| {
        let own =
            fs::read_to_string(entry.path().join(FORK_FAILURE_FILES[0])).ok().and_then(|text| count(&text, "max"));
        own.unwrap_or(0) + failed_forks_below(&entry.path(), depth - 1)
    });
    below.sum()
}

fn count(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_counts_of_both_cgroup_versions_or_zero() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(LimitCounts::read(root.path()), LimitCounts::default());
        for directory in ["pids", "memory"] {
            fs::create_dir(root.path().join(directory)).unwrap();
        }
        fs::write(root.path().join("pids/pids.events"), "max 3\n").unwrap();
        fs::write(root.path().join("memory/memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
            .unwrap();
        assert_eq!(LimitCounts::read(root.path()), LimitCounts { failed_forks: 3, oom_kills: 2 });
        fs::write(root.path().join("pids.events"), "max 5\n").unwrap();
        fs::write(root.path().join("memory.events"), "low 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 7\n").unwrap();
        assert_eq!(LimitCounts::read(root.path()), LimitCounts { failed_forks: 5, oom_kills: 1 });
    }

    /// A container with cgroup v2 and a kernel before Linux 6.11, where slurmd has moved the daemons into /system.
    #[test]
    fn counts_failed_fork_in_daemons_own_cgroup() {
        let root = tempfile::tempdir().unwrap();
        let write = |directory: &str, failed: u64| {
            fs::create_dir_all(root.path().join(directory)).unwrap();
            fs::write(root.path().join(directory).join("pids.events"), format!("max {failed}\n")).unwrap();
        };
        write("", 0);
        fs::write(root.path().join(VERSION_2_FILE), "pids\n").unwrap();
        write("system", 0);
        write("system.slice/slurmstepd.scope/job_7", 9);
        let before = LimitCounts::read(root.path());
        write("system", 1);
        // The job ends, and its cgroup with it.
        fs::remove_dir_all(root.path().join("system.slice/slurmstepd.scope/job_7")).unwrap();
        let after = LimitCounts::read(root.path());
        assert_eq!(before.shortage(&Exit::Code(1), after), Some(ExternalCause::Processes));
        assert_eq!(after.shortage(&Exit::Code(1), after), None);
    }

    #[test]
    fn detects_process_limit_too_low_for_daemon() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(free_processes_if_too_few(root.path()), None, "no limit");
        fs::create_dir(root.path().join("pids")).unwrap();
        for (max, current, expected) in [
            ("200", "168", None),
            ("200", "169", Some(31)),
            ("100", "150", Some(0)),
            ("60", "45", None),
            ("max", "1", None),
        ] {
            fs::write(root.path().join("pids/pids.max"), format!("{max}\n")).unwrap();
            fs::write(root.path().join("pids/pids.current"), format!("{current}\n")).unwrap();
            assert_eq!(free_processes_if_too_few(root.path()), expected, "{current} of {max}");
        }
    }

    #[test]
    fn blames_limit_for_exit_only_if_its_count_rose() {
        let before = LimitCounts { failed_forks: 1, oom_kills: 1 };
        let after = LimitCounts { failed_forks: 2, oom_kills: 2 };
        let kill = Exit::Signal(libc::SIGKILL);
        assert_eq!(before.shortage(&kill, after), Some(ExternalCause::Memory));
        assert_eq!(before.shortage(&Exit::Code(1), after), Some(ExternalCause::Processes));
        assert_eq!(before.shortage(&Exit::Signal(libc::SIGABRT), after), Some(ExternalCause::Processes));
        assert_eq!(before.shortage(&Exit::Code(0), after), None);
        assert_eq!(before.shortage(&kill, LimitCounts { oom_kills: 1, ..after }), None);
        for exit in [kill, Exit::Code(1)] {
            assert_eq!(before.shortage(&exit, before), None);
        }
    }
}
