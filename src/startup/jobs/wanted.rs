//! Jobs that request a node by its name, or exclude it.

use super::SLURM;
use model::hostlist;
use model::queued_job::QueuedJob;
use slurm::client::Jobs;
use slurm::node_record::NodeRecord;

/// The unfinished jobs that name the node. `record`: the node's record in slurmctld; users may also use its host name.
pub(super) fn jobs_naming(record: &NodeRecord) -> anyhow::Result<Vec<String>> {
    let jobs = SLURM.jobs(&Jobs { options: &["--all"], ..Jobs::default() })?;
    Ok(jobs.into_iter().filter(|job| names_node(job, record)).map(|job| job.id).collect())
}

fn names_node(job: &QueuedJob, record: &NodeRecord) -> bool {
    let node_names = ["NodeName", "NodeHostName"].map(|key| record.get(key));
    let is_name_of_node = |name: &String| node_names.contains(&Some(name.as_str()));
    let lists = [&job.required, &job.excluded].into_iter();
    lists.filter_map(|list| hostlist::names(list)).flatten().any(|name| is_name_of_node(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_jobs_that_request_or_exclude_node() {
        let node = "NodeName=compute-2 NodeAddr=172.18.0.3 NodeHostName=3feeba991c75 State=IDLE+DYNAMIC_NORM";
        let node = NodeRecord::parse(node).unwrap();
        let names_node = |required: &str, excluded: &str| {
            let (required, excluded) = (required.to_owned(), excluded.to_owned());
            names_node(&QueuedJob { required, excluded, ..QueuedJob::default() }, &node)
        };
        assert!(names_node("compute-[1-2]", "") && names_node("", "compute-2") && names_node("3feeba991c75", ""));
        assert!(!names_node("", "") && !names_node("compute-[3-9]", "compute-1") && !names_node("compute-22", ""));
    }
}
