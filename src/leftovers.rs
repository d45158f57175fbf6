//! What a job leaves behind where no cgroup holds its processes together.
//!
//! PURE; `look` and `handle` are edge. Slurm's proctrack/linuxproc ends the descendants of slurmstepd. A process that calls
//! setsid() and outlives its parent is a child of PID 1 then, and Slurm no longer finds it. What tells it from a shell of
//! `docker exec`, a service or a waiting srun of the same user is a mark that slurmd's descendants inherit and cannot put
//! off: docs/architecture.md, "What a job leaves behind".

mod handle;
pub mod look;

pub use handle::Handle;

use std::collections::{BTreeMap, BTreeSet};

/// A job that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// Its id.
    pub id: u32,
    /// Its user's id.
    pub uid: u32,
    /// The device files of its GPUs that no other job can have had.
    pub devices: BTreeSet<String>,
}

/// What a process is to Slurm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// slurmd.
    Daemon,
    /// A slurmstepd, and its job, once it has said so in its title.
    Step(Option<u32>),
    /// Anything else.
    Other,
}

/// A process that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// Its parent's.
    pub parent: i32,
    /// Its session.
    pub session: i32,
    /// When it started, in ticks of the machine's clock: tells two processes of one id.
    pub start: u64,
    /// Who started it (its real user id).
    pub uid: u32,
    /// Its effective group id, without which the kernel shows nobody its environment.
    pub gid: u32,
    /// Its name as it chose it, in printable characters.
    pub name: String,
    /// What it is to Slurm.
    pub role: Role,
    /// Whether it descends from slurmd.
    pub is_marked: bool,
}

/// What a process tells of itself; it may lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// `SLURM_JOB_ID` of the environment that it was started with.
    pub job: Option<u32>,
    /// The GPU device files that it holds open.
    pub devices: Vec<String>,
}

/// All processes of the container.
#[derive(Clone, Debug, Default)]
pub struct Processes(BTreeMap<i32, Process>);

impl FromIterator<Process> for Processes {
    fn from_iter<I: IntoIterator<Item = Process>>(processes: I) -> Self {
        Self(processes.into_iter().map(|process| (process.pid, process)).collect())
    }
}

impl Processes {
    /// The process of that id.
    pub fn get(&self, pid: i32) -> Option<&Process> {
        self.0.get(&pid)
    }

    /// Those of the job's user that descend from slurmd, and that neither slurmd nor a slurmstepd looks after.
    pub fn suspects(&self, job: &Job) -> Vec<&Process> {
        self.0
            .values()
            .filter(|process| process.uid == job.uid && process.is_marked && !self.is_held(process))
            .collect()
    }

    /// Whether these are all that the job's user has here, so that a signal to all of the user's processes hits no other.
    pub fn is_all_of_user(&self, job: &Job, left: &BTreeSet<i32>) -> bool {
        job.uid != 0
            && self.0.values().filter(|process| process.uid == job.uid).all(|process| left.contains(&process.pid))
    }

    /// Whether the user has a step of another job here, or may have: one that just starts has no process of a user yet.
    pub fn has_other_steps(&self, job: &Job) -> bool {
        let is_other = |process: &&Process| matches!(process.role, Role::Step(id) if id != Some(job.id));
        self.0.values().filter(is_other).any(|step| {
            let users: BTreeSet<u32> =
                self.0.values().filter(|one| self.descends(one, step.pid)).map(|one| one.uid).collect();
            users.contains(&job.uid) || users.iter().all(|uid| *uid == 0)
        })
    }

    /// Slurm's own processes, what they look after, and an operator's script that slurmd was started by.
    fn is_held(&self, process: &Process) -> bool {
        let is_own = |process: &Process| process.role != Role::Other;
        is_own(process)
            || self.ancestors(process).any(is_own)
            || self.0.values().any(|other| is_own(other) && self.descends(other, process.pid))
    }

    fn descends(&self, process: &Process, from: i32) -> bool {
        self.ancestors(process).any(|ancestor| ancestor.pid == from)
    }

    /// From the parent upwards. Processes are read one after the other, so that a number may be another one's by then: the
    /// walk is no longer than there are processes.
    fn ancestors(&self, process: &Process) -> impl Iterator<Item = &Process> {
        let first = self.0.get(&process.parent);
        std::iter::successors(first, |process| self.0.get(&process.parent)).take(self.0.len())
    }

    fn jobs_with_steps(&self) -> BTreeSet<u32> {
        let job = |process: &Process| if let Role::Step(job) = process.role { job } else { None };
        self.0.values().filter_map(job).collect()
    }
}

/// Whose a suspect is, by what it tells itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// The ended job's.
    Ended,
    /// That of a job which has a step here. The end of that job is its end.
    Running,
    /// The ended job's if nobody near it says otherwise: it holds one of its GPUs.
    HoldsDevice,
    /// It has no environment that can be read, or one of a job that has no step here.
    Unknown,
}

/// Which of the suspects the ended job has left. `known` are those that an earlier look had found.
pub fn leftovers(all: &Processes, job: &Job, told: &BTreeMap<i32, Evidence>, known: &BTreeSet<i32>) -> BTreeSet<i32> {
    let (running, suspects) = (all.jobs_with_steps(), all.suspects(job));
    let whose: BTreeMap<i32, Whose> =
        suspects.iter().map(|process| (process.pid, whose(job, &running, told.get(&process.pid)))).collect();
    // A user who has nothing else on the node loses nothing else.
    let is_alone = !all.has_other_steps(job);
    let ended = |pid: i32| whose.get(&pid) == Some(&Whose::Ended) || known.contains(&pid);
    let runs = |pid: i32| whose.get(&pid) == Some(&Whose::Running);
    let sessions = |of: &dyn Fn(i32) -> bool| -> BTreeSet<i32> {
        suspects.iter().filter(|process| of(process.pid)).map(|process| process.session).collect()
    };
    let (ended_sessions, running_sessions) = (sessions(&ended), sessions(&runs));
    let near = |process: &Process, of: &dyn Fn(i32) -> bool, sessions: &BTreeSet<i32>| {
        sessions.contains(&process.session) || all.ancestors(process).any(|ancestor| of(ancestor.pid))
    };
    let is_left = |process: &&&Process| match whose.get(&process.pid).copied().unwrap_or(Whose::Unknown) {
        Whose::Ended => true,
        Whose::Running => false,
        _ if known.contains(&process.pid) => true,
        _ if near(process, &runs, &running_sessions) => false,
        Whose::HoldsDevice => true,
        Whose::Unknown => is_alone || near(process, &ended, &ended_sessions),
    };
    suspects.iter().filter(is_left).map(|process| process.pid).collect()
}

fn whose(job: &Job, running: &BTreeSet<u32>, told: Option<&Evidence>) -> Whose {
    match told {
        Some(told) if told.job == Some(job.id) => Whose::Ended,
        Some(told) if told.job.is_some_and(|other| running.contains(&other)) => Whose::Running,
        Some(told) if told.devices.iter().any(|device| job.devices.contains(device)) => Whose::HoldsDevice,
        _ => Whose::Unknown,
    }
}

/// A GPU's device file. All of NVIDIA's jobs share `nvidiactl` and `nvidia-uvm`, and all of AMD's `kfd`.
pub fn is_gpu(path: &str) -> bool {
    let numbered = |prefix: &str| {
        let rest = path.strip_prefix(prefix);
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    ["/dev/nvidia", "/dev/nvidia-caps/nvidia-cap", "/dev/dri/renderD"].into_iter().any(numbered)
        || ["/dev/kfd", "/dev/dxg"].contains(&path)
}

/// A name that somebody else chose, safe for a terminal and a log line.
pub fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).take(64).collect()
}

#[cfg(test)]
mod tests;
