//! Writes the records of ended jobs into their AdminComment, where there is an accounting database: slurmctld changes no job that has ended, but
//! slurmdbd does, once it has the job's record.
//!
//! The nodes of a job write the same text. Each reads it again, until it has its own part twice in a row.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::jobstats;
use faults::usage::JobRecord;
use model::message;
use slurm::client::{Client, limit};
use sys::report;

const SLURM: Client = Client::with_timeout(limit::COMMAND);
/// The interval of attempts, and their number: slurmdbd may have the record of a job only after seconds.
const INTERVAL: Duration = Duration::from_secs(3);
const MAX_TRIES: u32 = 40;
/// The number of jobs of one query.
const MAX_JOBS: usize = 200;

/// The thread that writes comments; it is started for the first record.
#[derive(Debug, Default)]
pub(super) struct Comments(Option<Sender<JobRecord>>);

struct Pending {
    record: JobRecord,
    tries: u32,
    /// The number of reads in a row that had the record.
    confirmed: u32,
}

impl Comments {
    pub(super) fn queue(&mut self, records: Vec<JobRecord>) {
        if self.0.is_none() {
            let (sender, receiver) = channel();
            let thread = thread::Builder::new().name("comments".to_owned()).spawn(move || write(&receiver));
            self.0 = thread.is_ok().then_some(sender);
        }
        let Some(sender) = &self.0 else { return };
        // The database has no record of a run whose end slurmctld does not know.
        let ended = records.into_iter().filter(|record| !["LOST", "REQUEUED"].contains(&record.job.state.as_str()));
        ended.for_each(|record| drop(sender.send(record)));
    }
}

fn write(records: &Receiver<JobRecord>) {
    let mut pending: Vec<Pending> = Vec::new();
    let mut due = Instant::now();
    loop {
        let left = due.saturating_duration_since(Instant::now());
        let received = match pending.is_empty() {
            true => records.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => records.recv_timeout(left),
        };
        match received {
            Ok(record) => pending.push(Pending { record, tries: 0, confirmed: 0 }),
            Err(RecvTimeoutError::Timeout) => {
                round(&mut pending);
                due = Instant::now() + INTERVAL;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Reads the comments and writes those that lack a record.
fn round(pending: &mut Vec<Pending>) {
    match SLURM.config() {
        Ok(config) if !config.has_accounting() => return pending.clear(),
        _ => {}
    }
    let now = pending.len().min(MAX_JOBS);
    let ids: Vec<String> = pending.iter().take(now).map(|one| one.record.job.job.to_string()).collect();
    let comments = comments(&ids);
    for (one, id) in pending.iter_mut().zip(&ids) {
        one.tries += 1;
        // Without an entry, slurmdbd does not have the job yet.
        let Some(comment) = comments.get(id) else { continue };
        if jobstats::has(comment, &one.record) {
            one.confirmed += 1;
            continue;
        }
        one.confirmed = 0;
        let Ok(merged) = jobstats::merge(comment, &one.record) else { continue };
        let (place, set) = (format!("jobid={id}"), format!("admincomment={merged}"));
        let _ = SLURM.run("sacctmgr", &["--immediate", "modify", "job", "where", &place, "set", &set]);
    }
    let failed: Vec<&str> =
        pending.iter().zip(&ids).filter(|(one, _)| one.tries >= MAX_TRIES).map(|(_, id)| id.as_str()).collect();
    if !failed.is_empty() {
        report::warn(message!(
            "job-comments-not-written",
            "the accounting database does not take the GPU use of jobs {jobs} into AdminComment; `slurminit report` has it",
            jobs = model::printable::short(&failed.join(", "), 200)
        ));
    }
    pending.retain(|one| one.confirmed < 2 && one.tries < MAX_TRIES);
    // Others come first in the next round.
    let rotated = now.min(pending.len());
    pending.rotate_left(rotated);
}

/// The AdminComment of each of these jobs that the database has.
fn comments(ids: &[String]) -> BTreeMap<String, String> {
    let jobs = format!("--jobs={}", ids.join(","));
    let options =
        ["--allusers", "--allocations", "--parsable2", "--noheader", "--format=JobIDRaw,End,AdminComment", &jobs];
    let output = SLURM.output("sacct", &options).unwrap_or_default();
    let entry = |line: &str| {
        let mut fields = line.splitn(3, '|');
        let (id, end, comment) = (fields.next()?, fields.next()?, fields.next()?);
        (end != "Unknown").then(|| (id.to_owned(), comment.to_owned()))
    };
    output.lines().filter_map(entry).collect()
}
