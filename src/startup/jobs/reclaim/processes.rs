//! Which jobs are in use, according to this container's processes.

use std::collections::{BTreeMap, BTreeSet};

use sys::proc::{Process, Processes};

/// Programs that hold an allocation while they run, by the kernel's process name (15 bytes at most).
const CLIENT_PROGRAMS: [&str; 3] = ["srun", "salloc", "scrun"];

/// The step that Slurm adds to each job with PrologFlags=Contain; it runs no task of the job.
const EXTERN_STEP: &str = "extern";
/// The step of a batch script.
const BATCH_STEP: &str = "batch";

/// A program that holds an allocation: PID and start time, in case the PID is reused.
pub(super) type Client = (i32, u64);

/// The jobs in use, according to all processes.
#[derive(Debug, Default)]
pub(super) struct InUse {
    /// The programs that hold allocations, with their sessions.
    pub(super) clients: BTreeMap<Client, i32>,
    /// The jobs with a step here, including batch scripts but not the extern step.
    pub(super) steps: BTreeSet<String>,
    /// The steps with a slurmstepd here, as job and name: `("7", "batch")`, `("7", "0")`.
    pub(super) slurmstepds: BTreeSet<(String, String)>,
    /// The jobs with a running task. A lone slurmstepd proves nothing: after its tasks have ended, it retries
    /// for a minute to report to a slurmctld that does not list the step.
    pub(super) tasks: BTreeSet<String>,
}

pub(super) fn in_use() -> InUse {
    InUse::of(&Processes::read())
}

impl InUse {
    pub(super) fn of(all: &Processes) -> Self {
        let living = || all.iter().filter(|process| !process.is_dead);
        let parents: BTreeSet<i32> = living().map(|process| process.parent).collect();
        let clients = living().filter(|process| CLIENT_PROGRAMS.contains(&process.name.as_str()));
        // The job whose step this process runs, except the extern step.
        let job =
            |process: &Process| process.step().filter(|step| step.name != EXTERN_STEP).map(|step| step.job.to_string());
        let slurmstepd = |process: &Process| process.step().map(|step| (step.job.to_string(), step.name.clone()));
        let has_tasks = |process: &&Process| parents.contains(&process.pid);
        Self {
            clients: clients.map(|process| (process.key(), process.session)).collect(),
            steps: living().filter_map(job).collect(),
            slurmstepds: living().filter_map(slurmstepd).collect(),
            tasks: living().filter(has_tasks).filter_map(job).collect(),
        }
    }

    /// Whether the slurmstepd of the job's batch script is here.
    pub(super) fn has_script(&self, job: &str) -> bool {
        self.slurmstepds.contains(&(job.to_owned(), BATCH_STEP.to_owned()))
    }
}
