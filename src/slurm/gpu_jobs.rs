//! The jobs of a node and their GPUs, including jobs that have ended in the last minutes.

use anyhow::Context as _;
use serde_json::Value;

use crate::client::{Client, Jobs};
use crate::nodes::answer::{allocations, job, number, text};
use faults::usage::Job;
use model::inventory::gres;

/// States of a job that holds resources and has not ended. For such a job, the end in squeue's output is the expiry of the
/// time limit.
const UNENDED: [&str; 5] = ["RUNNING", "SUSPENDED", "CONFIGURING", "STOPPED", "RESIZING"];

/// Queries slurmctld for the jobs of `node`.
///
/// # Errors
/// The query fails, or Slurm's JSON has an unknown format.
pub fn query(client: &Client, node: &str) -> anyhow::Result<Vec<Job>> {
    let filter = Jobs { states: &["all"], node: Some(node), options: &["--all", "--json"] };
    parse(&client.jobs_json(&filter)?, node).context("Slurm's JSON output has an unknown format")
}

fn parse(answer: &str, node: &str) -> anyhow::Result<Vec<Job>> {
    let answer: Value = serde_json::from_str(answer)?;
    let jobs = answer["jobs"].as_array().context("missing key: jobs")?;
    Ok(jobs.iter().filter_map(|value| parse_job(value, node)).collect())
}

/// The AdminComment of the first job in squeue's JSON; `None` if the text contains no job.
pub fn admin_comment(answer: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    Some(text(answer["jobs"].as_array()?.first()?, "admin_comment"))
}

/// Parses a job that is or was on the node; `None` for any other job, and for a pending job, whose start is only an estimate.
fn parse_job(value: &Value, node: &str) -> Option<Job> {
    let state = value["job_state"].as_array().into_iter().flatten().find_map(Value::as_str)?.to_owned();
    if state == "PENDING" {
        return None;
    }
    let detail = allocations(value).into_iter().find(|held| held.node == node)?.detail;
    let owned = job(value)?;
    let seconds = |key: &str| number(&value[key]).filter(|seconds| *seconds > 0);
    let task = value["array_task_id"]["set"].as_bool().unwrap_or_default();
    let array = number(&value["array_job_id"]).filter(|_| task).zip(number(&value["array_task_id"]));
    let nodes = value["job_resources"]["nodes"]["allocation"].as_array();
    let own = nodes.into_iter().flatten().find(|own| own["name"].as_str() == Some(node)).unwrap_or(&Value::Null);
    Some(Job {
        job: owned.job,
        array,
        uid: number(&value["user_id"]).and_then(|uid| uid.try_into().ok())?,
        user: owned.user,
        account: text(value, "account"),
        partition: text(value, "partition"),
        qos: text(value, "qos"),
        nodes: allocations(value).len() as u64,
        is_batch_host: value["batch_flag"] == true && value["batch_host"] == node,
        is_first_node: value["batch_host"] == node,
        mail: value["mail_type"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        comment: text(value, "admin_comment"),
        cpus: number(&own["cpus"]["count"]).unwrap_or_default(),
        memory_mib: number(&own["memory"]["allocated"]).unwrap_or_default(),
        start: seconds("start_time")?,
        end: seconds("end_time").filter(|_| !UNENDED.contains(&state.as_str())),
        state,
        gpus: gres::indices(&detail),
        shared: gres::shares(&detail),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::answers;

    #[test]
    fn parses_running_and_ended_jobs_of_the_node() {
        let set = |number: u64| serde_json::json!({"set": true, "infinite": false, "number": number});
        let job = |id: u64, state: &[&str], detail: &str| {
            serde_json::json!({"job_id": id, "job_state": state, "user_name": "alice", "user_id": 1501, "start_time": set(100),
                "end_time": set(200), "array_job_id": set(7), "array_task_id": set(id), "gres_detail": ["", detail],
                "partition": "main", "account": "lab", "job_resources": {"nodes": {"allocation": [{"name": "c2"},
                    {"name": "c1", "cpus": {"count": 4}, "memory": {"allocated": 2048}}]}}})
        };
        let jobs = serde_json::json!({"jobs": [
            job(1, &["RUNNING"], "gpu:nvidia:2(IDX:0,3)"), job(2, &["COMPLETED", "COMPLETING"], "shard:nvidia:2(0/4,2/4)"),
            job(3, &["PENDING"], ""), {"job_id": 4}]});
        let jobs = parse(&jobs.to_string(), "c1").unwrap();
        let [running, ended] = jobs.as_slice() else { panic!("{jobs:?}") };
        assert_eq!((running.gpus.as_slice(), running.end, running.start), ([0, 3].as_slice(), None, 100));
        assert_eq!((running.cpus, running.memory_mib, running.array), (4, 2048, Some((7, 1))));
        assert_eq!(
            (ended.shared.as_slice(), ended.end, ended.state.as_str()),
            ([(1, 500_000)].as_slice(), Some(200), "COMPLETED")
        );
        assert!(parse("{}", "c1").is_err());
    }

    #[test]
    fn batch_script_runs_on_batch_host_only() {
        let hosts = |node: &str, has_script: bool| {
            let set = |number: u64| serde_json::json!({"set": true, "number": number});
            let job = serde_json::json!({"job_id": 7, "job_state": ["RUNNING"], "user_id": 1501, "start_time": set(100), "end_time": set(0),
                "batch_flag": has_script, "batch_host": "c1", "mail_type": ["END", "FAIL"], "admin_comment": "seen", "qos": "long",
                "job_resources": {"nodes": {"allocation": [{"name": "c1"}, {"name": "c2"}]}}});
            let answer = serde_json::json!({"jobs": [job]}).to_string();
            let comment = admin_comment(&answer);
            let command = format!("squeue --noheader --all --json --states=all --nodelist={node}");
            let known = [(command.as_str(), Ok(answer.as_str()))];
            let run = answers(known);
            let jobs = query(&Client::with_runner(&run), node).unwrap();
            let [job] = jobs.as_slice() else { panic!("{jobs:?}") };
            assert_eq!((job.nodes, job.mail.join(","), job.qos.as_str()), (2, "END,FAIL".to_owned(), "long"));
            assert_eq!((job.array, job.end, Some(&job.comment)), (None, None, comment.as_ref()));
            (job.is_batch_host, job.is_first_node)
        };
        assert_eq!(hosts("c1", true), (true, true));
        assert_eq!(hosts("c1", false), (false, true));
        assert_eq!(hosts("c2", true), (false, false));
        assert_eq!((admin_comment("{\"jobs\": []}"), admin_comment("x")), (None, None));
    }
}
