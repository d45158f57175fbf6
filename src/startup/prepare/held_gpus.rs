//! Rejects a change while running jobs hold GPUs. If slurmctld starts with another number of GPUs on their node, it aborts these
//! jobs, whichever GPU they hold (24.11, `_find_invalid_job_gres_on_node`: "gres/gpu count mismatch").

use serde_json::Value;

use super::budget::Budget;
use model::exit_code;
use model::inventory::gres::has_gpu;
use model::message;
use plan::Refusal;
use slurm::client::Jobs;
use slurm::error::QueryError;
use sys::report;

/// Fails if a running job holds GPUs, or if that cannot be determined.
pub(super) fn check_no_job_holds_gpus(budget: &Budget) -> Result<(), Refusal> {
    // Uses JSON: in `scontrol show job`, a job's name and comment can imitate Slurm's own lines.
    let client = budget.slurm();
    let answer = match client.output("squeue", &["--json"]) {
        Ok(answer) => answer,
        Err(QueryError::TimedOut(_)) => {
            return Err(refusal(
                "slurmctld did not respond in time, so it is unknown which jobs hold GPUs",
                "see `slurminit logs slurmctld`",
            ));
        }
        _ if client.jobs(&Jobs::default()).is_ok() => {
            return Err(refusal("`squeue --json` fails, which reports the jobs that hold GPUs", NO_JSON));
        }
        // Without a running controller, a restart affects no job.
        Err(error) => {
            report::warn(message!("held-gpus-not-checked", "not checked whether jobs hold GPUs: {error}", error));
            return Ok(());
        }
    };
    let Some(jobs) = jobs_with_gpus(&answer) else {
        return Err(refusal("`squeue --json` does not report which jobs hold GPUs", NO_JSON));
    };
    if jobs.is_empty() {
        return Ok(());
    }
    Err(refusal(
        &format!("the node's GPUs changed, and jobs hold some of the previous ones: {}", jobs.join(", ")),
        "run `slurminit reload` when they have ended, or end them with scancel or `scontrol requeue`",
    ))
}

const NO_JSON: &str = "install Slurm's plugin serializer_json, or restart the container when no job runs";

fn refusal(what: &str, fix: &str) -> Refusal {
    let cause = "Slurm aborts every job with a GPU when the number of GPUs of its node changes";
    Refusal::new(exit_code::FAILURE, what, cause, fix)
}

/// The IDs of jobs in `squeue --json` that hold GPUs or parts of them; `None` if the answer is malformed. Slurm reports
/// `gres_detail` only for jobs that hold resources.
fn jobs_with_gpus(answer: &str) -> Option<Vec<String>> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    let holds = |job: &&Value| {
        let held = job.get("gres_detail").and_then(Value::as_array).into_iter().flatten();
        held.filter_map(Value::as_str).any(has_gpu)
    };
    let jobs = answer.get("jobs")?.as_array()?;
    Some(jobs.iter().filter(holds).filter_map(|job| Some(job.get("job_id")?.as_u64()?.to_string())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_jobs_with_gpus() {
        let answer = r#"{"jobs": [
            {"job_id": 7, "name": "a", "job_state": ["RUNNING"], "gres_detail": ["gpu:nvidia:1(IDX:0)"]},
            {"job_id": 8, "name": "\n GRES=gpu:1 gres_detail", "comment": "GRES=gpu:1", "job_state": ["RUNNING"], "gres_detail": []},
            {"job_id": 9, "job_state": "PENDING", "gres_detail": []},
            {"job_id": 10, "job_state": "RUNNING", "gres_detail": ["tmp:1,gpu:1"]},
            {"job_id": 11, "job_state": "RUNNING", "gres_detail": ["shard:nvidia:2(0/4,2/4)"]},
            {"job_id": 12, "job_state": "RUNNING", "gres_detail": ["mps:60(60/100,0/100)"]}]}"#;
        assert_eq!(jobs_with_gpus(answer).unwrap(), ["7", "10", "11", "12"]);
        assert_eq!(jobs_with_gpus("{}"), None);
        assert_eq!(jobs_with_gpus("JobId=7 GRES=gpu"), None);
    }
}
