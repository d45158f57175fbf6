//! A node of a cluster of several containers can be another one only once the controller has forgotten it, which it does of a node without
//! jobs and reservations alone (24.11, `_delete_node_ptr`). It has to be drained, so that no job begins meanwhile.

use std::time::Duration;

use model::exit_code;
use plan::Refusal;
use sys::tool;

/// How long slurmctld may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Slurm would forget a node with a suspended job.
const STATES: &str = "--states=RUNNING,SUSPENDED,CONFIGURING,STOPPED,COMPLETING";

/// Fails if the controller would not forget the node, or a job would miss something, or slurmctld does not say.
pub(super) fn check_no_job_is_on(node: &str) -> Result<(), Refusal> {
    let said = |program: &str, arguments: &[&str]| {
        let answer = tool::ask(program, arguments, PATIENCE).output_of(program);
        answer.map_err(|why| refusal(format!("slurmctld does not say which jobs are on {node}: {why}"), node))
    };
    let known = said("scontrol", &["--oneliner", "show", "node", node])?;
    let jobs = said("squeue", &["--noheader", "--all", "--format=%A", STATES, &format!("--nodelist={node}")])?;
    match hindrance(&known, &jobs) {
        None => Ok(()),
        Some(why) => Err(refusal(format!("the node {node} has other hardware now, and {why}"), node)),
    }
}

/// What keeps the node from being forgotten, by the words of scontrol and squeue.
fn hindrance(known: &str, jobs: &str) -> Option<String> {
    let state = known.split_whitespace().find_map(|word| word.strip_prefix("State=")).unwrap_or_default();
    let is = |flag: &str| state.split('+').any(|word| word.trim_end_matches('*') == flag);
    let jobs: Vec<&str> = jobs.split_whitespace().collect();
    match jobs.as_slice() {
        [] if is("RESERVED") => Some("it is in a reservation".to_owned()),
        [] if is("DRAIN") => None,
        [] => Some(format!("it is not drained ({state})")),
        jobs => Some(format!("jobs are on it: {}", jobs.join(", "))),
    }
}

fn refusal(what: String, node: &str) -> Refusal {
    let cause = "the controller has to forget the node and hear of it anew, which it does only while no job is there";
    let repair = format!(
        "`slurminit drain {node}`; when its jobs have ended, `slurminit reload` here, and `slurminit resume {node}`"
    );
    Refusal::new(exit_code::FAILURE, what, cause, repair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_drained_node_without_jobs_and_reservations_is_forgotten() {
        let said = |state: &str, jobs: &str| {
            hindrance(&format!("NodeName=c1 Gres=gpu:1 State={state} ThreadsPerCore=1"), jobs)
        };
        assert_eq!(said("IDLE+DRAIN+DYNAMIC_NORM", ""), None);
        assert_eq!(said("IDLE*+DRAIN+DYNAMIC_NORM", "\n"), None);
        for (state, jobs, word) in [
            ("IDLE+DYNAMIC_NORM", "", "not drained"),
            ("IDLE+DRAIN+DYNAMIC_NORM+RESERVED", "", "reservation"),
            ("IDLE+DRAIN+DYNAMIC_NORM", "7\n8\n", "7, 8"),
            ("", "", "not drained"),
        ] {
            assert!(said(state, jobs).is_some_and(|why| why.contains(word)), "{state}");
        }
    }
}
