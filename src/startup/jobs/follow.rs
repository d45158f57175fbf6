//! Follows the daemons' logs: records which jobs slurmd starts, and which job IDs slurmctld gives to array tasks.
//!
//! PID 1 runs this as a child while the cluster runs. It has four tasks:
//!
//! 1. It records starts. slurmctld saves the start of a job up to five seconds late, slurmd keeps no record of an ended
//!    job, and no other file shows which array task has which job ID. The starts and the job IDs of tasks are written to a file at once,
//!    so that `account` finds them even after a SIGKILL of the whole container.
//! 2. It makes slurmctld save each start by the backfill scheduler, which slurmctld does not save at all (Slurm 24.11,
//!    `backfill.c`): its successor would find the job pending, abort it, and start it again.
//! 3. It logs an error when slurmctld cannot save because the disk is full.
//! 4. It names the jobs whose output file cannot be opened.

mod without_output;

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;

use super::account::{AllocationLine, launched_job, parse_task};
use super::notes::{self, GrowingFile, Notes};
use super::{SLURM, pause};
use crate::state_disk;
use config::DaemonName;
use control::client;
use machine::protocol::Request;
use model::exit_code;
use model::message;
use sys::report;

/// A file with two kinds of lines. `15`: a job that slurmd has started; `15 12_3`: job ID and name of an array task that slurmctld has
/// assigned to nodes.
pub(super) const STARTED_JOBS_FILE: &str = "slurminit.begun";
/// The number of log lines to request: usually more than PID 1 keeps.
pub(super) const LOG_LINES: u32 = 1000;
/// Jobs that start within this time are saved together. slurmctld itself saves at most every five seconds.
const SAVE_DELAY: Duration = Duration::from_millis(500);
/// How often to check the disk, because there is no event for a full one.
const DISK_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Runs until PID 1 ends it, or until it can no longer follow a log.
pub fn run(slurm_conf: &Path, state: &Path, socket: &Path) -> anyhow::Result<()> {
    let state = notes::conf_and_state(slurm_conf, state).1;
    let notes = Notes::open_as_root(&state).and_then(|notes| notes.growing_file(STARTED_JOBS_FILE));
    let notes = notes
        .map_err(|error| {
            report::warn(message!(
                "started-jobs-not-recorded",
                "cannot record started jobs, so they may run twice: {error}",
                error = format!("{error:#}")
            ))
        })
        .ok();
    let notes = Arc::new(Mutex::new(notes));
    start_thread(move || watch_disk(&state))?;
    let (started, starts) = channel();
    start_thread(move || save_starts(&starts))?;
    let (failed, failures) = channel();
    start_thread(move || without_output::report_failures(&failures))?;
    let (slurmd_socket, slurmd_notes) = (socket.to_owned(), Arc::clone(&notes));
    start_thread(move || {
        let _ = follow(&slurmd_socket, DaemonName::Slurmd, &mut |line| {
            let _ = launched_job(DaemonName::Slurmd.as_str(), line).map(|id| note(&slurmd_notes, &format!("{id}\n")));
        });
        // PID 1 starts this process again, which then follows both logs.
        std::process::exit(i32::from(exit_code::FAILURE));
    })?;
    follow(socket, DaemonName::Slurmctld, &mut |line| {
        let _ = without_output::parse(line).map(|job| failed.send(job));
        let Some(AllocationLine { job, by_backfill }) = AllocationLine::parse(line) else { return };
        let _ = parse_task(&job).map(|(task, id)| note(&notes, &format!("{id} {task}\n")));
        if by_backfill {
            let _ = started.send(job);
        }
    })
}

/// Starts a thread.
///
/// # Errors
/// The thread cannot be created, for example because of the container's process limit. PID 1 starts this program again later.
fn start_thread(body: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    std::thread::Builder::new()
        .spawn(body)
        .map(drop)
        .context("cannot create a thread: the container may have reached its process limit (--pids-limit)")
}

/// Writes a line to the file. Errors are ignored: a full disk also prevents slurmctld from saving, which [`watch_disk`]
/// reports.
fn note(notes: &Mutex<Option<GrowingFile>>, line: &str) {
    if let Some(notes) = notes.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        notes.add(line);
    }
}

/// Calls the function with each log line of a daemon.
fn follow(socket: &Path, daemon: DaemonName, handle_line: &mut dyn FnMut(&str)) -> anyhow::Result<()> {
    let mut text = Vec::new();
    let request = Request::Follow { name: daemon.as_str().to_owned(), lines: LOG_LINES };
    Ok(client::follow(socket, &request, &mut |bytes| {
        text.extend_from_slice(bytes);
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            handle_line(&String::from_utf8_lossy(&line));
        }
        Ok(())
    })?)
}

/// Logs when the disk becomes full, and when it has free space again.
fn watch_disk(state: &Path) {
    let mut is_full = false;
    loop {
        match state_disk::check_free_space(state) {
            Err(error) if !std::mem::replace(&mut is_full, true) => {
                report::error(message!("disk-full", "{error}", error));
            }
            Ok(()) if std::mem::take(&mut is_full) => {
                report::info(message!(
                    "disk-free",
                    "slurmctld can save its jobs again in {directory}",
                    directory = state.display()
                ));
            }
            _ => {}
        }
        pause(DISK_POLL_INTERVAL);
    }
}

/// Makes slurmctld save its state, by a change of a job: any such change causes a save. A change of DelayBoot has no effect on
/// a node that is up. slurmctld rejects it for a job that has ended, but in that case the end was saved anyway.
fn save_starts(starts: &Receiver<String>) {
    while let Ok(first) = starts.recv() {
        pause(SAVE_DELAY);
        let last = starts.try_iter().last().unwrap_or(first);
        let name = last.split('(').next().unwrap_or_default();
        // The log line may be forged, and the change would affect a pending job, so only a running job is changed.
        let states = SLURM.output("squeue", &["--noheader", "--states=all", "--format=%T", "--jobs", name]);
        if states.is_ok_and(|states| states.split_whitespace().any(|state| state == "RUNNING")) {
            let _ = SLURM.update_job(name, &["delayboot=0"]);
        }
    }
}
