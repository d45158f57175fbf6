//! What the processes of this container tell of jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// The programs that hold an allocation for as long as they live, as the kernel names them (15 bytes at most).
const HOLDERS: [&str; 3] = ["srun", "salloc", "scrun"];

/// The step that Slurm itself adds to each job where PrologFlags=Contain; nobody's work is in it.
const NOBODYS_STEP: &str = "extern";

/// A program that holds an allocation: its process id, and when it started, by which the kernel tells two of one number.
pub(super) type Client = (String, String);

/// What of all processes tells that a job is in use.
#[derive(Debug, Default)]
pub(super) struct InUse {
    /// The programs that hold allocations, with their sessions.
    pub(super) clients: BTreeMap<Client, String>,
    /// The jobs that have a step here; a batch script is one.
    pub(super) steps: BTreeSet<String>,
    /// Those of them in which something still runs. slurmstepd alone says nothing: after the tasks' end it tries for a
    /// minute to tell a slurmctld that does not know the step.
    pub(super) tasks: BTreeSet<String>,
}

/// Looks at all of them.
pub(super) fn in_use() -> InUse {
    let read = |process: fs::DirEntry| {
        // Most entries are no processes, and a process may end at any moment.
        let stat = fs::read_to_string(process.path().join("stat")).ok()?;
        let title = fs::read(process.path().join("cmdline")).ok()?;
        Process::parse(&stat, &String::from_utf8_lossy(&title))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(read);
    InUse::of(&processes.collect::<Vec<_>>())
}

/// A process that lives.
#[derive(Debug)]
pub(super) struct Process {
    id: Client,
    parent: String,
    session: String,
    holds_allocations: bool,
    /// The job whose step it runs.
    step_of: Option<String>,
}

impl Process {
    /// `/proc/PID/stat`: `PID (NAME) STATE PPID PGRP SESSION ...`, and the time of its start as the 22nd of all (proc(5)).
    pub(super) fn parse(stat: &str, title: &str) -> Option<Self> {
        let (pid, rest) = stat.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(')')?;
        let rest: Vec<&str> = rest.split_whitespace().collect();
        let field = |at: usize| rest.get(at).map(|text| (*text).to_owned());
        if field(0)?.starts_with(['Z', 'X']) {
            return None;
        }
        Some(Self {
            id: (pid.to_owned(), field(19)?),
            parent: field(1)?,
            session: field(3)?,
            holds_allocations: HOLDERS.contains(&name),
            step_of: job_of_step(title),
        })
    }
}

impl InUse {
    pub(super) fn of(processes: &[Process]) -> Self {
        let parents: BTreeSet<&str> = processes.iter().map(|process| process.parent.as_str()).collect();
        let holders = processes.iter().filter(|process| process.holds_allocations);
        let has_tasks = |process: &&Process| parents.contains(process.id.0.as_str());
        Self {
            clients: holders.map(|process| (process.id.clone(), process.session.clone())).collect(),
            steps: processes.iter().filter_map(|process| process.step_of.clone()).collect(),
            tasks: processes.iter().filter(has_tasks).filter_map(|process| process.step_of.clone()).collect(),
        }
    }
}

/// The job whose step this process runs: `slurmstepd: [JOB.STEP]` is its title (Slurm 22.05 to 24.11, `slurmstepd.c`).
pub(super) fn job_of_step(title: &str) -> Option<String> {
    let (job, step) = title.strip_prefix("slurmstepd: [")?.split_once(']')?.0.split_once('.')?;
    (step != NOBODYS_STEP).then(|| job.to_owned())
}
