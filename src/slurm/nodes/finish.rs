//! Waits until jobs have ended.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::client::{Client, Jobs, limit};

/// The first pause between two polls of the jobs: Slurm sends no event when a job ends. The pause doubles up
/// to [`MAX_PAUSE`]: for a long job, precision does not matter.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// How long polls may fail: less than the five minutes for which slurmctld keeps the record of an ended job
/// (`MinJobAge`).
const MAX_OUTAGE: Duration = Duration::from_secs(240);

/// Job, state, and exit code or signal. No column is user-defined text. squeue truncates a value that is longer than its
/// column.
const COLUMNS: [(&str, usize); 3] = [("JobArrayID", 24), ("State", 24), ("exit_code", 16)];

/// Waits for these jobs, each with all tasks of its array; returns a line for each job or task that ended in a state other than COMPLETED.
///
/// # Errors
/// For 240 s, slurmctld does not respond, or has no record of a job.
pub fn wait(jobs: &[String]) -> anyhow::Result<Vec<String>> {
    let (mut last_response, mut pause) = (Instant::now(), FIRST_PAUSE);
    let mut pending = PendingJobs { open: jobs.to_vec(), failed: BTreeMap::new() };
    loop {
        let list = format!("--jobs={}", pending.open.join(","));
        let filter = Jobs { states: &["all"], options: &[&list], ..Jobs::default() };
        let output = Client::with_timeout(limit::COMMAND).job_columns(&filter, &COLUMNS);
        match output.map_err(anyhow::Error::from).and_then(|output| pending.update(&output)) {
            Ok(()) if pending.open.is_empty() => return Ok(pending.failed.into_values().collect()),
            Ok(()) => last_response = Instant::now(),
            Err(error) if last_response.elapsed() >= MAX_OUTAGE => return Err(error),
            Err(_) => {}
        }
        sleep(pause);
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

#[expect(clippy::disallowed_methods, reason = "Slurm has no event for the end of a job")]
fn sleep(pause: Duration) {
    std::thread::sleep(pause);
}

/// The results of all polls: slurmctld can purge the record of an ended job while others still run.
struct PendingJobs {
    /// The jobs that have not ended.
    open: Vec<String>,
    /// A line for each failed job or task, by the ID of the job or array and the number of the task.
    failed: BTreeMap<(u64, Option<u64>), String>,
}

impl PendingJobs {
    fn update(&mut self, output: &[[String; 3]]) -> anyhow::Result<()> {
        let mut ended_by_job: BTreeMap<&str, bool> = BTreeMap::new();
        for [name, state, code] in output {
            // A row is for a job (`5`), an array task (`5_1`), or all array tasks that have not started (`5_[2-9]`).
            let (job, task) = name.split_once('_').unwrap_or((name.as_str(), ""));
            let Ok(number) = job.parse() else { continue };
            let has_failed = match state.as_str() {
                "COMPLETED" => Some(false),
                "FAILED" | "CANCELLED" | "TIMEOUT" | "NODE_FAIL" | "OUT_OF_MEMORY" | "BOOT_FAIL" | "DEADLINE"
                | "PREEMPTED" => Some(true),
                _ => None,
            };
            *ended_by_job.entry(job).or_insert(true) &= has_failed.is_some();
            let key = (number, task.parse().ok());
            if has_failed == Some(true) {
                let code = exit_description(code);
                self.failed.insert(key, format!("job {name} is {state}{code}"));
            } else {
                self.failed.remove(&key);
            }
        }
        if let Some(job) = self.open.iter().find(|job| !ended_by_job.contains_key(job.as_str())) {
            anyhow::bail!(
                "slurmctld no longer has a record of job {job}; see `slurminit logs slurmctld` on the controller for how the job ended"
            );
        }
        self.open.retain(|job| ended_by_job.get(job.as_str()) != Some(&true));
        Ok(())
    }
}

/// Describes `CODE:SIGNAL`, or the decimal wait status of Slurm before 23.02.
fn exit_description(text: &str) -> String {
    let (code, signal) = match text.split_once(':') {
        Some((code, signal)) => (code.parse().ok(), signal.parse().ok()),
        None => (
            text.parse().ok().map(|status: u32| status >> 8 & 0xff),
            text.parse().ok().map(|status: u32| status & 0x7f),
        ),
    };
    match (code.unwrap_or_default(), signal.unwrap_or_default()) {
        (0, 0) => String::new(),
        (0, signal) => format!(", signal {signal}"),
        (code, _) => format!(", exit code {code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(output: &str) -> Vec<[String; 3]> {
        let row = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().try_into().unwrap();
        output.lines().map(row).collect()
    }

    fn after(jobs: &[&str], output: &[&str]) -> (Vec<String>, Vec<String>) {
        let mut pending = PendingJobs { open: jobs.iter().map(ToString::to_string).collect(), failed: BTreeMap::new() };
        for output in output {
            pending.update(&rows(output)).unwrap();
        }
        (pending.open, pending.failed.into_values().collect())
    }

    #[test]
    fn waits_until_all_jobs_have_ended() {
        let jobs = ["1", "2", "3", "4"];
        let output = "3  COMPLETED  0:0  \n1  FAILED  3:0  \n2  FAILED  0:9\n4 CANCELLED 0:15\n";
        let want = ["job 1 is FAILED, exit code 3", "job 2 is FAILED, signal 9", "job 4 is CANCELLED, signal 15"];
        assert_eq!(after(&jobs, &[output]), (vec![], want.map(str::to_owned).to_vec()));
        let (open, failed) = after(&jobs, &[&output.replace("COMPLETED", "COMPLETING")]);
        assert_eq!((open, failed.len()), (vec!["3".to_owned()], 3));
        // Slurm before 23.02 prints the wait status in decimal.
        assert_eq!(after(&jobs[..2], &["1 FAILED 768\n2 FAILED 9\n"]).1, want[..2]);
    }

    #[test]
    fn keeps_result_of_job_missing_from_later_output() {
        let (open, failed) = after(&["1", "2"], &["1 FAILED 1:0\n2 RUNNING 0:0\n", "2 COMPLETED 0:0\n"]);
        assert_eq!((open.len(), failed), (0, vec!["job 1 is FAILED, exit code 1".to_owned()]));
        let mut pending = PendingJobs { open: vec!["1".to_owned(), "2".to_owned()], failed: BTreeMap::new() };
        assert!(pending.update(&rows("1 COMPLETED 0:0\n")).unwrap_err().to_string().contains("job 2"));
    }

    #[test]
    fn array_ends_with_last_task() {
        let first_output = "7_[3-9%2] PENDING 0:0\n7_1 FAILED 1:0\n7_2 COMPLETED 0:0\n";
        assert_eq!(after(&["7"], &[first_output]).0, ["7"]);
        let (open, failed) = after(&["7"], &[first_output, "7_9 COMPLETED 0:0\n7_8 FAILED 2:0\n"]);
        assert_eq!(
            (open.len(), failed),
            (0, vec!["job 7_1 is FAILED, exit code 1".to_owned(), "job 7_8 is FAILED, exit code 2".to_owned()])
        );
        // A requeued job counts as running.
        assert!(after(&["7"], &["7_1 NODE_FAIL 0:0\n", "7_1 PENDING 0:0\n"]).1.is_empty());
    }
}
