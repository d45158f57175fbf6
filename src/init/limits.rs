//! How often the container hit its process and memory limits, from the cgroup's counters.
//!
//! Read when a unit starts and when it dies: if a counter rose in between, the death may not be the unit's fault.

use std::fs;
use std::path::Path;

use nix::libc;

use machine::{Exit, Shortage};

/// Where the container's cgroup is mounted: version 2, or the controllers of version 1.
const ROOT: &str = "/sys/fs/cgroup";
/// Files with a line `max N`: the number of forks that failed.
const PROCESSES: [&str; 2] = ["pids.events", "pids/pids.events"];
/// Files with the current number of processes, and with the limit (`max` means none).
const CURRENT: [&str; 2] = ["pids.current", "pids/pids.current"];
const LIMIT: [&str; 2] = ["pids.max", "pids/pids.max"];
/// Files with a line `oom_kill N`: processes killed because the container or the machine ran out of memory.
const MEMORY: [&str; 2] = ["memory.events", "memory/memory.oom_control"];

/// The number of free processes and threads with which a Slurm daemon can start.
const NEEDED_TO_START: u64 = 32;

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    refused: u64,
    killed: u64,
}

impl Counts {
    /// The current values. A counter that cannot be read counts as 0, so it never rises.
    pub(super) fn now() -> Self {
        Self::read(Path::new(ROOT))
    }

    fn read(root: &Path) -> Self {
        let of = |files: [&str; 2], name| {
            files.iter().find_map(|file| count(&fs::read_to_string(root.join(file)).ok()?, name))
        };
        Self { refused: of(PROCESSES, "max").unwrap_or(0), killed: of(MEMORY, "oom_kill").unwrap_or(0) }
    }

    /// The limit that ended a process started at these counts, if one did.
    pub(super) fn shortage(self, exit: &Exit, now: Self) -> Option<Shortage> {
        match exit {
            Exit::Signal(libc::SIGKILL) if now.killed > self.killed => Some(Shortage::Memory),
            // A process that cannot fork reports that and exits; nothing kills it.
            Exit::Code(0) | Exit::Signal(libc::SIGKILL) | Exit::NotStarted(_) => None,
            _ if now.refused > self.refused => Some(Shortage::Processes),
            _ => None,
        }
    }
}

/// How many more processes can be made, if a fork has failed before and they are too few for a Slurm daemon to start.
pub(super) fn lacks_processes() -> Option<u64> {
    (Counts::now().refused > 0).then(|| too_little_room(Path::new(ROOT))).flatten()
}

/// A small limit never leaves that many free, so a quarter of the limit is enough.
fn too_little_room(root: &Path) -> Option<u64> {
    let number = |files: [&str; 2]| {
        files.iter().find_map(|file| fs::read_to_string(root.join(file)).ok()?.trim().parse::<u64>().ok())
    };
    let most = number(LIMIT)?;
    Some(most.saturating_sub(number(CURRENT)?)).filter(|room| *room < NEEDED_TO_START.min(most / 4))
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
    fn detects_process_limit_too_low_for_daemon() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(too_little_room(root.path()), None, "no limit");
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
            assert_eq!(too_little_room(root.path()), expected, "{current} of {max}");
        }
    }

    #[test]
    fn blames_limit_for_exit_only_if_its_count_rose() {
        let (before, after) = (Counts { refused: 1, killed: 1 }, Counts { refused: 2, killed: 2 });
        let kill = Exit::Signal(libc::SIGKILL);
        assert_eq!(before.shortage(&kill, after), Some(Shortage::Memory));
        assert_eq!(before.shortage(&Exit::Code(1), after), Some(Shortage::Processes));
        assert_eq!(before.shortage(&Exit::Signal(libc::SIGABRT), after), Some(Shortage::Processes));
        assert_eq!(before.shortage(&Exit::Code(0), after), None);
        assert_eq!(before.shortage(&kill, Counts { killed: 1, ..after }), None);
        for exit in [kill, Exit::Code(1)] {
            assert_eq!(before.shortage(&exit, before), None);
        }
    }
}
