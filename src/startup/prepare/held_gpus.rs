//! Rejects a change of a node's GPUs while jobs hold GPUs. If slurmctld starts with another number of GPUs on a node, it aborts the node's
//! jobs with GPUs, whichever GPU they hold (24.11, `_find_invalid_job_gres_on_node`: "gres/gpu count mismatch").

use serde_json::Value;

use model::exit_code;
use model::inventory::gres::has_gpu;
use model::message;
use plan::Refusal;
use slurm::client::{Client, Jobs};
use slurm::error::QueryError;
use sys::report;

/// Fails if a job holds GPUs, or if a controller is running but does not report whether one does.
pub(super) fn check_no_job_holds_gpus(client: &Client<'_>) -> Result<(), Refusal> {
    // Uses JSON: in `scontrol show job`, a job's name and comment can imitate Slurm's own lines.
    let answer = match client.output("squeue", &["--json"]) {
        Ok(answer) => answer,
        Err(QueryError::TimedOut(_)) => {
            return Err(refusal(
                "slurmctld did not respond in time, so it is unknown which jobs hold GPUs",
                "see `slurminit logs slurmctld`",
            ));
        }
        _ if client.jobs(&Jobs::default()).is_ok() => {
            return Err(refusal("`squeue --json`, which reports the jobs that hold GPUs, fails", NO_JSON));
        }
        // Every query fails, so there is probably no controller, and no jobs to query.
        Err(error) => {
            report::warn(message!("held-gpus-not-checked", "cannot check whether jobs hold GPUs: {error}", error));
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
        &format!("the GPUs of a node changed, and jobs hold GPUs: {}", jobs.join(", ")),
        "run `slurminit reload` when these jobs have ended; to end them now, use scancel or `scontrol requeue`",
    ))
}

const NO_JSON: &str = "install Slurm's plugin serializer_json, or restart the container when no job runs";

fn refusal(what: &str, fix: &str) -> Refusal {
    let cause = "Slurm aborts every job with a GPU when the number of GPUs on its node changes";
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
    use crate::fake_slurm::FakeSlurm;
    use sys::tool::answer::Answer;

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

    #[test]
    fn number_of_gpus_may_change_only_if_no_job_holds_one() {
        let (held, free) = (r#"{"jobs": [{"job_id": 7, "gres_detail": ["gpu:nvidia:1(IDX:0)"]}]}"#, r#"{"jobs": []}"#);
        for (json, plain, expected) in [
            (Ok(held), Ok(""), Some("jobs hold GPUs: 7")),
            (Ok(free), Ok(""), None),
            (Ok("{}"), Ok(""), Some("does not report which jobs hold GPUs")),
            (Err("no plugin"), Ok(""), Some("`squeue --json`, which reports the jobs that hold GPUs, fails")),
            // Without a running controller, a restart affects no job.
            (Err("connection refused"), Err("connection refused"), None),
        ] {
            let slurm = FakeSlurm::new(&[("squeue --json", json), ("squeue", plain)]);
            let refused =
                check_no_job_holds_gpus(&Client::with_runner(&slurm.run())).err().map(|refused| refused.finding.what);
            assert_eq!(refused.is_some(), expected.is_some(), "{refused:?}");
            assert!(refused.unwrap_or_default().contains(expected.unwrap_or_default()), "{json:?}");
        }
        let refused = check_no_job_holds_gpus(&Client::with_runner(&|_, _| Answer::Silent)).unwrap_err();
        assert_eq!(refused.exit_code, exit_code::FAILURE);
        assert!(refused.finding.what.starts_with("slurmctld did not respond in time"), "{}", refused.finding);
    }
}
