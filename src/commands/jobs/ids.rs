//! No job id is given twice.
//!
//! slurmctld writes down what it knows five seconds late, the number of the next job with it, and no setting changes that
//! (`state_save.c`, SAVE_MAX_WAIT, Slurm 22.05 to 24.11). One that is killed in that time forgets the jobs that came last, and its
//! successor would give their ids to others. So each slurmctld that follows one without an ordered end begins with the saved number
//! raised: beyond every batch script that lies in the state directory, where slurmctld puts it before it answers sbatch, and
//! beyond what five seconds can have given out besides. An ordered stop leaves the next id in a file, so that after it ids go on
//! without a gap.

mod saved;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::notes::Notes;
use super::output;

/// More than slurmctld gives out between two writes: it takes some 500 jobs a second at most.
const MARGIN: u32 = 10_000;
/// Slurm's own default of MaxJobId; beyond it slurmctld begins anew, and ignores a saved number.
const MAX_JOB_ID: u32 = 67_043_328;

/// The next id, as an ordered stop found it.
const NEXT: &str = "slurminit.next_job_id";
/// The batch jobs that had a script when slurmctld died.
const SCRIPTS: &str = "slurminit.scripts";

/// So many lost jobs are named; nobody reads a longer line.
const NAMED: usize = 1000;

/// Its command line.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// slurm.conf
    #[arg(long)]
    slurm_conf: PathBuf,
    /// The state directory where slurm.conf names none
    #[arg(long)]
    state: PathBuf,
    /// The slurmctld before this one had saved everything
    #[arg(long)]
    saved: bool,
    /// slurmctld and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Raises the number if it must, and becomes slurmctld.
pub(super) fn run(args: &Args) -> anyhow::Result<u8> {
    if let Err(error) = raise(args) {
        eprintln!("warning: job ids may be given twice: {error:#}");
    }
    let (program, arguments) = args.command.split_first().context("no command")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("`{program}` cannot be executed"))
}

fn raise(args: &Args) -> anyhow::Result<()> {
    let conf = fs::read_to_string(&args.slurm_conf).unwrap_or_default();
    let state = last_value(&conf, "StateSaveLocation").map_or_else(|| args.state.clone(), PathBuf::from);
    let highest = last_value(&conf, "MaxJobId").and_then(|id| id.parse().ok()).unwrap_or(MAX_JOB_ID);
    let notes = Notes::ours(&state)?;
    let stopped_at = notes.ids(NEXT).ok().flatten().and_then(|ids| ids.last().copied());
    // It is true of this one start.
    notes.remove(NEXT)?;
    let saved = saved::read(&state)?;
    let scripts = scripts(&state);
    // A job that came after the note has a script.
    let is_whole = |next: u32| next.max(scripts.last().map_or(0, |last| last + 1)) <= saved.next;
    if args.saved || stopped_at.is_some_and(is_whole) {
        return Ok(());
    }
    let known = scripts.last().map_or(0, |last| last + 1).max(saved.next).max(stopped_at.unwrap_or_default());
    let next = known.saturating_add(MARGIN);
    anyhow::ensure!(next < highest, "MaxJobId {highest} is too near: set it higher, or remove the state");
    let from = saved.next;
    saved.write(&state, next)?;
    // Those of a slurmctld before that one are still to be named where nobody had the time; their scripts are gone by now.
    let unnamed = notes.ids(SCRIPTS).ok().flatten().unwrap_or_default();
    notes.write(SCRIPTS, scripts.union(&unnamed).copied())?;
    eprintln!(
        "warning: slurmctld ended without saving its last seconds: jobs from id {from} on may be lost; the next id is {next}"
    );
    Ok(())
}

/// The batch jobs that have a script: `hash.7/job.17`.
fn scripts(state: &Path) -> BTreeSet<u32> {
    let hashes = (0..10).filter_map(|hash| fs::read_dir(state.join(format!("hash.{hash}"))).ok());
    let id = |name: &str| name.strip_prefix("job.")?.parse().ok();
    hashes.flatten().flatten().filter_map(|entry| id(entry.file_name().to_str()?)).collect()
}

/// What slurm.conf says last of a key.
fn last_value(conf: &str, wanted: &str) -> Option<String> {
    let value = |line: &str| {
        let (key, value) = line.split_once('=')?;
        key.trim().eq_ignore_ascii_case(wanted).then(|| value.split_whitespace().next())?.map(str::to_owned)
    };
    conf.lines().filter_map(value).next_back()
}

/// At an ordered stop: leaves the next id for the next start.
pub(super) fn note_next() -> anyhow::Result<()> {
    let config = output("scontrol", &["show", "config"])?;
    let next = last_value(&config, "NEXT_JOB_ID").and_then(|next| next.parse().ok());
    let next = next.context("`scontrol show config` names no NEXT_JOB_ID")?;
    let state =
        last_value(&config, "StateSaveLocation").context("`scontrol show config` names no StateSaveLocation")?;
    Notes::of_slurm(Path::new(&state))?.write(NEXT, [next])
}

/// After a slurmctld that ended without saving: names the batch jobs that its successor does not know.
pub(super) fn name_the_lost() -> anyhow::Result<()> {
    let config = output("scontrol", &["show", "config"])?;
    let Some(state) = last_value(&config, "StateSaveLocation") else { return Ok(()) };
    let notes = Notes::of_slurm(Path::new(&state))?;
    let Some(scripts) = notes.ids(SCRIPTS)? else { return Ok(()) };
    let known = output("squeue", &["--noheader", "--states=all", "--array", "--format=%A %F"])?;
    let known: BTreeSet<u32> = known.split_whitespace().filter_map(|id| id.parse().ok()).collect();
    let lost: Vec<String> = scripts.difference(&known).map(ToString::to_string).collect();
    if !lost.is_empty() {
        let more = lost.len().checked_sub(NAMED).filter(|more| *more > 0);
        eprintln!(
            "warning: jobs {}{} are lost: slurmctld was killed before it had saved them; submit them again",
            lost[..lost.len().min(NAMED)].join(","),
            more.map(|more| format!(" and {more} more")).unwrap_or_default()
        );
    }
    notes.remove(SCRIPTS)
}

#[cfg(test)]
mod tests {
    use super::last_value;

    #[test]
    fn the_last_value_counts() {
        let conf = "StateSaveLocation=/a\n#StateSaveLocation=/b\nstatesavelocation = /c # here\n";
        assert_eq!(last_value(conf, "StateSaveLocation").as_deref(), Some("/c"));
        assert_eq!(last_value("NEXT_JOB_ID             = 5\n", "NEXT_JOB_ID").as_deref(), Some("5"));
        assert_eq!(last_value("", "MaxJobId"), None);
    }
}
