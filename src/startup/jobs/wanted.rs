//! Jobs that request a node by its name, or exclude it.

use super::SLURM;
use model::hostlist;
use model::queued_job::QueuedJob;
use slurm::client::Jobs;
use slurm::node_record::NodeRecord;

/// The unfinished jobs that name the node. `known`: the node's record in slurmctld; users may also use its host name.
pub(super) fn by_jobs(known: &NodeRecord) -> anyhow::Result<Vec<String>> {
    let jobs = SLURM.jobs(&Jobs { options: &["--all"], ..Jobs::default() })?;
    Ok(jobs.into_iter().filter(|job| names(job, known)).map(|job| job.id).collect())
}

fn names(job: &QueuedJob, known: &NodeRecord) -> bool {
    let own = ["NodeName", "NodeHostName"].map(|key| known.get(key));
    let is_own = |name: &String| own.contains(&Some(name.as_str()));
    let lists = [&job.required, &job.excluded].into_iter();
    lists.filter_map(|list| hostlist::names(list)).flatten().any(|name| is_own(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_jobs_that_request_or_exclude_node() {
        let node = "NodeName=compute-2 NodeAddr=172.18.0.3 NodeHostName=3feeba991c75 State=IDLE+DYNAMIC_NORM";
        let node = NodeRecord::parse(node).unwrap();
        let names = |required: &str, excluded: &str| {
            let (required, excluded) = (required.to_owned(), excluded.to_owned());
            names(&QueuedJob { required, excluded, ..QueuedJob::default() }, &node)
        };
        assert!(names("compute-[1-2]", "") && names("", "compute-2") && names("3feeba991c75", ""));
        assert!(!names("", "") && !names("compute-[3-9]", "compute-1") && !names("compute-22", ""));
    }
}
