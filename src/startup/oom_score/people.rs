//! Decides which processes the kernel kills first when the container's memory runs out.
//!
//! Every process starts with the container's value, and Slurm sets that of each task to 0. So the kernel would kill the
//! largest process, and that is slurmctld if someone has started hundreds of small ones. Raising the value takes no
//! privilege, and children inherit it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nix::unistd::User;

use sys::leftovers::look;
use sys::proc::{self, Stat, parse};

/// Equivalent to half of the container's limit on top of a process's own memory: more than any daemon uses.
const USER_SCORE: i32 = 500;
/// The value for processes of a user who has filled memory.
const MEMORY_FILLER_SCORE: i32 = 900;
/// Killed after its tasks but before the daemons: without slurmstepd a job cannot end in order.
const STEP_SCORE: i32 = 250;
/// Accounts with smaller IDs belong to the system.
pub(super) const FIRST_USER_UID: u32 = 1000;
/// slurmctld's account, which has a larger ID in Debian.
const SLURM: &str = "slurm";

/// The users whose processes are killed last, including slurmctld's.
pub(super) fn uids(names: &[String]) -> BTreeSet<u32> {
    let names = names.iter().map(String::as_str).chain([SLURM]);
    names.filter_map(|name| Some(User::from_name(name).ok()??.uid.as_raw())).collect()
}

/// Makes the kernel kill processes of jobs (of any user) and of ordinary users first, before those of `spared`
/// and the rest of root's.
pub(super) fn raise_scores(spared: &BTreeSet<u32>, job_processes: &[(Stat, u32)]) {
    let job_pids: BTreeSet<i32> = job_processes.iter().map(|(stat, _)| stat.pid).collect();
    for pid in proc::pids() {
        let process = Path::new("/proc").join(pid.to_string());
        // The owner of /proc/PID is root if the process hides (`PR_SET_DUMPABLE`).
        let Some([uid]) = proc::status(pid).and_then(|status| parse::numbers(&status, "Uid")) else { continue };
        let value = match uid {
            FIRST_USER_UID.. if !spared.contains(&uid) => Some(USER_SCORE),
            _ if !look::is_slurmd_or_descendant(pid) => None,
            _ => slurmd_child_score(&fs::read_to_string(process.join("comm")).unwrap_or_default())
                // A thread of slurmd that has just forked has a name of its own until it becomes slurmstepd.
                .filter(|value| *value == STEP_SCORE || job_pids.contains(&pid)),
        };
        if let Some(value) = value {
            raise(&process.join("oom_score_adj"), value);
        }
    }
}

/// The value for a root process descended from slurmd. Only root could have given it its name.
fn slurmd_child_score(name: &str) -> Option<i32> {
    match look::plain_name(name.trim_end()) {
        "slurmd" => None,
        "slurmstepd" => Some(STEP_SCORE),
        _ => Some(USER_SCORE),
    }
}

/// Has the kernel kill this user's processes before those of other users: their children inherit the value.
pub(super) fn raise_user_scores(uid: u32) {
    let is_of_user = |pid: &i32| proc::status(*pid).and_then(|status| parse::numbers(&status, "Uid")) == Some([uid]);
    proc::pids()
        .filter(is_of_user)
        .for_each(|pid| raise(&Path::new("/proc").join(pid.to_string()).join("oom_score_adj"), MEMORY_FILLER_SCORE));
}

/// Raises the value, unless the process has ended or the kernel refuses. A root process with a negative value keeps it;
/// slurmstepd sets one for itself if it may.
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

    #[test]
    fn kills_root_jobs_before_slurmstepd_and_never_slurmd() {
        assert_eq!(slurmd_child_score("bash\n"), Some(USER_SCORE));
        assert_eq!(slurmd_child_score("slurmstepd\n"), Some(STEP_SCORE));
        assert_eq!(slurmd_child_score("slurmd-wlm\n"), None);
    }
}
