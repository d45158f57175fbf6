//! Kills the processes of jobs that have used up the grace period.
//!
//! slurmctld refuses to signal a job that is completing, and slurmd sends SIGKILL only `KillWait` (30 s) after SIGTERM. Until
//! then slurmd does not react to its own SIGTERM. So the processes are killed here. Their slurmstepd is not killed, because it reports
//! the end of the job.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;

use sys::proc::{Process, Processes};

/// Sends SIGKILL to every process below a slurmstepd of these jobs. Returns whether any of the jobs has a slurmstepd,
/// which ends by itself after it has reported to slurmctld.
pub(super) fn kill(jobs: &BTreeSet<&str>) -> bool {
    let all = Processes::read();
    let is_of_jobs = |job: u32| jobs.contains(job.to_string().as_str());
    let of_jobs = all.iter().filter(|process| all.job(process).is_some_and(is_of_jobs));
    let handles: Vec<_> = of_jobs.filter_map(Process::handle).collect();
    handles.iter().for_each(|handle| handle.send(Signal::SIGKILL));
    all.jobs().into_iter().any(is_of_jobs)
}
