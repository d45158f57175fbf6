//! Finds and ends the processes that a job leaves behind on a node where no cgroup contains the job's processes.
//!
//! The modules `ending` and `look` do IO; the rest is pure. Slurm's proctrack/linuxproc ends the descendants of slurmstepd. A process that
//! called setsid() and outlived its parent becomes a child of slurminit, where Slurm no longer finds it. To distinguish it from the same
//! user's `docker exec` shell, service or waiting srun, slurmd's descendants inherit a mark that only root can remove:
//! docs/decisions/mark-job-processes-with-a-resource-limit.md.

mod ending;
pub mod look;

pub use ending::end;

use std::collections::{BTreeMap, BTreeSet};

use crate::proc::{Process, Processes, Role};

/// A job that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// The job ID.
    pub id: u32,
    /// The user ID.
    pub uid: u32,
    /// The device files of the job's GPUs, except files that several GPUs share: another job may use them.
    pub devices: BTreeSet<String>,
}

/// Evidence of the job to which a process belongs. A user can forge it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// `SLURM_JOB_ID` in the process's initial environment.
    pub job: Option<u32>,
    /// Whether the process has the environment of slurmd's prolog or epilog.
    pub is_script: bool,
    /// The GPU device files that the process has open.
    pub devices: Vec<String>,
}

impl Processes {
    /// The job user's processes that descend from slurmd but no longer belong to slurmd or a slurmstepd.
    pub fn suspects(&self, job: &Job) -> Vec<&Process> {
        self.iter()
            .filter(|process| process.uid == job.uid && process.is_marked && !self.belongs_to_slurm(process))
            .collect()
    }

    /// Whether the job's user has no other processes here than `leftovers`, so that a signal to all of the user's
    /// processes hits nothing else. `false` for root.
    pub fn user_has_only(&self, job: &Job, leftovers: &BTreeSet<i32>) -> bool {
        job.uid != 0
            && self.iter().filter(|process| process.uid == job.uid).all(|process| leftovers.contains(&process.pid))
    }

    /// Whether the user has, or may have, a step of another job here: a step that is just starting has no process of its user yet.
    pub fn has_other_steps(&self, job: &Job) -> bool {
        let is_other = |process: &&Process| matches!(&process.role, Role::Step(step) if step.as_ref().is_none_or(|step| step.job != job.id));
        self.iter().filter(is_other).any(|step| {
            let users: BTreeSet<u32> =
                self.iter().filter(|other| self.descends_from(other, step.pid)).map(|other| other.uid).collect();
            users.contains(&job.uid) || users.iter().all(|uid| *uid == 0)
        })
    }

    /// Whether this is one of Slurm's processes, a descendant of one, or an ancestor of one, such as an operator's script that
    /// started slurmd.
    fn belongs_to_slurm(&self, process: &Process) -> bool {
        let is_slurm = |process: &Process| process.role != Role::Other;
        is_slurm(process)
            || self.ancestors(process).any(is_slurm)
            || self.iter().any(|other| is_slurm(other) && self.descends_from(other, process.pid))
    }

    fn descends_from(&self, process: &Process, ancestor_pid: i32) -> bool {
        self.ancestors(process).any(|ancestor| ancestor.pid == ancestor_pid)
    }
}

/// The job to which a suspect belongs, judged by the suspect's own evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SuspectOwner {
    /// The ended job.
    EndedJob,
    /// Another job, which still runs here (its leftovers are searched for when it ends), or a prolog or epilog.
    RunningJob,
    /// Probably the ended job, because the process has one of the job's GPUs open. A related process may prove otherwise.
    LikelyEndedJob,
    /// No evidence: the environment cannot be read, names no job, or names a job without a step here.
    Unknown,
}

/// The suspects that the ended job left behind. `known`: the leftovers that earlier scans found.
pub fn leftovers(
    all: &Processes,
    job: &Job,
    evidence: &BTreeMap<i32, Evidence>,
    known: &BTreeSet<i32>,
) -> BTreeSet<i32> {
    let (running, suspects) = (all.jobs(), all.suspects(job));
    let owner = |pid: i32| suspect_owner(job, &running, evidence.get(&pid));
    let owners: BTreeMap<i32, SuspectOwner> =
        suspects.iter().map(|process| (process.pid, owner(process.pid))).collect();
    // If the user has no other job in this container, every suspect must belong to the ended job.
    let is_alone = !all.has_other_steps(job);
    let is_of_ended_job = |pid: i32| owners.get(&pid) == Some(&SuspectOwner::EndedJob) || known.contains(&pid);
    let is_of_running_job = |pid: i32| owners.get(&pid) == Some(&SuspectOwner::RunningJob);
    let sessions = |is_member: &dyn Fn(i32) -> bool| -> BTreeSet<i32> {
        suspects.iter().filter(|process| is_member(process.pid)).map(|process| process.session).collect()
    };
    let (ended_sessions, running_sessions) = (sessions(&is_of_ended_job), sessions(&is_of_running_job));
    let is_related = |process: &Process, is_member: &dyn Fn(i32) -> bool, sessions: &BTreeSet<i32>| {
        sessions.contains(&process.session) || all.ancestors(process).any(|ancestor| is_member(ancestor.pid))
    };
    let is_leftover = |process: &&&Process| match owners.get(&process.pid).copied().unwrap_or(SuspectOwner::Unknown) {
        SuspectOwner::EndedJob => true,
        SuspectOwner::RunningJob => false,
        _ if known.contains(&process.pid) => true,
        _ if is_related(process, &is_of_running_job, &running_sessions) => false,
        SuspectOwner::LikelyEndedJob => true,
        SuspectOwner::Unknown => is_alone || is_related(process, &is_of_ended_job, &ended_sessions),
    };
    suspects.iter().filter(is_leftover).map(|process| process.pid).collect()
}

fn suspect_owner(job: &Job, running: &BTreeSet<u32>, evidence: Option<&Evidence>) -> SuspectOwner {
    match evidence {
        // A prolog or epilog of another job or simulated node may start or end during the scan, and its parent may already have ended. Such
        // scripts always run as root.
        Some(evidence) if evidence.is_script && job.uid == 0 => SuspectOwner::RunningJob,
        Some(evidence) if evidence.job == Some(job.id) => SuspectOwner::EndedJob,
        Some(evidence) if evidence.job.is_some_and(|other| running.contains(&other)) => SuspectOwner::RunningJob,
        Some(evidence) if evidence.devices.iter().any(|device| job.devices.contains(device)) => {
            SuspectOwner::LikelyEndedJob
        }
        _ => SuspectOwner::Unknown,
    }
}

/// Whether this is the path of a device file that shows the use of a GPU. This includes `/dev/kfd` and `/dev/dxg`, although all GPUs share
/// them, but not NVIDIA's `nvidiactl` and `nvidia-uvm`.
pub fn is_gpu_device_file(path: &str) -> bool {
    let numbered = |prefix: &str| {
        let rest = path.strip_prefix(prefix);
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    ["/dev/nvidia", "/dev/nvidia-caps/nvidia-cap", "/dev/dri/renderD"].into_iter().any(numbered)
        || ["/dev/kfd", "/dev/dxg"].contains(&path)
}

#[cfg(test)]
mod tests;
