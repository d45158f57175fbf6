//! Ensures that no job ID is used twice.
//!
//! slurmctld saves its state, including the next job ID, up to five seconds late, and no setting changes that (`state_save.c`, SAVE_MAX_WAIT,
//! Slurm 24.11). If it is killed in that time, it forgets the latest jobs, and its successor would reuse their IDs. So unless its
//! predecessor stopped cleanly, slurmctld starts with a higher next ID. It exceeds the ID of every batch script in the state directory,
//! which slurmctld writes before it answers sbatch, and every other ID that slurmctld can have used in five seconds. A clean stop leaves no
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

/// More than slurmctld can use between two saves: it accepts about 500 jobs per second at most.
const MARGIN: u32 = 10_000;
/// Slurm's default for MaxJobId. Beyond it slurmctld starts over and ignores a saved number.
const MAX_JOB_ID: u32 = 67_043_328;

/// The next ID, recorded by a clean stop.
const NEXT_ID_FILE: &str = "slurminit.next_job_id";
/// The batch jobs that had a script when slurmctld died.
const SCRIPTS_FILE: &str = "slurminit.scripts";

/// Maximum number of lost jobs named in a message.
const MAX_NAMED: usize = 1000;

/// Raises the next job ID if necessary, adopts the ID of a new accounting database, then execs slurmctld. `saved_within`: how long ago the
/// previous slurmctld began a clean stop; `None` if it did not stop cleanly.
pub fn run(slurm_conf: &Path, state: &Path, saved_within: Option<Duration>, command: &[String]) -> anyhow::Result<()> {
    if let Err(error) = raise(slurm_conf, state, saved_within) {
        report::warn(message!("job-ids-may-repeat", "job IDs may be reused: {error}", error = format!("{error:#}")));
    }
    if let Err(error) = adopt_cluster_id(slurm_conf, state) {
        report::warn(message!("cluster-id-not-adopted", "{error}", error = format!("{error:#}")));
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
        "the saved state is empty or older than the accounting database, which has jobs from ID {from} on: the next ID is {next}, and those jobs are in sacct \
         only; fix: if this is not intended, stop, and use a state and a database of the same age",
        from = from,
        next = next
    ));
    Ok(())
}

/// The ID that slurmctld uses until it has saved one.
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
    // A job submitted after the record was written has a script.
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
        "the next job ID would exceed MaxJobId {highest}: set it higher, or remove the state"
    );
    saved.write(&state, next)?;
    begun::note(&notes, &state, next);
    report::warn(message!(
        "jobs-may-be-lost",
        "slurmctld ended without saving the last seconds: jobs from ID {from} on may be lost; the next ID is {next}",
        from,
        next
    ));
    // The lost jobs of an even earlier slurmctld may not have been named yet; their scripts are gone by now.
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
    let next = config.number("NEXT_JOB_ID").context("`scontrol show config` names no NEXT_JOB_ID")?;
    let directory = config.state_directory().context("`scontrol show config` names no StateSaveLocation")?;
    let notes = Notes::open_as_root(&directory)?;
    // slurmctld now saves everything itself.
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
    let named: Vec<String> = lost.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let more = lost.len().checked_sub(MAX_NAMED).filter(|more| *more > 0);
    report::warn(message!(
        "jobs-lost",
        "jobs {jobs}{more} are lost: slurmctld ended before it had saved them; submit them again",
        jobs = named.join(","),
        more = more.map(|more| format!(" and {more} more")).unwrap_or_default()
    ));
}
