//! The partitions and nodes that jobs use. slurmctld ends a job with NODE_FAIL if its partition or nodes are missing from slurm.conf, both
//! at a reconfiguration and at a start (24.11, `_sync_jobs_to_conf`).

mod nodes;
mod saved;

use config::FeatureName;
use model::exit_code;
use model::queued_job::QueuedJob;

use super::customized::parse::{self, Line};
use super::{PartitionPlan, Plan, Refusal};

pub use nodes::{RemovedNode, check_nodes, has_same_nodes, removed_nodes};
pub use saved::Saved;

/// The jobs whose partitions or nodes may be missing from a new slurm.conf.
#[derive(Clone, Debug)]
pub struct InUse {
    /// The jobs reported by slurmctld; `None` at a start, or if slurmctld cannot be queried.
    pub jobs: Option<Vec<QueuedJob>>,
    /// The names in the saved state.
    pub saved: Saved,
}

/// A partition of the previous slurm.conf that is missing from the new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedPartition {
    /// The partition's name.
    pub name: String,
    /// Whether the partition's State was UP in the previous slurm.conf.
    pub is_up: bool,
    settings: Vec<(String, String)>,
    /// The NodeSets that the partition's line refers to.
    sets: Vec<FeatureName>,
}

/// The partitions that are missing from the new slurm.conf.
pub fn removed_partitions(former: &str, now: &str) -> Vec<RemovedPartition> {
    let (former, now) = (parse::lines(former), parse::lines(now));
    let has = |name: &str| partitions(&now).any(|(known, _)| known == name);
    let sets: Vec<&str> = former.iter().filter_map(|line| line.get("NodeSet")).collect();
    partitions(&former)
        .filter(|(name, _)| !has(name))
        .map(|(name, line)| RemovedPartition::of(name, line, &sets))
        .collect()
}

fn partitions(lines: &[Line]) -> impl Iterator<Item = (&str, &Line)> {
    let named = |line| Some((Line::get(line, "PartitionName")?, line));
    lines
        .iter()
        .filter_map(named)
        .flat_map(|(names, line)| names.split(',').map(move |name| (name, line)))
        .filter(|(name, _)| !name.eq_ignore_ascii_case("DEFAULT"))
}

impl RemovedPartition {
    fn of(name: &str, line: &Line, sets: &[&str]) -> Self {
        let is = |key: &str, known: &str| key.eq_ignore_ascii_case(known);
        let state = line.get("State").filter(|state| !is(state, "UP"));
        // Any other State is kept: with DRAIN, the pending jobs of a partition that is DOWN or INACTIVE would start.
        let state = ("State".to_owned(), state.unwrap_or("DRAIN").to_owned());
        let own =
            line.pairs().iter().filter(|(key, _)| !["PartitionName", "State", "Default"].iter().any(|no| is(key, no)));
        let nodes = line.get("Nodes").unwrap_or_default();
        let sets = nodes.split(',').filter(|set| sets.contains(set)).map(|set| set.to_owned().try_into());
        Self {
            name: name.to_owned(),
            is_up: state.1 == "DRAIN" && line.get("State").is_none_or(|state| is(state, "UP")),
            settings: own.cloned().chain([state]).collect(),
            sets: sets.filter_map(Result::ok).collect(),
        }
    }

    /// Removes the nodes that are missing from `now`, because slurmctld exits at a partition with an unknown node. The jobs of a partition
    /// without nodes wait.
    pub fn remove_missing_nodes(&mut self, former: &str, now: &str) {
        for (_, list) in self.settings.iter_mut().filter(|(key, _)| key.eq_ignore_ascii_case("Nodes")) {
            if let Some(rest) = nodes::without_missing(list, former, now) {
                *list = rest;
            }
        }
    }

    /// The jobs that use the partition or may have requested it; `None` if there are none. Without a list of jobs from slurmctld,
    /// returns an empty list if the saved state contains the partition.
    pub fn using_jobs(&self, used: &InUse) -> Option<Vec<String>> {
        let Some(jobs) = &used.jobs else { return used.saved.contains_partition(&self.name).then(Vec::new) };
        // slurmctld shows only the current partition of a running job. It saves the requested partitions within 5 s.
        let may_have_requested = |job: &QueuedJob| {
            !job.is_pending() && (job.time.starts_with("0:0") || used.saved.contains_in_partition_list(&self.name))
        };
        let uses = |job: &&QueuedJob| job.partition.split(',').any(|name| name == self.name) || may_have_requested(job);
        let ids: Vec<String> = jobs.iter().filter(uses).map(|job| job.id.clone()).collect();
        (!ids.is_empty()).then_some(ids)
    }
}

impl Plan {
    /// Adds partitions and nodes of the previous slurm.conf. Because of their State, no job submitted later starts on them.
    pub fn keep(&mut self, gone: &[RemovedPartition], nodes: &[RemovedNode]) {
        self.kept_nodes.extend(nodes.iter().cloned());
        for RemovedPartition { name, settings, sets, .. } in gone {
            self.partitions.push(PartitionPlan { name: name.clone(), settings: settings.clone(), is_kept: true });
            if let Some(known) = &mut self.node_sets {
                let new: Vec<FeatureName> = sets.iter().filter(|set| !known.contains(set)).cloned().collect();
                known.extend(new);
            }
        }
    }
}

/// The refusal if the user's own slurm.conf no longer contains an entry that jobs use. slurminit does not edit the user's file.
pub fn missing_entry(what: &str, state: &str, jobs: &[String], own: &str) -> Refusal {
    let mut refused = refusal(&format!("{what} is missing from {own}, but jobs use it"), jobs);
    refused.finding.fix =
        format!("restore its line with State={state} until the jobs have ended, or cancel them with scancel");
    refused
}

fn refusal(what: &str, jobs: &[String]) -> Refusal {
    let cause = "slurmctld would end these jobs with NODE_FAIL";
    let list = if jobs.is_empty() { "saved jobs (IDs unknown)".to_owned() } else { job_list(jobs) };
    let fix = "run `slurminit reload` when the jobs have ended, or cancel them with scancel";
    Refusal::new(exit_code::FAILURE, format!("{what}: {list}"), cause, fix)
}

/// The maximum number of jobs in a message.
const MAX_LISTED: usize = 50;

/// The jobs as text for a message.
pub fn job_list(jobs: &[String]) -> String {
    let named = jobs[..jobs.len().min(MAX_LISTED)].join(", ");
    match jobs.len().checked_sub(MAX_LISTED).filter(|more| *more > 0) {
        Some(more) => format!("{named} and {more} more"),
        None => named,
    }
}

fn ids<'a>(jobs: impl Iterator<Item = &'a QueuedJob>) -> Vec<String> {
    jobs.map(|job| job.id.clone()).collect()
}

#[cfg(test)]
mod tests;
