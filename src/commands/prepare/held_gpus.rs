//! The running jobs that hold GPUs. slurmctld aborts them when it starts with another number of GPUs on their node
//! (24.11, `_find_invalid_job_gres_on_node`: "gres/gpu count mismatch"), whichever GPU they hold.

use std::process::{Command, Output};

use serde_json::Value;

use super::Failure;
use crate::exit_code;

/// How long slurmctld may take to answer, in seconds.
const PATIENCE: &str = "5";
/// What `timeout` ends with then.
const TIMED_OUT: i32 = 124;

/// Fails if there is one, and if nobody can say.
pub(super) fn check_nobody_holds_gpus() -> Result<(), Failure> {
    // JSON (22.05 and later): in a line of `scontrol show job`, a job's name and comment look like what Slurm says itself.
    let answer = match squeue("--json") {
        Ok(answer) if answer.status.success() => String::from_utf8_lossy(&answer.stdout).into_owned(),
        Ok(answer) if answer.status.code() == Some(TIMED_OUT) => {
            return Err(refusal("slurmctld does not say whether jobs hold GPUs", "see why it does not answer"));
        }
        _ if squeue("--noheader").is_ok_and(|answer| answer.status.success()) => {
            return Err(refusal("`squeue --json` fails, which says whether jobs hold GPUs", NO_JSON));
        }
        // Without a controller there is nothing to lose by a restart of it.
        other => {
            eprintln!("warning: slurmctld was not asked whether jobs hold GPUs: {other:?}");
            return Ok(());
        }
    };
    let Some(jobs) = holders(&answer) else {
        return Err(refusal("`squeue --json` does not say whether jobs hold GPUs", NO_JSON));
    };
    if jobs.is_empty() {
        return Ok(());
    }
    Err(refusal(
        &format!("the node has other GPUs now, and jobs hold some of the former ones: {}", jobs.join(", ")),
        "run `slurminit reload` when they have ended, or end them with scancel or `scontrol requeue`",
    ))
}

const NO_JSON: &str = "install Slurm's plugin serializer_json, or restart the container when no job runs";

#[expect(clippy::disallowed_methods, reason = "this is a child of PID 1, and waits for its own children only")]
fn squeue(how: &str) -> std::io::Result<Output> {
    Command::new("timeout").args(["--kill-after=1", PATIENCE, "squeue", how]).output()
}

fn refusal(what: &str, repair: &str) -> Failure {
    let cause = "Slurm aborts every job with a GPU when the number of GPUs of its node changes";
    Failure::new(exit_code::FAILURE, what, cause, repair)
}

/// The ids of the jobs in `squeue --json` that hold GPUs or parts of them; `None` if it is no such answer. Slurm tells
/// what is held (`gres_detail`) of jobs that have resources, and of no others.
fn holders(answer: &str) -> Option<Vec<String>> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    let holds = |job: &&Value| {
        let held = job.get("gres_detail").and_then(Value::as_array).into_iter().flatten();
        // A part of a GPU is held like a whole one.
        let is_gpu = |gres: &str| matches!(gres.split(':').next(), Some("gpu" | "shard" | "mps"));
        held.filter_map(Value::as_str).any(|held| held.split(',').any(is_gpu))
    };
    let jobs = answer.get("jobs")?.as_array()?;
    Some(jobs.iter().filter(holds).filter_map(|job| Some(job.get("job_id")?.as_u64()?.to_string())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_jobs_that_have_gpus_count_whatever_their_names_say() {
        let answer = r#"{"jobs": [
            {"job_id": 7, "name": "a", "job_state": ["RUNNING"], "gres_detail": ["gpu:nvidia:1(IDX:0)"]},
            {"job_id": 8, "name": "\n GRES=gpu:1 gres_detail", "comment": "GRES=gpu:1", "job_state": ["RUNNING"], "gres_detail": []},
            {"job_id": 9, "job_state": "PENDING", "gres_detail": []},
            {"job_id": 10, "job_state": "RUNNING", "gres_detail": ["tmp:1,gpu:1"]},
            {"job_id": 11, "job_state": "RUNNING", "gres_detail": ["shard:nvidia:2(0/4,2/4)"]},
            {"job_id": 12, "job_state": "RUNNING", "gres_detail": ["mps:60(60/100,0/100)"]}]}"#;
        assert_eq!(holders(answer).unwrap(), ["7", "10", "11", "12"]);
        assert_eq!(holders("{}"), None);
        assert_eq!(holders("JobId=7 GRES=gpu"), None);
    }
}
