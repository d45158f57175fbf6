//! Ensures that no job ID is used twice.
//!
//! slurmctld saves its state, including the next job ID, up to five seconds late, and no setting changes that (`state_save.c`, SAVE_MAX_WAIT,
//! Slurm 24.11). If it is killed in that time, it forgets the latest jobs, and its successor would reuse their IDs. So unless its
//! predecessor stopped cleanly, slurmctld starts with a higher next ID. This ID exceeds that of every batch script in the state directory,
//! which slurmctld writes before it answers sbatch, and every other ID that slurmctld could have used in five seconds. A clean stop leaves no
//! gap, because it records the next ID in a file. Nor is there a gap if slurmctld died before it had read the state.

mod begun;
mod saved;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;

use super::follow::STARTED_JOBS_FILE;
use super::notes::{self, Notes};
use super::{SLURM, cluster_id};
use model::message;
use plan::last_value;
use slurm::client::Jobs;
use slurm::config::RunningConfig;
use sys::report;

/// More job IDs than slurmctld can use between two saves: it accepts about 500 jobs per second at most.
const MARGIN: u32 = 10_000;
/// Slurm's default for MaxJobId. Beyond MaxJobId, slurmctld begins again with FirstJobId, and ignores a saved ID.
const MAX_JOB_ID: u32 = 67_043_328;

/// The next ID, recorded by a clean stop.
const NEXT_ID_FILE: &str = "slurminit.next_job_id";
/// The IDs of the batch jobs that had a script when slurmctld died.
const SCRIPTS_FILE: &str = "slurminit.scripts";

/// Maximum number of lost jobs named in a message.
const MAX_NAMED: usize = 1000;

/// Raises the next job ID if necessary, adopts the cluster ID of a new accounting database, then execs slurmctld. `saved_within`: how long ago the
/// previous slurmctld began a clean stop; `None` if it did not stop cleanly.
pub fn run(slurm_conf: &Path, state: &Path, saved_within: Option<Duration>, command: &[String]) -> anyhow::Result<()> {
    if let Err(error) = raise(slurm_conf, state, saved_within) {
        report::warn(message!("job-ids-may-repeat", "job IDs may be reused: {error}", error = format!("{error:#}")));
    }
    if let Err(error) = adopt_cluster_id(slurm_conf, state) {
        report::warn(message!(
            "cluster-id-not-adopted",
            "cannot adopt the cluster ID of the accounting database: {error}",
            error = format!("{error:#}")
        ));
    }
    if let Err(error) = raise_beyond_database(slurm_conf, state) {
        report::warn(message!("job-ids-may-repeat", "job IDs may be reused: {error}", error = format!("{error:#}")));
    }
    let (program, arguments) = command.split_first().context("no command")?;
    let error = report::end(Command::new(program).args(arguments)).exec();
    Err(error).with_context(|| format!("`{program}` cannot be executed"))
}

fn adopt_cluster_id(slurm_conf: &Path, state: &Path) -> anyhow::Result<()> {
    let (conf, state) = notes::conf_and_state(slurm_conf, state);
    cluster_id::adopt_from_new_database(&conf, &Notes::open_as_slurm(&state)?)
}

/// Raises the next job ID beyond the jobs in the accounting database. A saved state that is older than the database, such as a restored
/// copy or a new volume, does not contain the latest of these jobs.
fn raise_beyond_database(slurm_conf: &Path, state: &Path) -> anyhow::Result<()> {
    let (conf, state) = notes::conf_and_state(slurm_conf, state);
    let notes = Notes::open_as_slurm(&state)?;
    let saved = saved::read(&state)?.unwrap_or_else(saved::empty);
    let from = saved.next.max(first_id(&conf));
    let Some(next) = cluster_id::next_id_of_newer_database(&conf, &notes, from)? else { return Ok(()) };
    saved.write(&state, next)?;
    begun::note(&notes, &state, next);
    report::warn(message!(
        "state-older-than-database",
        "the saved state is empty or older than the accounting database, which has jobs with ID {from} or higher: the next job ID is {next}, and only sacct \
         shows those jobs; fix: if this is not intended, stop the container, and start it with a state and a database from the same time",
        from = from,
        next = next
    ));
    Ok(())
}

/// The ID of the first job, as long as slurmctld has not saved a next ID.
fn first_id(conf: &str) -> u32 {
    last_value(conf, "FirstJobId").and_then(|id| id.parse().ok()).unwrap_or(1)
}

fn raise(slurm_conf: &Path, state: &Path, saved_within: Option<Duration>) -> anyhow::Result<()> {
    let (conf, state) = notes::conf_and_state(slurm_conf, state);
    let highest = last_value(&conf, "MaxJobId").and_then(|id| id.parse().ok()).unwrap_or(MAX_JOB_ID);
    let notes = Notes::open_as_slurm(&state)?;
    let recorded_next = notes.ids(NEXT_ID_FILE).ok().flatten().and_then(|ids| ids.last().copied());
    // The record is valid for this start only.
    notes.remove(NEXT_ID_FILE)?;
    // Without any saved file, no slurmctld has served long enough to lose a job.
    let Some(saved) = saved::read(&state)? else { return Ok(()) };
    let scripts = scripts(&state);
    // Before the first job slurmctld saves 0.
    let from = saved.next.max(first_id(&conf));
    // A script with a higher ID shows that a job was submitted after the record was written.
    let is_complete = |next: u32| next.max(scripts.last().map_or(0, |last| last + 1)) <= from;
    // On a full disk slurmctld exits with 0 as well, without having saved.
    let was_saved = saved_within.is_some_and(|age| saved.was_written_within(age));
    if was_saved || recorded_next.is_some_and(is_complete) || begun::is_unread(&notes, &state, from) {
        begun::note(&notes, &state, from);
        return Ok(());
    }
    let lowest_free = scripts.last().map_or(0, |last| last + 1).max(from).max(recorded_next.unwrap_or_default());
    let next = lowest_free.saturating_add(MARGIN);
    anyhow::ensure!(
        next < highest,
        "the next job ID would reach MaxJobId {highest}: raise MaxJobId, or remove the saved state (all its jobs are lost)"
    );
    saved.write(&state, next)?;
    begun::note(&notes, &state, next);
    report::warn(message!(
        "jobs-may-be-lost",
        "slurmctld ended without saving the changes of its last seconds: jobs from ID {from} on may be lost; the next ID is {next}",
        from,
        next
    ));
    // The lost jobs of an even earlier slurmctld may not have been reported yet, and their scripts no longer exist.
    let unreported = notes.ids(SCRIPTS_FILE).ok().flatten().unwrap_or_default();
    if let Err(error) = notes.write(SCRIPTS_FILE, scripts.union(&unreported).copied()) {
        report::warn(message!(
            "lost-jobs-not-recorded",
            "cannot record which jobs may be lost: {error}",
            error = format!("{error:#}")
        ));
        report_lost(&scripts.range(from..).copied().collect::<Vec<_>>());
    }
    Ok(())
}

/// The batch jobs that have a script, such as `hash.7/job.17`.
fn scripts(state: &Path) -> BTreeSet<u32> {
    let hashes = (0..10).filter_map(|hash| fs::read_dir(state.join(format!("hash.{hash}"))).ok());
    let id = |name: &str| name.strip_prefix("job.")?.parse().ok();
    hashes.flatten().flatten().filter_map(|entry| id(entry.file_name().to_str()?)).collect()
}

/// Records the next ID during a clean stop, for the next start.
pub(super) fn note_next(config: &RunningConfig) -> anyhow::Result<()> {
    let next = config.number("NEXT_JOB_ID").context("`scontrol show config` does not show NEXT_JOB_ID")?;
    let directory = config.state_directory().context("`scontrol show config` does not show StateSaveLocation")?;
    let notes = Notes::open_as_root(&directory)?;
    // At a clean stop, slurmctld itself saves all starts.
    notes.remove(STARTED_JOBS_FILE)?;
    notes.write(NEXT_ID_FILE, [next])
}

/// Reports the batch jobs that slurmctld does not list because its predecessor ended without saving.
pub(super) fn check_lost_jobs() -> anyhow::Result<()> {
    let Some(state) = SLURM.config()?.state_directory() else { return Ok(()) };
    let notes = Notes::open_as_root(&state)?;
    let Some(scripts) = notes.ids(SCRIPTS_FILE)? else { return Ok(()) };
    let which = Jobs { states: &["all"], options: &["--array"], ..Jobs::default() };
    let known = SLURM.job_columns(&which, &[("JobID", 16), ("ArrayJobID", 16)])?;
    let known: BTreeSet<u32> = known.iter().flatten().filter_map(|id| id.parse().ok()).collect();
    report_lost(&scripts.difference(&known).copied().collect::<Vec<_>>());
    notes.remove(SCRIPTS_FILE)
}

fn report_lost(lost: &[u32]) {
    if lost.is_empty() {
        return;
    }
    let (jobs, more) = named(lost);
    report::warn(message!(
        "jobs-lost",
        "lost jobs: {jobs}{more}; slurmctld ended before it had saved them; submit them again",
        jobs,
        more
    ));
}

/// The IDs of at most [`MAX_NAMED`] jobs, and the number of the others as text.
fn named(jobs: &[u32]) -> (String, String) {
    let named: Vec<String> = jobs.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let more = match jobs.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (named.join(","), more)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next ID after a start whose predecessor has saved 100, recorded this ID at a stop, and left the script of this job.
    fn next_id(recorded: Option<u32>, script: Option<u32>, saved_within: Option<Duration>) -> u32 {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path();
        saved::empty().write(state, 100).unwrap();
        recorded.iter().for_each(|next| fs::write(state.join(NEXT_ID_FILE), format!("{next}\n")).unwrap());
        script.iter().for_each(|job| fs::create_dir_all(state.join(format!("hash.3/job.{job}"))).unwrap());
        let start = || {
            raise(Path::new("/nowhere/slurm.conf"), state, saved_within).unwrap();
            saved::read(state).unwrap().unwrap().next
        };
        let next = start();
        assert!(!state.join(NEXT_ID_FILE).exists(), "the record is valid for one start");
        assert_eq!(start(), next, "slurmctld has not read the state between these starts");
        let lost = if next > 100 { script.into_iter().collect() } else { BTreeSet::new() };
        let noted = Notes::open_as_slurm(state).unwrap().ids(SCRIPTS_FILE).unwrap();
        assert_eq!(noted.unwrap_or_default(), lost);
        next
    }

    #[test]
    fn ids_are_skipped_unless_state_is_complete() {
        assert_eq!(next_id(None, None, None), 10_100);
        assert_eq!(next_id(None, Some(150), None), 10_151);
        assert_eq!(next_id(None, None, Some(Duration::from_secs(600))), 100, "saved by a clean stop");
        assert_eq!(next_id(Some(100), None, None), 100);
        assert_eq!(next_id(Some(100), Some(99), None), 100);
        assert_eq!(next_id(Some(100), Some(100), None), 10_101, "submitted after the record was written");
        assert_eq!(next_id(Some(103), None, None), 10_103, "not all jobs were saved");
    }

    #[test]
    fn names_at_most_1000_lost_jobs() {
        let jobs: Vec<u32> = (1..=1002).collect();
        assert_eq!(named(&[7, 9]), ("7,9".to_owned(), String::new()));
        for (count, expected) in [(1000, ""), (1001, " and 1 more"), (1002, " and 2 more")] {
            let (named, more) = named(&jobs[..count]);
            assert!(named.ends_with(",999,1000") && more == expected, "{count}: {more}");
        }
    }
}
