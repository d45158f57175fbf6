//! Checks that the controller can delete its record of this node, which a node with changed hardware requires. slurmctld refuses to delete
//! a node with a reservation or a job, except a suspended job (24.11, `_delete_node_ptr`). The node has to be drained, so that no job
//! starts meanwhile.

use model::exit_code;
use plan::Refusal;
use slurm::client::{Client, Jobs};
use slurm::error::QueryError;
use slurm::node_record::NodeRecord;

/// Fails if the node is not drained, has a reservation or a job (also a suspended one), or if slurmctld does not report the node or its jobs.
pub(super) fn check_no_job_is_on(node: &str, client: &Client<'_>) -> Result<(), Refusal> {
    let no_answer = |why: QueryError| {
        let mut refused = refusal(format!("slurmctld does not report the jobs on {node}: {why}"), node);
        refused.finding.fix =
            "see `slurminit doctor` in the controller's container, then run `slurminit reload` here".to_owned();
        refused
    };
    let record = client.node(node).map_err(no_answer)?;
    // Includes suspended jobs, which would not keep Slurm from deleting the node.
    let jobs = client.jobs(&Jobs { node: Some(node), options: &["--all"], ..Jobs::HOLDING }).map_err(no_answer)?;
    let jobs: Vec<String> = jobs.iter().map(|job| job.number.to_string()).collect();
    match hindrance(record.as_ref(), &jobs) {
        None => Ok(()),
        Some(why) => Err(refusal(format!("the hardware of node {node} changed, and {why}"), node)),
    }
}

/// The reason why the node must not be deleted, if any.
fn hindrance(record: Option<&NodeRecord>, jobs: &[String]) -> Option<String> {
    let has_flag = |flag: &str| record.is_some_and(|record| record.has_state(&[flag]));
    match jobs {
        [] if has_flag("RESERVED") => Some("the node is in a reservation".to_owned()),
        [] if has_flag("DRAIN") => None,
        [] => {
            let state = record.and_then(|record| record.get("State")).unwrap_or("unknown to slurmctld");
            Some(format!("the node is not drained ({state})"))
        }
        jobs => Some(format!("jobs are on it: {}", jobs.join(", "))),
    }
}

fn refusal(what: String, node: &str) -> Refusal {
    let cause = "before the node registers with other hardware, the controller must delete the node's record; this requires a drained \
                 node without jobs and reservations";
    let fix = format!(
        "run `slurminit drain {node}`; when its jobs and reservations have ended, run `slurminit reload` here, then `slurminit resume {node}`"
    );
    Refusal::new(exit_code::FAILURE, what, cause, fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_slurm::FakeSlurm;

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

    #[test]
    fn counts_all_jobs_that_hold_resources_of_node() {
        let drained = "NodeName=c1 State=IDLE+DRAIN+DYNAMIC_NORM";
        let job = "7|7|SUSPENDED|1|0:10|main|alice|1501|c1|||(null)|None|N/A";
        for (record, jobs, expected) in [
            (Ok(drained), Ok(""), None),
            (Ok(drained), Ok(job), Some("the hardware of node c1 changed, and jobs are on it: 7")),
            (Ok(drained), Err("connection refused"), Some("slurmctld does not report the jobs on c1: ")),
            (Err("connection refused"), Ok(""), Some("slurmctld does not report the jobs on c1: ")),
        ] {
            let slurm = FakeSlurm::new(&[("scontrol --oneliner show node c1", record), ("squeue", jobs)]);
            let refused = check_no_job_is_on("c1", &Client::with_runner(&slurm.run())).err();
            let (what, fix) = refused.map(|refused| (refused.finding.what, refused.finding.fix)).unwrap_or_default();
            assert_eq!(what.is_empty(), expected.is_none(), "{what}");
            assert!(what.starts_with(expected.unwrap_or_default()), "{what}");
            assert_eq!(fix.starts_with("run `slurminit drain c1`"), what.starts_with("the hardware"), "{fix}");
            let is_restricted =
                |query: &String| ["--all", "SUSPENDED", "--nodelist=c1"].iter().all(|word| query.contains(word));
            assert!(slurm.commands("squeue").iter().all(is_restricted));
        }
    }
}
