//! The batch script of a session: ends, and with it the job, when the job has had no step for a while.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::fcntl::OFlag;

use super::client::{Clients, processes};
use slurm::client::{Client, limit};
use watch::agent::unix;

/// How often slurmctld is queried for the steps.
const INTERVAL: Duration = Duration::from_secs(5);
/// The interval of checks of the steps' clients.
const CLIENT_INTERVAL: Duration = Duration::from_secs(1);
/// How long the session waits for its first step.
const FIRST: Duration = Duration::from_secs(10);
/// The maximum time that slurmstepd tries to reach a client whose machine is gone, before its step ends.
const ENDING: Duration = Duration::from_secs(30);
/// How long before the time limit terminals get a warning.
const WARNING: Duration = Duration::from_secs(600);
/// The prefix of the directories in /tmp that [`super::ssh`] leaves behind when its shell is killed.
pub(crate) const FILES: &str = "slurminit-session-";

pub(super) fn run(keep: Duration) -> anyhow::Result<()> {
    let job = std::env::var("SLURM_JOB_ID").context("this is the batch script of a session")?;
    let end = std::env::var("SLURM_JOB_END_TIME").ok().and_then(|end| end.parse::<u64>().ok());
    let client = Client::with_timeout(limit::COMMAND);
    let (mut deadline, mut warns_at) =
        (Instant::now() + FIRST.max(keep), end.map(|end| end.saturating_sub(WARNING.as_secs())));
    let (mut is_used, mut clients, mut killed) = (false, Clients::default(), BTreeSet::new());
    let (mut query_at, mut killed_at) = (Instant::now() + INTERVAL, None::<Instant>);
    loop {
        let now = Instant::now();
        // The job is not ended while a killed step is still ending: an ending job occupies its node until its last step
        // has ended.
        let is_ending = killed_at.is_some_and(|at| at.elapsed() < ENDING);
        if now >= deadline && !is_ending {
            break;
        }
        clients.wait(if is_ending { CLIENT_INTERVAL } else { CLIENT_INTERVAL.min(deadline - now) });
        for step in clients.gone(&job) {
            // A shell ignores SIGTERM.
            client.run("scancel", &["--signal=KILL".to_owned(), format!("{job}.{step}")]).unwrap_or_default();
            if killed.insert(step) {
                (is_used, killed_at) = (true, Some(Instant::now()));
            }
        }
        if Instant::now() < query_at.min(deadline) && killed_at.is_none() {
            continue;
        }
        query_at = Instant::now() + INTERVAL;
        // If squeue fails, the session is treated as in use.
        let steps = client.output("squeue", &["--steps", "--noheader", "--format=%i", "--jobs", &job]);
        let steps = steps.map(|steps| steps.lines().filter_map(number).collect::<BTreeSet<u32>>());
        if steps.as_ref().map_or(true, |steps| !steps.is_subset(&killed)) {
            (deadline, is_used) = (Instant::now() + keep.max(INTERVAL), true);
        } else if is_used {
            (deadline, is_used) = (Instant::now() + keep, false);
        }
        if steps.is_ok_and(|steps| steps.is_disjoint(&killed)) {
            killed_at = None;
        }
        if warns_at.is_some_and(|at| unix() >= at) {
            warns_at = None;
            warn(&job, end.unwrap_or_default().saturating_sub(unix()).div_ceil(60));
        }
    }
    remove_files(&job);
    Ok(())
}

/// The number of a step such as `7.0`; `None` for Slurm's own, such as `7.batch`.
fn number(step: &str) -> Option<u32> {
    step.trim().rsplit_once('.')?.1.parse().ok()
}

/// Writes to the terminals of the job's processes.
fn warn(job: &str, minutes: u64) {
    let text = format!("\r\nslurminit: job {job} reaches its time limit in {minutes} minutes; save your work\r\n");
    for terminal in terminals(job) {
        let mut options = fs::OpenOptions::new();
        options.write(true).custom_flags((OFlag::O_NOCTTY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits());
        if let Ok(mut file) = options.open(terminal) {
            let _ = file.write_all(text.as_bytes());
        }
    }
}

/// The terminals of this user's processes that have the job's ID in their environment.
fn terminals(job: &str) -> Vec<PathBuf> {
    let own = nix::unistd::getuid().as_raw();
    let is_terminal = |path: &PathBuf| {
        let metadata = fs::symlink_metadata(path).ok();
        path.starts_with("/dev/pts") && metadata.is_some_and(|it| it.file_type().is_char_device() && it.uid() == own)
    };
    let inputs = processes(job, own).into_iter().filter_map(|(process, _)| fs::read_link(process.join("fd/0")).ok());
    let mut all: Vec<PathBuf> = inputs.filter(is_terminal).collect();
    all.sort();
    all.dedup();
    all
}

/// Removes directories of connections that were killed.
fn remove_files(job: &str) {
    let own = nix::unistd::getuid().as_raw();
    for entry in fs::read_dir("/tmp").into_iter().flatten().flatten() {
        let is_named = entry.file_name().to_string_lossy().starts_with(&format!("{FILES}{job}-"));
        let is_own = || fs::symlink_metadata(entry.path()).is_ok_and(|it| it.is_dir() && it.uid() == own);
        if is_named && is_own() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_steps_that_are_not_slurms_own() {
        assert_eq!(["7.0", " 7.12\n", "7_3.0"].map(number), [Some(0), Some(12), Some(0)]);
        assert_eq!(["7.batch", "7.extern", "7.interactive", "7", ""].map(number), [None; 5]);
    }
}
