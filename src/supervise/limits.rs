//! How often the container's limits on processes and memory were reached, by the cgroup's own account.
//!
//! EDGE. Read when a unit starts and when it dies: if a count has risen in between, its death may be no fault of its own.

use std::fs;
use std::path::Path;

use nix::libc;

use super::machine::{Exit, Fault};

/// Where the container's cgroup is seen: version 2, and the two controllers of version 1.
const ROOT: &str = "/sys/fs/cgroup";
/// Files with a line `max N`: no process could be made.
const PROCESSES: [&str; 2] = ["pids.events", "pids/pids.events"];
/// Files with a line `oom_kill N`: a process was killed for want of memory, this container's or the machine's.
const MEMORY: [&str; 2] = ["memory.events", "memory/memory.oom_control"];

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    refused: u64,
    killed: u64,
}

impl Counts {
    /// Those of now. What cannot be read never rises.
    pub(super) fn now() -> Self {
        Self::read(Path::new(ROOT))
    }

    fn read(root: &Path) -> Self {
        let of = |files: [&str; 2], name| {
            files.iter().find_map(|file| count(&fs::read_to_string(root.join(file)).ok()?, name))
        };
        Self { refused: of(PROCESSES, "max").unwrap_or(0), killed: of(MEMORY, "oom_kill").unwrap_or(0) }
    }

    /// What ended a process that was started at these counts, if a limit did.
    pub(super) fn fault(self, exit: &Exit, now: Self) -> Option<Fault> {
        match exit {
            Exit::Signal(libc::SIGKILL) if now.killed > self.killed => Some(Fault::Memory),
            // Who lacks a process says so and ends; nothing kills it.
            Exit::Code(0) | Exit::Signal(libc::SIGKILL) | Exit::NotStarted(_) => None,
            _ if now.refused > self.refused => Some(Fault::Processes),
            _ => None,
        }
    }
}

fn count(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_cgroups_are_read_and_none_is_no_count() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Counts::read(root.path()), Counts::default());
        for directory in ["pids", "memory"] {
            fs::create_dir(root.path().join(directory)).unwrap();
        }
        fs::write(root.path().join("pids/pids.events"), "max 3\n").unwrap();
        fs::write(root.path().join("memory/memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
            .unwrap();
        assert_eq!(Counts::read(root.path()), Counts { refused: 3, killed: 2 });
        fs::write(root.path().join("pids.events"), "max 5\n").unwrap();
        fs::write(root.path().join("memory.events"), "low 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 7\n").unwrap();
        assert_eq!(Counts::read(root.path()), Counts { refused: 5, killed: 1 });
    }

    #[test]
    fn a_death_is_a_limits_if_its_count_has_risen() {
        let (before, after) = (Counts { refused: 1, killed: 1 }, Counts { refused: 2, killed: 2 });
        let kill = Exit::Signal(libc::SIGKILL);
        assert_eq!(before.fault(&kill, after), Some(Fault::Memory));
        assert_eq!(before.fault(&Exit::Code(1), after), Some(Fault::Processes));
        assert_eq!(before.fault(&Exit::Signal(libc::SIGABRT), after), Some(Fault::Processes));
        assert_eq!(before.fault(&Exit::Code(0), after), None);
        assert_eq!(before.fault(&kill, Counts { killed: 1, ..after }), None);
        for exit in [kill, Exit::Code(1)] {
            assert_eq!(before.fault(&exit, before), None);
        }
    }
}
