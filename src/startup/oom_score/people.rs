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
const FIRST: i32 = 500;
/// The value for processes of a user who has filled memory.
const BEFORE: i32 = 900;
/// Killed after its tasks but before the daemons: without slurmstepd a job cannot end in order.
const STEP: i32 = 250;
/// Accounts with smaller IDs belong to the system.
pub(super) const PEOPLE: u32 = 1000;
/// slurmctld's account, which has a larger ID in Debian.
const SLURM: &str = "slurm";

/// The users whose processes are killed last, including slurmctld's.
pub(super) fn uids(names: &[String]) -> BTreeSet<u32> {
    let names = names.iter().map(String::as_str).chain([SLURM]);
    names.filter_map(|name| Some(User::from_name(name).ok()??.uid.as_raw())).collect()
}

/// Makes the kernel kill processes of jobs (of any user) and of ordinary users first, before those of `spared`
/// and the rest of root's.
pub(super) fn offer(spared: &BTreeSet<u32>, of_jobs: &[(Stat, u32)]) {
    let of_jobs: BTreeSet<i32> = of_jobs.iter().map(|(stat, _)| stat.pid).collect();
    for pid in proc::pids() {
        let process = Path::new("/proc").join(pid.to_string());
        // The owner of /proc/PID is root if the process hides (`PR_SET_DUMPABLE`).
        let Some([uid]) = proc::status(pid).and_then(|status| parse::numbers(&status, "Uid")) else { continue };
        let value = match uid {
            PEOPLE.. if !spared.contains(&uid) => Some(FIRST),
            _ if !look::is_slurmds(pid) => None,
            _ => of_slurmds(&fs::read_to_string(process.join("comm")).unwrap_or_default())
                // A thread of slurmd that has just forked has a name of its own until it becomes slurmstepd.
                .filter(|value| *value == STEP || of_jobs.contains(&pid)),
        };
        if let Some(value) = value {
            raise(&process.join("oom_score_adj"), value);
        }
    }
}

/// The value for a root process descended from slurmd. Only root could have given it its name.
fn of_slurmds(name: &str) -> Option<i32> {
    match look::plain_name(name.trim_end()) {
        "slurmd" => None,
        "slurmstepd" => Some(STEP),
        _ => Some(FIRST),
    }
}

/// Has the kernel kill this user's processes before those of other users: their children inherit the value.
pub(super) fn offer_user(uid: u32) {
    let is_its = |pid: &i32| proc::status(*pid).and_then(|status| parse::numbers(&status, "Uid")) == Some([uid]);
    proc::pids()
        .filter(is_its)
        .for_each(|pid| raise(&Path::new("/proc").join(pid.to_string()).join("oom_score_adj"), BEFORE));
}

/// Raises the value, unless the process has ended or the kernel refuses. A root process with a negative value keeps it;
/// slurmstepd sets one for itself if it may.
fn raise(file: &Path, to: i32) {
    let value = fs::read_to_string(file).ok().and_then(|value| value.trim().parse::<i32>().ok());
    if value.is_some_and(|value| value < to && (value >= 0 || to == FIRST)) {
        let _ = fs::write(file, to.to_string());
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
            ("0\n", FIRST, "500"),
            ("-500\n", FIRST, "500"),
            ("900\n", FIRST, "900\n"),
            ("", FIRST, ""),
            ("0\n", STEP, "250"),
            ("-1000\n", STEP, "-1000\n"),
        ] {
            fs::write(&file, before).unwrap();
            raise(&file, to);
            assert_eq!(fs::read_to_string(&file).unwrap(), after);
        }
    }

    #[test]
    fn kills_root_jobs_before_slurmstepd_and_never_slurmd() {
        assert_eq!(of_slurmds("bash\n"), Some(FIRST));
        assert_eq!(of_slurmds("slurmstepd\n"), Some(STEP));
        assert_eq!(of_slurmds("slurmd-wlm\n"), None);
    }
}
