//! Names batch jobs that failed because slurmstepd could not open an output file.
//!
//! Slurm does not report this cause: the job is FAILED with the reason `RaisedSignal:53` (the lowest seven bits of ESLURMD_IO_ERROR, 4021),
//! and neither a file nor slurmd's log names the cause (Slurm 24.11).

use std::sync::mpsc::Receiver;

use crate::jobs::SLURM;
use config::DaemonName;
use model::log::split_text;
use model::message;
use sys::report;

/// The end of slurmctld's log line about a job whose output file slurmstepd could not open.
const IO_ERROR: &str = "WTERMSIG 53";

/// State and reason of a job whose output file could not be opened, as squeue shows them.
const FAILED: &str = "FAILED RaisedSignal:53";

/// The job in a line of `slurminit logs` such as `_job_complete: JobId=12_3(15) WTERMSIG 53`.
pub(super) fn parse(line: &str) -> Option<String> {
    let (_, message) = split_text(line, DaemonName::Slurmctld.as_str())?;
    let (job, status) = message.trim_end().strip_prefix("_job_complete: JobId=")?.split_once(' ')?;
    let job = job.split('(').next().unwrap_or_default();
    let is_job = job.starts_with(|c: char| c.is_ascii_digit()) && job.bytes().all(|c| c.is_ascii_digit() || c == b'_');
    (status == IO_ERROR && is_job).then(|| job.to_owned())
}

/// Logs each of these jobs whose output file could not be opened, until the channel closes.
pub(super) fn report_failures(jobs: &Receiver<String>) {
    while let Ok(job) = jobs.recv() {
        // The log line may be forged, so the job's state is checked.
        let state = SLURM
            .output("squeue", &["--noheader", "--states=all", "--format=%T %r", "--jobs", &job])
            .unwrap_or_default();
        if !state.lines().any(|line| line.starts_with(FAILED)) {
            continue;
        }
        let record = SLURM.output("scontrol", &["--oneliner", "show", "job", &job]).unwrap_or_default();
        let field = |key: &str| Some(record.rsplit_once(key)?.1.split(' ').next()?.trim_end().to_owned());
        let (user, node) = (field(" UserId=").unwrap_or_default(), field(" BatchHost=").unwrap_or_default());
        let (out, err) = (field(" StdOut=").unwrap_or_default(), field(" StdErr=").unwrap_or_default());
        let files = if out == err { out } else { format!("{out} and {err}") };
        report::warn(message!(
            "job-output-not-opened",
            "cannot open an output file of job {job}: {files}, user {user}, node {node}; set --output and --error to paths that the user can write to",
            job,
            files,
            user,
            node
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn accepts_jobs_without_output_only_from_slurmctld() {
        let line = |message: &str| parse(&format!("2026-11-22T10:10:55.002778Z  info {message}\n"));
        assert_eq!(line("slurmctld: _job_complete: JobId=7 WTERMSIG 53").as_deref(), Some("7"));
        assert_eq!(line("slurmctld: _job_complete: JobId=12_3(15) WTERMSIG 53").as_deref(), Some("12_3"));
        for other in [
            "slurmctld: _job_complete: JobId=7 WTERMSIG 5",
            "slurmctld: _job_complete: JobId=7 WEXITSTATUS 53",
            "slurmctld: _job_complete: JobId=7 done",
            "slurmd: _job_complete: JobId=7 WTERMSIG 53",
            "slurmctld: comment _job_complete: JobId=7 WTERMSIG 53",
            "slurmctld: _job_complete: JobId=$(x) WTERMSIG 53",
            "slurmctld: _job_complete: JobId=7$x WTERMSIG 53",
            "slurmctld: _job_complete: JobId=_7 WTERMSIG 53",
        ] {
            assert_eq!(line(other), None, "{other}");
        }
    }
}
