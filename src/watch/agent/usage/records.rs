//! The files in the state directory: a line for each ended job, and the state of the running ones. Only root can read them.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use anyhow::Context as _;

use super::unix_ms;
use crate::agent::files;
use faults::usage::{JobRecord, Usage};

/// The file with the records of ended jobs.
const RECORD: &str = "jobs.jsonl";
/// The file is rotated at this size, which is about 10,000 jobs.
const MAX_RECORD_BYTES: u64 = 8 << 20;
/// The file with the state of running jobs.
const STATE: &str = "jobs-running.json";

/// All kept records: of ended jobs in the order of their ends, then of running jobs.
///
/// # Errors
/// The state directory, or a file with records of ended jobs, cannot be read: only root can read them.
pub fn read(state: &Path) -> anyhow::Result<Vec<JobRecord>> {
    let dir = files::directory(state)?;
    let mut records: BTreeMap<(u64, u64, String), JobRecord> = BTreeMap::new();
    for name in [format!("{RECORD}.previous"), RECORD.to_owned()] {
        let text = match dir.read(&name) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            read => read.with_context(|| state.join(&name).display().to_string())?,
        };
        // A line that was cut off by a kill is skipped. A record that was written again after a kill replaces the first
        // one.
        let lines = text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
        records.extend(lines.map(|record: JobRecord| (key(&record), record)));
    }
    let running = read_state(state).map(|usage| usage.running(unix_ms())).unwrap_or_default();
    let running: Vec<JobRecord> = running.into_iter().filter(|run| !records.contains_key(&key(run))).collect();
    let mut records: Vec<JobRecord> = records.into_values().collect();
    records.sort_by_key(|record| record.job.end);
    records.extend(running);
    Ok(records)
}

fn key(record: &JobRecord) -> (u64, u64, String) {
    (record.job.job, record.job.start, record.node.clone())
}

pub(super) fn append(state: &Path, ended: &[JobRecord]) -> anyhow::Result<()> {
    let dir = files::directory(state)?;
    if dir.metadata_of(RECORD).is_ok_and(|record| record.len() >= MAX_RECORD_BYTES) {
        dir.rename(RECORD, &format!("{RECORD}.previous"))?;
    }
    let mut file = dir.open_or_create(RECORD, 0o600)?;
    let mut lines = Vec::new();
    if file.seek(SeekFrom::End(-1)).is_ok() {
        let mut last = [0];
        file.read_exact(&mut last)?;
        // A kill may have cut off the last line.
        lines.extend((last != *b"\n").then_some(b'\n'));
    }
    for record in ended {
        serde_json::to_writer(&mut lines, record)?;
        lines.push(b'\n');
    }
    file.write_all(&lines)?;
    Ok(())
}

pub(super) fn read_state(state: &Path) -> Option<Usage> {
    files::read(state, STATE)
}

pub(super) fn write_state(state: &Path, usage: &Usage) -> anyhow::Result<()> {
    Ok(files::replace(state, STATE, usage, 0o600)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use faults::usage::Job;

    fn record(job: u64, end: u64) -> JobRecord {
        JobRecord { job: Job { job, start: 1, end: Some(end), ..Job::default() }, ..JobRecord::default() }
    }

    #[test]
    fn reads_each_record_once_after_a_cut_line() {
        let state = tempfile::tempdir().unwrap();
        append(state.path(), &[record(1, 10), record(2, 9)]).unwrap();
        let file = state.path().join(RECORD);
        let mut text = fs::read_to_string(&file).unwrap();
        text.push_str("{\"job\":3,\"sta");
        fs::write(&file, text).unwrap();
        append(state.path(), &[record(1, 11)]).unwrap();
        let jobs: Vec<_> = read(state.path()).unwrap().iter().map(|record| (record.job.job, record.job.end)).collect();
        assert_eq!(jobs, [(2, Some(9)), (1, Some(11))]);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn running_jobs_follow_ended_ones() {
        let state = tempfile::tempdir().unwrap();
        let job = |job, end| Job { job, start: 1, end, gpus: vec![0], ..Job::default() };
        let mut usage = Usage::new(None, "c1", 5000);
        usage.update(2000, vec![job(1, None), job(2, None)]);
        // The agent was killed after it had recorded the end of job 1, and before it saved the state.
        write_state(state.path(), &usage).unwrap();
        append(state.path(), &usage.update(5000, vec![job(1, Some(4)), job(2, None)])).unwrap();
        let jobs: Vec<_> = read(state.path()).unwrap().iter().map(|record| (record.job.job, record.job.end)).collect();
        assert_eq!(jobs, [(1, Some(4)), (2, None)]);
    }

    #[test]
    fn rotates_a_full_record_and_follows_no_link() {
        let state = tempfile::tempdir().unwrap();
        let file = state.path().join(RECORD);
        append(state.path(), &[record(1, 10)]).unwrap();
        fs::File::options().write(true).open(&file).unwrap().set_len(MAX_RECORD_BYTES).unwrap();
        append(state.path(), &[record(2, 11)]).unwrap();
        assert_eq!(read(state.path()).unwrap().len(), 2);
        let target = state.path().join("target");
        fs::write(&target, "").unwrap();
        fs::remove_file(&file).unwrap();
        symlink(&target, &file).unwrap();
        assert!(append(state.path(), &[record(3, 12)]).is_err() && read(state.path()).is_err());
        assert_eq!(fs::read(&target).unwrap(), b"");
    }
}
