//! Kills a slurmstepd that waits forever for an input or output file of an ended job.
//!
//! slurmstepd opens a job's input and output files with the rights of the job's user, and takes no request before that. A FIFO without a
//! second opener blocks it: the job stays COMPLETING and keeps its resources. Slurm's own `UnkillableStepTimeout` starts only after that
//! wait (Slurm 24.11, `slurmstepd/req.c`).

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::Signal;

use model::message;
use model::printable;
use model::queued_job::{COMPLETING, QueuedJob};
use slurm::client::{Client, Jobs, limit};
use sys::proc::{self, Handle, parse};
use sys::report;

/// How long a step may wait for a file. A regular file is usually open by then; an ended job loses nothing either way. The time is short because
/// slurmctld waits 10 s for the node's answer to the cancellation, and retries only a minute later.
const BLOCKED_TIME: Duration = Duration::from_secs(1);

/// A sleeping slurmstepd with a user's privileges, which it has only while it prepares a step.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    start: u64,
    job: u32,
    /// How often its first thread gave up the CPU voluntarily. The count does not change while the thread is blocked in one system call.
    voluntary_switches: u64,
}

/// Kills blocked slurmstepds whose job is COMPLETING. Slurm is queried only if one is blocked, so normally a round just reads /proc.
pub fn kill_blocked_steps() {
    let before = blocked_steps();
    if before.is_empty() {
        return;
    }
    let completing = completing();
    if !before.values().any(|step| completing.contains_key(&step.job)) {
        return;
    }
    pause();
    let now = blocked_steps();
    for (pid, step) in before.iter().filter(|(pid, step)| now.get(pid) == Some(step)) {
        let (Some(user), Some(handle)) = (completing.get(&step.job), Handle::of(*pid, step.start)) else { continue };
        handle.send(Signal::SIGKILL);
        report::warn(message!(
            "step-killed",
            "killed slurmstepd (process {pid}) of ended job {job} of {user}: blocked on an input or output file (possibly a FIFO)",
            pid,
            job = step.job,
            user
        ));
    }
}

/// The slurmstepds that sleep with a user's rights.
fn blocked_steps() -> BTreeMap<i32, Step> {
    let step = |pid| {
        let stat = proc::stat(pid).filter(|stat| stat.name == "slurmstepd")?;
        let voluntary_switches = voluntary_switches(&proc::status(pid)?)?;
        Some((pid, Step { start: stat.start, job: parse::step(&proc::title(pid)?)?.0, voluntary_switches }))
    };
    proc::pids().filter_map(step).collect()
}

/// Number of voluntary context switches of a sleeping slurmstepd; `None` if it is not sleeping, has root's rights, or was started by a user.
fn voluntary_switches(status: &str) -> Option<u64> {
    let [real, effective] = parse::numbers(status, "Uid")?;
    let is_blocked = parse::field(status, "State")?.starts_with('S') && real == 0 && effective != 0;
    is_blocked.then(|| parse::field(status, "voluntary_ctxt_switches")?.parse().ok())?
}

/// The jobs that are COMPLETING, and their users.
fn completing() -> BTreeMap<u32, String> {
    let which = Jobs { states: &[COMPLETING], ..Jobs::default() };
    let jobs = Client::with_timeout(limit::COMMAND).jobs(&which).unwrap_or_default();
    let job = |job: QueuedJob| Some((u32::try_from(job.number).ok()?, printable::short(&job.user, 64)));
    jobs.into_iter().filter_map(job).collect()
}

#[expect(clippy::disallowed_methods, reason = "there is no event for a process that keeps waiting")]
fn pause() {
    std::thread::sleep(BLOCKED_TIME);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_slurmstepd_sleeping_with_user_rights() {
        let status = |state: &str, users: &str| {
            format!(
                "Name:\tslurmstepd\nState:\t{state}\nUid:\t{users}\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n"
            )
        };
        assert_eq!(voluntary_switches(&status("S (sleeping)", "0\t65534\t0\t65534")), Some(12));
        for (state, users) in [
            ("R (running)", "0\t65534\t0\t65534"),
            ("D (disk sleep)", "0\t65534\t0\t65534"),
            ("S (sleeping)", "0\t0\t0\t0"),
            ("S (sleeping)", "65534\t65534\t65534\t65534"),
        ] {
            assert_eq!(voluntary_switches(&status(state, users)), None, "{state} {users}");
        }
        assert_eq!(voluntary_switches(""), None);
    }
}
