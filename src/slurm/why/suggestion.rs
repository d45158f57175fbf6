//! Suggests a change of a job's options with which the job would fit now, or might start before the jobs ahead of it.

use super::fit::{self, Closed, Resource, Shortage};
use super::request::{Gpus, Request};
use super::text::{amount, gib};
use super::{Position, Situation};
use crate::nodes::ClusterNode;
use model::printable::count;
use model::queued_job::QueuedJob;
use model::slurm_time::date_seconds;

/// The suggestion as a sentence; `None` if no suitable change was found, or if only Slurm can judge it.
pub(super) fn suggest(
    job: &QueuedJob,
    request: &Request,
    situation: &Situation<'_>,
    position: &Position<'_>,
) -> Option<String> {
    if !position.is_single || request.has_more {
        return None;
    }
    let change = less_time(request, situation, position)
        .or_else(|| other_type(request, position))
        .or_else(|| without_exclusive(request, position))
        .or_else(|| less(request, position))
        .or_else(|| other_node(job, request, situation));
    let change = match change {
        Some(change) => change,
        None if position.shortages.is_empty() && !position.before.is_empty() && position.best.is_some() => {
            return Some(backfill(request));
        }
        None => return None,
    };
    let verb = if position.before.is_empty() { "start" } else { "fit" };
    Some(format!("It would {verb} now {change}"))
}

/// Suggests a time limit, or a shorter one: Slurm starts a job before others if that delays none of them.
fn backfill(request: &Request) -> String {
    let limit = if request.has_limit() { "a shorter time limit" } else { "a time limit" };
    format!("It fits now: with {limit} (--time), Slurm may start it before the jobs ahead of it")
}

/// Suggests a time limit with which the job would end before a reservation begins on a node with enough free resources.
fn less_time(request: &Request, situation: &Situation<'_>, position: &Position<'_>) -> Option<String> {
    let fits = |node: &ClusterNode| fit::shortages(node, request).is_empty();
    let soon = position.closed.iter().find_map(|(node, why)| match why {
        Closed::Soon(one) if fits(node) => Some(*one),
        _ => None,
    });
    let seconds = date_seconds(&soon?.start)?.checked_sub(date_seconds(&situation.details.now)?)?;
    // At least one minute is left for the start itself. Slurm's limits are whole minutes.
    let minutes = (seconds / 60).checked_sub(1).filter(|minutes| *minutes > 0)?;
    Some(format!("with --time={minutes} or less"))
}

/// Suggests another GPU type, if a node with GPUs of that type has enough free resources.
fn other_type(request: &Request, position: &Position<'_>) -> Option<String> {
    let [Gpus { gres_type: Some(kind), .. }] = request.gpus.as_slice() else { return None };
    for node in &position.open {
        let types = node.gpus.iter().map(|gpu| gpu.gres_type.as_str()).filter(|other| other != kind);
        for other in types {
            let changed = request.gpus.iter().map(|gpus| Gpus { gres_type: Some(other.to_owned()), count: gpus.count });
            if fit::shortages(node, &Request { gpus: changed.collect(), ..request.clone() }).is_empty() {
                return Some(format!("with GPUs of type {other} instead of {kind}"));
            }
        }
    }
    None
}

/// Suggests dropping --exclusive, if a node has enough free resources but also runs other jobs.
fn without_exclusive(request: &Request, position: &Position<'_>) -> Option<String> {
    let shared = Request { is_exclusive: false, ..request.clone() };
    let fits = |node: &&&ClusterNode| fit::shortages(node, &shared).is_empty();
    position.open.iter().find(fits).filter(|_| request.is_exclusive).map(|_| "without --exclusive".to_owned())
}

/// Suggests requesting less of what is missing on the best node.
fn less(request: &Request, position: &Position<'_>) -> Option<String> {
    let node = position.best?;
    let parts: Option<Vec<String>> = position.shortages.iter().map(|lack| reduction(lack, request, node)).collect();
    let parts = parts.filter(|parts| !parts.is_empty())?;
    Some(format!("with {}", parts.join(" and ")))
}

/// `at most 3 CPUs`; `None` if too little would be left, or if whole nodes are missing.
fn reduction(lack: &Shortage, request: &Request, node: &ClusterNode) -> Option<String> {
    match &lack.resource {
        // A job that requests GPUs needs at least one.
        Resource::Gpus(_) => (lack.free > 0).then(|| format!("at most {}", amount(&lack.resource, lack.free))),
        Resource::Cpus => {
            // Slurm allocates whole cores.
            let left = lack.free / node.threads * node.threads;
            (left >= request.tasks).then(|| format!("at most {}", count(left.min(request.cpus), "CPU")))
        }
        Resource::Memory => (lack.free > 0).then(|| format!("at most {} of memory", gib_below(lack.free))),
        Resource::WholeNode => None,
    }
}

/// Rounds down to whole GiB, except below 1 GiB.
fn gib_below(mib: u64) -> String {
    gib(if mib >= 1024 { mib / 1024 * 1024 } else { mib })
}

/// Suggests dropping the options that restrict the choice of nodes, if a node of the job's partitions has enough free resources.
fn other_node(job: &QueuedJob, request: &Request, situation: &Situation<'_>) -> Option<String> {
    let fits = |node: &&ClusterNode| {
        fit::closed(node, request, situation).is_none() && fit::shortages(node, request).is_empty()
    };
    let mut options: Vec<&str> = Vec::new();
    options.extend((!job.required.is_empty()).then_some("--nodelist"));
    options.extend((!job.excluded.is_empty()).then_some("--exclude"));
    options.extend((!request.features.is_empty()).then_some("--constraint"));
    let node = fit::in_partitions(job, situation).find(fits).filter(|_| !options.is_empty())?;
    Some(format!("on {}, without {}", node.name, options.join(" and ")))
}
