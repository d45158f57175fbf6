//! Which jobs are in use, according to this container's processes.

use std::collections::{BTreeMap, BTreeSet};

use sys::proc;
use sys::proc::{Stat, parse};

/// Programs that hold an allocation while they live, by the kernel's process name (15 bytes at most).
const CLIENT_PROGRAMS: [&str; 3] = ["srun", "salloc", "scrun"];

/// The step that Slurm adds to each job with PrologFlags=Contain; it does no work.
const EXTERN_STEP: &str = "extern";

/// A program that holds an allocation: PID and start time, in case the PID is reused.
pub(super) type Client = (i32, u64);

/// The jobs in use, according to all processes.
#[derive(Debug, Default)]
pub(super) struct InUse {
    /// The programs that hold allocations, with their sessions.
    pub(super) clients: BTreeMap<Client, i32>,
    /// The jobs with a step here, including batch scripts.
    pub(super) steps: BTreeSet<String>,
    /// The jobs with a running task. A lone slurmstepd proves nothing: after its tasks have ended, it retries
    /// for a minute to report to a slurmctld that does not know the step.
    pub(super) tasks: BTreeSet<String>,
}

pub(super) fn in_use() -> InUse {
    // A process may end at any moment.
    let process = |pid| {
        let stat = proc::stat(pid)?;
        let title = proc::step_title(&stat).unwrap_or_default();
        Process::new(stat, &title)
    };
    InUse::of(&proc::pids().filter_map(process).collect::<Vec<_>>())
}

#[derive(Debug)]
pub(super) struct Process {
    id: Client,
    parent: i32,
    session: i32,
    is_client: bool,
    /// The job whose step the process belongs to.
    step_job: Option<String>,
}

impl Process {
    pub(super) fn new(stat: Stat, title: &str) -> Option<Self> {
        (!stat.is_dead()).then(|| Self {
            id: (stat.pid, stat.start),
            parent: stat.parent,
            session: stat.session,
            is_client: CLIENT_PROGRAMS.contains(&stat.name.as_str()),
            step_job: job_of_step(title),
        })
    }
}

impl InUse {
    pub(super) fn of(processes: &[Process]) -> Self {
        let parents: BTreeSet<i32> = processes.iter().map(|process| process.parent).collect();
        let clients = processes.iter().filter(|process| process.is_client);
        let has_tasks = |process: &&Process| parents.contains(&process.id.0);
        Self {
            clients: clients.map(|process| (process.id, process.session)).collect(),
            steps: processes.iter().filter_map(|process| process.step_job.clone()).collect(),
            tasks: processes.iter().filter(has_tasks).filter_map(|process| process.step_job.clone()).collect(),
        }
    }
}

/// The job whose step this process runs, except the extern step.
fn job_of_step(title: &str) -> Option<String> {
    let (job, step) = parse::step(title)?;
    (step != EXTERN_STEP).then(|| job.to_string())
}
