//! Waits until jobs have ended. EDGE.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::PATIENCE;
use crate::tool;

/// The pause between two looks at the jobs, because Slurm has no event for the end of a job. It grows: for a long job, precision does
/// not matter.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long slurmctld may fail to answer. It knows a job for five minutes after its end (`MinJobAge`).
const AWAY: Duration = Duration::from_secs(240);

/// Job, state, and exit code or signal: the submitter controls none of them. squeue cuts a longer field off.
const FORMAT: &str = "--Format=JobID:24,State:24,exit_code:16";

/// Waits for these jobs; returns how each ended that failed.
///
/// # Errors
/// slurmctld could not be asked, or knows a job no more.
pub fn wait(jobs: &[String]) -> anyhow::Result<Vec<String>> {
    let list = format!("--jobs={}", jobs.join(","));
    let (mut answered, mut pause) = (Instant::now(), FIRST_PAUSE);
    loop {
        let said = tool::ask("squeue", &["--noheader", "--states=all", &list, FORMAT], PATIENCE).output_of("squeue");
        match said.map_err(anyhow::Error::msg).and_then(|said| verdicts(jobs, &said)) {
            Ok(Some(failed)) => return Ok(failed),
            Ok(None) => answered = Instant::now(),
            Err(error) if answered.elapsed() >= AWAY => return Err(error),
            Err(_) => {}
        }
        sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[expect(clippy::disallowed_methods, reason = "Slurm has no event for the end of a job")]
fn sleep(pause: Duration) {
    std::thread::sleep(pause);
}

/// How each job ended that failed, once all have ended.
fn verdicts(jobs: &[String], said: &str) -> anyhow::Result<Option<Vec<String>>> {
    let mut known: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for line in said.lines() {
        let mut words = line.split_whitespace();
        if let (Some(job), Some(state)) = (words.next(), words.next()) {
            known.insert(job, (state, words.next().unwrap_or_default()));
        }
    }
    let mut failed = Vec::new();
    for job in jobs {
        let Some((state, code)) = known.get(job.as_str()) else {
            anyhow::bail!(
                "slurmctld knows job {job} no more; `slurminit logs slurmctld` on the controller has its end"
            );
        };
        match *state {
            "COMPLETED" => {}
            "FAILED" | "CANCELLED" | "TIMEOUT" | "NODE_FAIL" | "OUT_OF_MEMORY" | "BOOT_FAIL" | "DEADLINE"
            | "PREEMPTED" => failed.push(format!("job {job} is {state}{}", code_of(code))),
            _ => return Ok(None),
        }
    }
    Ok(Some(failed))
}

/// `CODE:SIGNAL`; before 23.02 the wait status in decimal.
fn code_of(text: &str) -> String {
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

    #[test]
    fn all_have_ended_or_one_is_waited_for() {
        let jobs = ["1", "2", "3", "4"].map(str::to_owned);
        let said = "3  COMPLETED  0:0  \n1  FAILED  3:0  \n2  FAILED  0:9\n4 CANCELLED 0:15\n";
        let want = ["job 1 is FAILED, exit code 3", "job 2 is FAILED, signal 9", "job 4 is CANCELLED, signal 15"];
        assert_eq!(verdicts(&jobs, said).unwrap().unwrap(), want);
        assert_eq!(verdicts(&jobs, &said.replace("COMPLETED", "COMPLETING")).unwrap(), None);
        let old = "1 FAILED 768\n2 FAILED 9\n";
        assert_eq!(verdicts(&jobs[..2], old).unwrap().unwrap(), want[..2]);
        assert!(verdicts(&jobs, "1 COMPLETED 0:0\n").unwrap_err().to_string().contains("job 2"));
    }
}
