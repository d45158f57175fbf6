//! A slurmstepd that waits for ever for a job that has been cancelled.
//!
//! It opens the files of a job's input and output itself, with the rights of the job's user, and takes no request before it has them.
//! A FIFO that nobody else opens keeps it there: the job stays COMPLETING, and no other starts. Slurm's own
//! `UnkillableStepTimeout` counts from the end of that wait only (Slurm 22.05 to 24.11, `slurmstepd/req.c`).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::leftovers::{Handle, look};
use crate::printable;

/// Who opens a file that is there has opened it by then, mostly; a job that is cancelled loses nothing either way. It is short, for
/// slurmctld waits 10 s for the node's answer to the cancel, and asks again only a minute later.
const PATIENCE: Duration = Duration::from_secs(1);

/// A slurmstepd with the rights of a user, which it has only while it prepares a step.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    /// When it started.
    start: u64,
    job: u32,
    /// How often its first thread gave up the CPU of itself: as long as it waits in one place, that does not change.
    waits: u64,
}

/// Ends those of jobs that Slurm calls COMPLETING. Slurm is asked only if there is one, so that a round costs a look at /proc.
pub(super) fn end(root: &Path) {
    let before = waiting(root);
    if before.is_empty() {
        return;
    }
    let completing = completing();
    if !before.values().any(|step| completing.contains_key(&step.job)) {
        return;
    }
    pause();
    let now = waiting(root);
    for (pid, step) in before.iter().filter(|(pid, step)| now.get(pid) == Some(step)) {
        let (Some(user), Some(handle)) = (completing.get(&step.job), Handle::of(*pid, step.start)) else { continue };
        handle.send(Signal::SIGKILL);
        eprintln!(
            "warning: job {} of {user} was to end, and its slurmstepd (process {pid}) waited for somebody to open a file of the job's \
             input or output, a FIFO most likely (`scontrol show job {}` names them); no other job could start, so that \
             slurmstepd was killed",
            step.job, step.job
        );
    }
}

/// Those that sleep with a user's rights.
fn waiting(root: &Path) -> BTreeMap<i32, Step> {
    let step = |entry: fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let read = |name: &str| Some(String::from_utf8_lossy(&fs::read(entry.path().join(name)).ok()?).into_owned());
        if read("comm")?.trim_end() != "slurmstepd" {
            return None;
        }
        let waits = parse(&read("status")?)?;
        Some((pid, Step { start: look::start(pid)?, job: look::parse_title(&read("cmdline")?)?, waits }))
    };
    fs::read_dir(root.join("proc")).into_iter().flatten().flatten().filter_map(step).collect()
}

/// How often it waited so far; `None` for one that does not wait, and for one that has root's rights or was started by a user.
fn parse(status: &str) -> Option<u64> {
    let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let mut users = field("Uid:")?.split_whitespace();
    let (real, effective) = (users.next()?, users.next()?);
    let waits = field("State:")?.starts_with('S') && real == "0" && effective != "0";
    waits.then(|| field("voluntary_ctxt_switches:")?.parse().ok())?
}

/// The jobs that Slurm wants to end, and their users.
#[expect(clippy::disallowed_methods, reason = "this is a child of PID 1, and waits for its own children only")]
fn completing() -> BTreeMap<u32, String> {
    let squeue = Command::new("squeue")
        .args(["--noheader", "--states=COMPLETING", "--format=%A %u"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let list = squeue.map(|output| output.stdout).unwrap_or_default();
    let job = |line: &str| {
        let (job, user) = line.trim().split_once(' ')?;
        Some((job.parse().ok()?, printable::short(user, 64)))
    };
    String::from_utf8_lossy(&list).lines().filter_map(job).collect()
}

#[expect(clippy::disallowed_methods, reason = "nothing tells that a process goes on waiting")]
fn pause() {
    std::thread::sleep(PATIENCE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_sleeps_with_a_users_rights_waits() {
        let status = |state: &str, users: &str| {
            format!(
                "Name:\tslurmstepd\nState:\t{state}\nUid:\t{users}\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n"
            )
        };
        assert_eq!(parse(&status("S (sleeping)", "0\t65534\t0\t65534")), Some(12));
        for (state, users) in [
            ("R (running)", "0\t65534\t0\t65534"),
            ("D (disk sleep)", "0\t65534\t0\t65534"),
            ("S (sleeping)", "0\t0\t0\t0"),
            ("S (sleeping)", "65534\t65534\t65534\t65534"),
        ] {
            assert_eq!(parse(&status(state, users)), None, "{state} {users}");
        }
        assert_eq!(parse(""), None);
    }
}
