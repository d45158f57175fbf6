//! Programs that slurm.conf names and that the daemons run later: for a job, or for a node.

use std::path::PathBuf;

use super::FileState;
use super::check::Context;

/// Where the program runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Node,
    Controller,
    Client,
}

/// A key, where its program runs, what happens without the program, and whether no job succeeds then.
type Row = (&'static str, Place, &'static str, bool);

/// Slurm 24.11: `prolog_epilog.shtml`, `_run_script_and_set_env` of slurmstepd's task.c.
const PROGRAMS: [Row; 13] = [
    ("Prolog", Place::Node, "Slurm drains the node at the first job", true),
    ("Epilog", Place::Node, "Slurm drains the node after the first job", true),
    ("TaskProlog", Place::Node, "every task fails", true),
    ("PrologSlurmctld", Place::Controller, "Slurm requeues and holds each job", true),
    ("TaskEpilog", Place::Node, "each task logs an error at its end", false),
    ("EpilogSlurmctld", Place::Controller, "slurmctld logs an error after each job", false),
    ("SrunProlog", Place::Client, "srun logs an error", false),
    ("SrunEpilog", Place::Client, "srun logs an error", false),
    ("HealthCheckProgram", Place::Node, "slurmd does not check the node's health", false),
    ("UnkillableStepProgram", Place::Node, "no program runs when a process cannot be killed", false),
    ("RebootProgram", Place::Node, "scontrol reboot has no effect", false),
    ("ResumeProgram", Place::Controller, "slurmctld starts no nodes", false),
    ("SuspendProgram", Place::Controller, "slurmctld stops no nodes", false),
];

/// A program that cannot be run.
pub(super) struct MissingProgram {
    row: &'static Row,
    path: PathBuf,
    state: FileState,
}

impl MissingProgram {
    pub(super) fn key(&self) -> &'static str {
        self.row.0
    }

    /// Whether no job succeeds.
    pub(super) fn ends_jobs(&self) -> bool {
        self.row.3
    }

    /// The problem, its cause and fix.
    pub(super) fn texts(&self) -> (String, String, String) {
        let Self { row: (key, _, consequence, _), path, state } = self;
        let path = path.display();
        match state {
            FileState::Present => {
                (format!("{key}={path} is not executable"), (*consequence).to_owned(), format!("chmod 755 {path}"))
            }
            _ => (
                format!("{key}={path} does not exist"),
                (*consequence).to_owned(),
                format!("mount the program there (executable), or remove {key}"),
            ),
        }
    }
}

/// The programs named by keys of slurm.conf that cannot be executed here.
pub(super) fn missing<'a>(
    lines: &'a [(String, String)],
    context: &'a Context<'_>,
) -> impl Iterator<Item = MissingProgram> + 'a {
    let runs_here = |place: Place| match place {
        Place::Node => context.has_node(),
        Place::Controller => context.has_controller(),
        Place::Client => true,
    };
    PROGRAMS.iter().filter(move |(_, place, ..)| runs_here(*place)).flat_map(move |row| {
        let values =
            lines.iter().filter(move |(key, _)| key.eq_ignore_ascii_case(row.0)).map(|(_, value)| value.as_str());
        values.filter_map(move |value| {
            // Some keys allow arguments after the program.
            let value = value.split_whitespace().next().filter(|value| *value != "none")?;
            let path = context.config.paths.slurm.join(value);
            let state = (context.state)(&path);
            (state != FileState::Program).then_some(MissingProgram { row, path, state })
        })
    })
}
