//! Decides which processes the kernel kills first when the container's memory runs out.
//!
//! Every process starts with the container's `oom_score_adj`, and Slurm sets that of each task to 0. So the kernel
//! would kill the largest process, which is slurmctld if a user has started hundreds of small ones. Raising the value
//! takes no privilege, and children inherit it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nix::unistd::User;

use sys::leftovers::look;
use sys::proc::{Processes, Role};

/// Equivalent to half of the container's limit on top of a process's own memory: more than any daemon uses.
const USER_SCORE: i32 = 500;
/// The value of a slurmstepd, which is killed after its tasks but before the daemons: without it a job cannot end cleanly.
const STEP_SCORE: i32 = 250;
/// Accounts with smaller IDs belong to the system.
const FIRST_USER_UID: u32 = 1000;
/// slurmctld's account, which has a larger ID in Debian.
const SLURM: &str = "slurm";

/// The users whose processes are killed last, including slurmctld's user.
pub(super) fn uids(names: &[String]) -> BTreeSet<u32> {
    let names = names.iter().map(String::as_str).chain([SLURM]);
    names.filter_map(|name| Some(User::from_name(name).ok()??.uid.as_raw())).collect()
}

/// Makes the kernel kill the processes of jobs (of any user) and of ordinary users before those of `spared` and
/// root's other processes.
pub(super) fn raise_scores(spared: &BTreeSet<u32>, processes: &Processes) {
    for process in processes.iter() {
        let value = match (process.uid, &process.role) {
            (FIRST_USER_UID.., _) if !spared.contains(&process.uid) => Some(USER_SCORE),
            _ if !look::is_slurmd_or_descendant(process.pid) => None,
            (_, Role::Daemon) => None,
            (_, Role::Step(_)) => Some(STEP_SCORE),
            // Only below a slurmstepd: a process that a thread of slurmd has just forked is also `Other`, because it has the thread's name until it
            // executes slurmstepd.
            (_, Role::Other) => processes.job(process).map(|_| USER_SCORE),
        };
        if let Some(value) = value {
            raise(Path::new(&format!("/proc/{}/oom_score_adj", process.pid)), value);
        }
    }
}

/// Raises the value, unless the process has ended or the kernel refuses. A slurmstepd that has given itself a
/// negative value keeps it.
fn raise(file: &Path, score: i32) {
    let value = fs::read_to_string(file).ok().and_then(|value| value.trim().parse::<i32>().ok());
    if value.is_some_and(|value| value < score && (value >= 0 || score == USER_SCORE)) {
        let _ = fs::write(file, score.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raises_oom_score_and_never_lowers_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("oom_score_adj");
        for (before, to, after) in [
            ("0\n", USER_SCORE, "500"),
            ("-500\n", USER_SCORE, "500"),
            ("900\n", USER_SCORE, "900\n"),
            ("", USER_SCORE, ""),
            ("0\n", STEP_SCORE, "250"),
            ("-1000\n", STEP_SCORE, "-1000\n"),
        ] {
            fs::write(&file, before).unwrap();
            raise(&file, to);
            assert_eq!(fs::read_to_string(&file).unwrap(), after);
        }
    }
}
