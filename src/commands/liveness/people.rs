//! Whom the kernel ends first when the container's memory is used up.
//!
//! Every process begins with the value of the container, and Slurm sets that of each task to 0. So the kernel takes whoever is
//! largest, and that is slurmctld where somebody has started some hundred small processes. Raising a value takes no privilege, and
//! children inherit it. There is no event that tells of a new process, so this is done each round.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::unistd::User;

/// Half of the container's limit on top of what a process has itself: more than any daemon's.
const FIRST: i32 = 500;
/// Accounts with smaller numbers belong to the system.
const PEOPLE: u32 = 1000;
/// The account of slurmctld, which has a larger one in Debian.
const SLURM: &str = "slurm";

/// Lets the processes of ordinary users, in jobs or beside them, go before those of root and of the daemons with these pids.
pub(super) fn offer(root: &Path, daemons: impl Iterator<Item = i32>) {
    let owner = |pid: &str| fs::metadata(root.join("proc").join(pid)).ok().map(|process| process.uid());
    let slurm = User::from_name(SLURM).ok().flatten().map(|user| user.uid.as_raw());
    let spared: BTreeSet<u32> = daemons.filter_map(|pid| owner(&pid.to_string())).chain(slurm).collect();
    for entry in fs::read_dir(root.join("proc")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) else { continue };
        if owner(pid).is_some_and(|uid| uid >= PEOPLE && !spared.contains(&uid)) {
            raise(&entry.path().join("oom_score_adj"));
        }
    }
}

/// A process that has ended, and one that the kernel does not let us raise, stay as they are.
fn raise(file: &Path) {
    let value = fs::read_to_string(file).ok().and_then(|value| value.trim().parse::<i32>().ok());
    if value.is_some_and(|value| value < FIRST) {
        let _ = fs::write(file, FIRST.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_raised_and_never_lowered() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("oom_score_adj");
        for (before, after) in [("0\n", "500"), ("-500\n", "500"), ("900\n", "900\n"), ("", "")] {
            fs::write(&file, before).unwrap();
            raise(&file);
            assert_eq!(fs::read_to_string(&file).unwrap(), after);
        }
    }
}
