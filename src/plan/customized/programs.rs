//! Programs that slurm.conf names and that Slurm runs later: for a job, or for a node.

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

/// A key, where its program runs, what happens without the program, and whether the cluster then cannot run jobs normally.
type Row = (&'static str, Place, &'static str, bool);

/// Sources: Slurm 24.11, `prolog_epilog.shtml` and `_run_script_and_set_env` of slurmstepd's task.c.
const PROGRAMS: [Row; 13] = [
    ("Prolog", Place::Node, "Slurm drains the node at the first job", true),
    ("Epilog", Place::Node, "Slurm drains the node after the first job", true),
    ("TaskProlog", Place::Node, "every task fails", true),
    ("PrologSlurmctld", Place::Controller, "Slurm requeues each batch job and cancels each interactive job", true),
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

    /// Whether the cluster cannot run jobs normally without the program: jobs or their tasks fail, jobs are requeued or canceled, or their
    /// node is drained.
    pub(super) fn ends_jobs(&self) -> bool {
        self.row.3
    }

    /// The problem, its consequence and its fix.
    pub(super) fn texts(&self) -> (String, String, String) {
        let Self { row: (key, _, consequence, _), path, state } = self;
        let path = path.display();
        match state {
            FileState::Present => {
                let fix = format!("run chmod 755 {path} if it is a program, or correct or remove {key}");
                (format!("{key}={path} is not an executable file"), (*consequence).to_owned(), fix)
            }
            _ => (
                format!("{key}={path} does not exist"),
                (*consequence).to_owned(),
                format!("mount the program there (executable), or remove {key}"),
            ),
        }
    }
}

/// The programs that keys of slurm.conf name and that cannot be executed here.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fix_depends_on_whether_the_program_exists() {
        let texts = |state| {
            let (what, _, fix) = MissingProgram { row: &PROGRAMS[0], path: "/opt/program".into(), state }.texts();
            (what.split_once(' ').unwrap().1.to_owned(), fix)
        };
        let key = PROGRAMS[0].0;
        let (present, missing) = (texts(FileState::Present), texts(FileState::Missing));
        assert_eq!(present.0, "is not an executable file");
        assert!(present.1.contains("chmod 755 /opt/program"), "{present:?}");
        assert_eq!(missing.0, "does not exist");
        assert!(missing.1.contains(key), "{missing:?}");
    }
}
