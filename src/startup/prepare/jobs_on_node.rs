//! Checks that the controller can delete its record of this node, which a node with changed hardware requires. It deletes only a node
//! without jobs and reservations (24.11, `_delete_node_ptr`). The node has to be drained, so that no job starts meanwhile.

use super::budget::Budget;
use model::exit_code;
use plan::Refusal;
use slurm::client::Jobs;
use slurm::error::QueryError;
use slurm::node_record::NodeRecord;

/// Fails if the controller would not delete the node, a job would lose a resource, or slurmctld does not report the jobs.
pub(super) fn check_no_job_is_on(node: &str, budget: &Budget) -> Result<(), Refusal> {
    let client = budget.slurm();
    let no_answer = |why: QueryError| refusal(format!("slurmctld does not report the jobs on {node}: {why}"), node);
    let record = client.node(node).map_err(no_answer)?;
    // Slurm would delete a node with a suspended job.
    let jobs = client.jobs(&Jobs { node: Some(node), options: &["--all"], ..Jobs::HOLDING }).map_err(no_answer)?;
    let jobs: Vec<String> = jobs.iter().map(|job| job.number.to_string()).collect();
    match hindrance(record.as_ref(), &jobs) {
        None => Ok(()),
        Some(why) => Err(refusal(format!("the hardware of node {node} changed, and {why}"), node)),
    }
}

/// The reason why the node cannot be deleted.
fn hindrance(record: Option<&NodeRecord>, jobs: &[String]) -> Option<String> {
    let has_flag = |flag: &str| record.is_some_and(|record| record.has_state(&[flag]));
    match jobs {
        [] if has_flag("RESERVED") => Some("the node is in a reservation".to_owned()),
        [] if has_flag("DRAIN") => None,
        [] => {
            let state = record.and_then(|record| record.get("State")).unwrap_or_default();
            Some(format!("the node is not drained ({state})"))
        }
        jobs => Some(format!("jobs are on it: {}", jobs.join(", "))),
    }
}

fn refusal(what: String, node: &str) -> Refusal {
    let cause = "the controller must delete its record of the node first, which requires that no job is there";
    let fix = format!(
        "run `slurminit drain {node}`; when its jobs have ended, `slurminit reload` here, and `slurminit resume {node}`"
    );
    Refusal::new(exit_code::FAILURE, what, cause, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletes_only_drained_node_without_jobs_or_reservation() {
        let refusal_for = |state: &str, jobs: &str| {
            let node = NodeRecord::parse(&format!("NodeName=c1 Gres=gpu:1 State={state} ThreadsPerCore=1"));
            hindrance(node.as_ref(), &jobs.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        assert_eq!(refusal_for("IDLE+DRAIN+DYNAMIC_NORM", ""), None);
        assert_eq!(refusal_for("IDLE*+DRAIN+DYNAMIC_NORM", "\n"), None);
        for (state, jobs, word) in [
            ("IDLE+DYNAMIC_NORM", "", "not drained"),
            ("IDLE+DRAIN+DYNAMIC_NORM+RESERVED", "", "reservation"),
            ("IDLE+DRAIN+DYNAMIC_NORM", "7\n8\n", "7, 8"),
            ("", "", "not drained"),
        ] {
            assert!(refusal_for(state, jobs).is_some_and(|why| why.contains(word)), "{state}");
        }
    }
}
