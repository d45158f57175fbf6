//! What jobs use of slurm.conf. slurmctld ends a job as NODE_FAIL, pending or not, whose partition or nodes it does not find there, at a
//! reconfiguration as at a start (22.05 to 24.11, `_sync_jobs_to_conf`).

mod nodes;
mod saved;

use config::FeatureName;
use model::exit_code;
use model::queued_job::QueuedJob;

use super::customized::parse::{self, Line};
use super::{PartitionPlan, Plan, Refusal};

pub use nodes::{GoneNode, check_nodes, gone_nodes, has_same_nodes};
pub use saved::Saved;

/// The jobs that use what a new slurm.conf may lack.
#[derive(Clone, Debug)]
pub struct InUse {
    /// What slurmctld says; `None` if it does not run.
    pub jobs: Option<Vec<QueuedJob>>,
    /// What is in its saved state.
    pub saved: Saved,
}

/// A partition of the former slurm.conf that the new one does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Its name.
    pub name: String,
    /// Whether it takes new jobs.
    pub is_up: bool,
    settings: Vec<(String, String)>,
    /// The NodeSets that its line refers to.
    sets: Vec<FeatureName>,
}

/// The partitions that the new slurm.conf does not have any more.
pub fn gone(former: &str, now: &str) -> Vec<Gone> {
    let (former, now) = (parse::lines(former), parse::lines(now));
    let has = |name: &str| partitions(&now).any(|(known, _)| known == name);
    let sets: Vec<&str> = former.iter().filter_map(|line| line.get("NodeSet")).collect();
    partitions(&former).filter(|(name, _)| !has(name)).map(|(name, line)| Gone::of(name, line, &sets)).collect()
}

fn partitions(lines: &[Line]) -> impl Iterator<Item = (&str, &Line)> {
    let named = |line| Some((Line::get(line, "PartitionName")?, line));
    lines
        .iter()
        .filter_map(named)
        .flat_map(|(names, line)| names.split(',').map(move |name| (name, line)))
        .filter(|(name, _)| !name.eq_ignore_ascii_case("DEFAULT"))
}

impl Gone {
    fn of(name: &str, line: &Line, sets: &[&str]) -> Self {
        let is = |key: &str, known: &str| key.eq_ignore_ascii_case(known);
        let state = line.get("State").filter(|state| !is(state, "UP"));
        // The State of one that takes no jobs already may keep back those that wait.
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

    /// The jobs that use it; `None` if there are none. Those of a saved state have no ids.
    pub fn users(&self, used: &InUse) -> Option<Vec<String>> {
        let Some(jobs) = &used.jobs else { return used.saved.names(&self.name).then(Vec::new) };
        // Of a job that runs slurmctld shows only the partition that it has. It saves what else the job asked for, within 5 s.
        let may_have_asked = |job: &QueuedJob| {
            !job.waits() && (job.time.starts_with("0:0") || used.saved.names_among_others(&self.name))
        };
        let uses = |job: &&QueuedJob| job.partition.split(',').any(|name| name == self.name) || may_have_asked(job);
        let ids: Vec<String> = jobs.iter().filter(uses).map(|job| job.id.clone()).collect();
        (!ids.is_empty()).then_some(ids)
    }
}

impl Plan {
    /// Adds partitions and nodes of the former slurm.conf; they take no new jobs.
    pub fn keep(&mut self, gone: &[Gone], nodes: &[GoneNode]) {
        self.kept_nodes.extend(nodes.iter().cloned());
        for Gone { name, settings, sets, .. } in gone {
            self.partitions.push(PartitionPlan { name: name.clone(), settings: settings.clone(), is_kept: true });
            if let Some(known) = &mut self.node_sets {
                let new: Vec<FeatureName> = sets.iter().filter(|set| !known.contains(set)).cloned().collect();
                known.extend(new);
            }
        }
    }
}

/// A refusal for what only the user's own slurm.conf can keep.
pub fn missing(what: &str, state: &str, jobs: &[String], own: &str) -> Refusal {
    let mut refused = refusal(&format!("{own} does not have {what} any more, and jobs use it"), jobs);
    refused.finding.repair =
        format!("leave its line there with State={state} until they have ended, or end them with scancel");
    refused
}

fn refusal(what: &str, jobs: &[String]) -> Refusal {
    let cause = "slurmctld would end these jobs as NODE_FAIL, those that wait too";
    let repair = "run `slurminit reload` when they have ended, or end them with scancel";
    Refusal::new(exit_code::FAILURE, format!("{what}: {}", list(jobs)), cause, repair)
}

/// How many jobs a message names.
const NAMED: usize = 50;

/// The jobs, as a message names them.
pub fn list(jobs: &[String]) -> String {
    let named = jobs[..jobs.len().min(NAMED)].join(", ");
    match jobs.len().checked_sub(NAMED).filter(|more| *more > 0) {
        Some(more) => format!("{named} and {more} more"),
        None => named,
    }
}

fn ids<'a>(jobs: impl Iterator<Item = &'a QueuedJob>) -> Vec<String> {
    jobs.map(|job| job.id.clone()).collect()
}

#[cfg(test)]
mod tests;
