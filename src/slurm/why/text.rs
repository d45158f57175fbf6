//! Texts about amounts, requests, nodes, jobs and times.

use super::fit::{self, Closed, Resource, Shortage};
use super::request::Request;
use super::{Position, Situation};
use crate::nodes::answer::NodeShare;
use crate::nodes::{ClusterNode, GpuState};
use model::printable::count;
use model::queued_job::QueuedJob;

/// The maximum number of listed jobs, users and nodes.
pub(super) const MOST: usize = 4;

/// `18:30`, or `2026-11-29 18:30` on another day; `None` if the text is not a date.
pub(super) fn date(text: &str, now: &str) -> Option<String> {
    let (day, time) = text.split_once('T')?;
    let minute = time.get(..5)?;
    Some(if now.starts_with(day) { minute.to_owned() } else { format!("{day} {minute}") })
}

/// `2 GPUs of type h200`, `1 CPU`, `4 GiB of memory`.
pub(super) fn amount(resource: &Resource, number: u64) -> String {
    match resource {
        Resource::Gpus(None) => count(number, "GPU"),
        Resource::Gpus(Some(kind)) => format!("{} of type {kind}", count(number, "GPU")),
        Resource::Cpus => count(number, "CPU"),
        Resource::Memory => format!("{} of memory", gib(number)),
        Resource::WholeNode if number == 1 => "a whole node".to_owned(),
        Resource::WholeNode => format!("{number} whole nodes"),
    }
}

pub(super) fn gib(mib: u64) -> String {
    match mib {
        0..1024 => format!("{mib} MiB"),
        _ if mib % 1024 == 0 => format!("{} GiB", mib / 1024),
        _ => format!("{}.{} GiB", mib / 1024, mib % 1024 * 10 / 1024),
    }
}

/// `2 of 2 in use`.
pub(super) fn used(lack: &Shortage) -> String {
    match lack.resource {
        Resource::Memory => format!("{} of {} in use", gib(lack.total - lack.free), gib(lack.total)),
        Resource::WholeNode => "in use".to_owned(),
        _ => format!("{} of {} in use", lack.total - lack.free, lack.total),
    }
}

/// What a job requests, or holds if it is not pending: `2 GPUs, 4 CPUs and 8 GiB of memory on 2 nodes`.
pub(super) fn request(job: &QueuedJob, request: &Request) -> String {
    let gpus = request.gpus.iter().map(|gpus| amount(&Resource::Gpus(gpus.gres_type.clone()), gpus.count));
    let mut parts: Vec<String> = gpus.collect();
    parts.push(amount(&Resource::Cpus, request.cpus));
    parts.extend((request.memory_mib > 0).then(|| amount(&Resource::Memory, request.memory_mib)));
    parts.extend(request.has_more.then(|| "other GRES".to_owned()));
    let last = parts.pop().unwrap_or_default();
    let list = if parts.is_empty() { last } else { format!("{} and {last}", parts.join(", ")) };
    let nodes = match (request.is_exclusive, request.nodes) {
        (true, 1) => ", exclusively on one node".to_owned(),
        (true, nodes) => format!(", exclusively on {nodes} nodes"),
        (false, 1) => String::new(),
        (false, nodes) => format!(" on {nodes} nodes"),
    };
    let pending = |text: String| if job.is_pending() { text } else { String::new() };
    let named = if job.required.is_empty() { String::new() } else { pending(format!(", only on {}", job.required)) };
    let excluded = if job.excluded.is_empty() { String::new() } else { pending(format!(", not on {}", job.excluded)) };
    let features = if request.features.is_empty() {
        String::new()
    } else {
        pending(format!(", with feature {}", request.features))
    };
    format!("{list}{nodes}{named}{excluded}{features}")
}

/// `Free on c1: 0 of 2 GPUs, 1 of 8 CPUs, 10 GiB of 20 GiB`, the best nodes first.
pub(super) fn free(request: &Request, position: &Position<'_>) -> Option<String> {
    let mut nodes = position.open.clone();
    nodes.sort_by_key(|node| {
        (position.best.map(|best| best.name.as_str()) != Some(node.name.as_str()), {
            let all = fit::shortages(node, request);
            (all.len(), fit::missing_amount(&all))
        })
    });
    let of_node = |node: &&ClusterNode| {
        let mut kinds: Vec<Option<&str>> = request.gpus.iter().map(|gpus| gpus.gres_type.as_deref()).collect();
        kinds.dedup();
        let gpus = kinds.iter().map(|kind| {
            let (free, total) = fit::gpus(node, *kind);
            format!("{free} of {}", amount(&Resource::Gpus(kind.map(str::to_owned)), total))
        });
        let cpus = format!("{} of {}", node.cpus.saturating_sub(node.cpus_allocated), count(node.cpus, "CPU"));
        let memory = node.memory_mib.saturating_sub(node.memory_allocated_mib);
        let memory = format!("{} of {}", gib(memory), gib(node.memory_mib));
        format!("on {}: {}", node.name, gpus.chain([cpus, memory]).collect::<Vec<_>>().join(", "))
    };
    let listed: Vec<String> = nodes.iter().take(MOST).map(of_node).collect();
    let more = nodes.len().saturating_sub(MOST);
    let more = if more > 0 { format!("; and {}", count(more, "more node")) } else { String::new() };
    (!listed.is_empty()).then(|| format!("Free {}{more}", listed.join("; ")))
}

/// The nodes on which the job cannot start now; `None` if there are none, or if the headline explains the only node.
pub(super) fn closed(position: &Position<'_>) -> Option<String> {
    let is_told = position.open.is_empty() && position.closed.len() == 1;
    let names: Vec<&str> = position.closed.iter().map(|(node, _)| node.name.as_str()).take(MOST).collect();
    let more = if position.closed.len() > MOST { ", ..." } else { "" };
    (!names.is_empty() && !is_told).then(|| format!("It cannot start on {}{more} at present", names.join(", ")))
}

/// A node on which the job cannot start, and the reason.
pub(super) fn closed_node(node: &ClusterNode, why: &Closed<'_>, now: &str) -> String {
    let time = |text: &str| date(text, now).unwrap_or_else(|| text.to_owned());
    match why {
        Closed::State => format!("{}, which is {}", node.name, node.closed_state()),
        Closed::Reserved(one) => format!("{}, which is reserved until {} ({})", node.name, time(&one.end), one.name),
        Closed::Soon(one) => format!(
            "{}, which is reserved from {} to {} ({}): the job could still be running then",
            node.name,
            time(&one.start),
            time(&one.end),
            one.name
        ),
    }
}

/// The headline of a job whose options allow no node.
pub(super) fn no_node(job: &QueuedJob, request: &Request) -> String {
    match () {
        () if !job.required.is_empty() => {
            format!(
                "cannot start: the requested nodes ({}) are excluded, not in its partition, or without the requested features",
                job.required
            )
        }
        () if !request.features.is_empty() => {
            format!("cannot start: no node that it can use has the requested features: {}", request.features)
        }
        () => format!("cannot start: the partition {} has no node for it", job.partition),
    }
}

/// The headline of a job that requests more than the total of a resource.
pub(super) fn never(lack: &Shortage, is_single: bool) -> String {
    let place = if is_single { "the most suitable node has" } else { "together, the nodes that it can use have" };
    let total = if lack.total == 0 { "none".to_owned() } else { amount(&lack.resource, lack.total) };
    format!("it requests {}, but {place} {total}", amount(&lack.resource, lack.requested))
}

/// The jobs that hold a resource of a node.
pub(super) fn holders_of(node: &ClusterNode, resource: &Resource) -> Vec<u64> {
    match resource {
        Resource::Gpus(kind) => {
            let of_type = node.gpus.iter().filter(|gpu| kind.as_ref().is_none_or(|kind| gpu.gres_type == *kind));
            let mut jobs: Vec<u64> = of_type.flat_map(|gpu| gpu.state.jobs()).map(|job| job.job).collect();
            jobs.sort_unstable();
            jobs.dedup();
            jobs
        }
        Resource::Cpus | Resource::WholeNode => {
            node.shares.iter().filter(|share| share.cpus > 0).map(|share| share.job).collect()
        }
        Resource::Memory => node.shares.iter().filter(|share| share.memory_mib > 0).map(|share| share.job).collect(),
    }
}

/// Whether jobs that are not listed hold a resource of a node.
pub(super) fn has_hidden_holder(node: &ClusterNode, resource: &Resource) -> bool {
    let held = |value: fn(&NodeShare) -> u64| node.shares.iter().map(value).fold(0, u64::saturating_add);
    match resource {
        Resource::Gpus(kind) => {
            let mut of_type = node.gpus.iter().filter(|gpu| kind.as_ref().is_none_or(|kind| gpu.gres_type == *kind));
            of_type.any(|gpu| gpu.state == GpuState::Allocated { job: None })
        }
        Resource::Cpus | Resource::WholeNode => held(|share| share.cpus) < node.cpus_allocated,
        Resource::Memory => held(|share| share.memory_mib) < node.memory_allocated_mib,
    }
}

/// `job 3 of alice (1 GPU, 2 CPUs, 4 GiB)`.
pub(super) fn holder(node: &ClusterNode, job: u64) -> Option<String> {
    let share = node.shares.iter().find(|share| share.job == job)?;
    let owner = node.jobs.iter().find(|owned| owned.job == job)?;
    let gpus = (share.gpus > 0).then(|| count(share.gpus, "GPU"));
    let parts = gpus.into_iter().chain([count(share.cpus, "CPU"), gib(share.memory_mib)]);
    Some(format!("job {job} of {} ({})", owner.user, parts.collect::<Vec<_>>().join(", ")))
}

impl Situation<'_> {
    /// The job's ID and user, followed by the text of [`Self::explain`].
    pub fn sentence(&self, job: &QueuedJob) -> String {
        format!("Job {} of {} {}", job.id, job.user, self.explain(job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shown_in_mib_below_a_gib() {
        let shown = [0, 1023, 1024, 1536, 2047, 8192].map(gib);
        assert_eq!(shown, ["0 MiB", "1023 MiB", "1 GiB", "1.5 GiB", "1.9 GiB", "8 GiB"]);
    }

    #[test]
    fn date_names_the_day_unless_it_is_today() {
        let now = "2026-11-28T12:00:00";
        assert_eq!(date("2026-11-28T18:30:00", now).as_deref(), Some("18:30"));
        assert_eq!(date("2026-11-29T18:30:00", now).as_deref(), Some("2026-11-29 18:30"));
        assert_eq!([date("N/A", now), date("2026-11-28T1", now)], [None, None]);
    }

    #[test]
    fn names_at_most_four_nodes() {
        let node = |number: u32| ClusterNode { name: format!("c{number}"), ..ClusterNode::empty("idle", true, "") };
        let nodes: Vec<ClusterNode> = (1..=5).map(node).collect();
        let position = |open: usize, closed: usize| Position {
            before: Vec::new(),
            open: nodes.iter().take(open).collect(),
            closed: nodes.iter().take(closed).map(|node| (node, Closed::State)).collect(),
            is_single: true,
            best: None,
            shortages: Vec::new(),
        };
        let free = |open| free(&Request { cpus: 1, ..Request::default() }, &position(open, 0));
        assert_eq!(free(0), None);
        assert!(free(4).is_some_and(|text| text.contains("on c4: ") && !text.contains("more node")));
        assert!(free(5).is_some_and(|text| text.ends_with("; and 1 more node")));
        assert_eq!([closed(&position(0, 0)), closed(&position(0, 1))], [None, None]);
        assert_eq!(closed(&position(1, 1)).as_deref(), Some("It cannot start on c1 at present"));
        assert!(closed(&position(0, 4)).is_some_and(|text| text.contains("c4 at present")));
        assert!(closed(&position(0, 5)).is_some_and(|text| text.contains("c4, ... at present")));
    }

    #[test]
    fn usage_that_no_listed_job_explains_is_hidden() {
        let node = |cpus, memory_mib| ClusterNode {
            cpus_allocated: cpus,
            memory_allocated_mib: memory_mib,
            shares: vec![NodeShare { job: 7, cpus: 2, memory_mib: 100, gpus: 0 }],
            ..ClusterNode::empty("mixed", true, "")
        };
        let is_hidden = |cpus, memory_mib| {
            [Resource::Cpus, Resource::WholeNode, Resource::Memory]
                .map(|one| has_hidden_holder(&node(cpus, memory_mib), &one))
        };
        assert_eq!(is_hidden(2, 100), [false; 3]);
        assert_eq!(is_hidden(3, 100), [true, true, false]);
        assert_eq!(is_hidden(2, 101), [false, false, true]);
    }

    #[test]
    fn job_without_a_resource_does_not_hold_it() {
        let share = |job, cpus, memory_mib| NodeShare { job, cpus, memory_mib, gpus: 0 };
        let shares = vec![share(7, 2, 0), share(8, 0, 100), share(9, 1, 1)];
        let node = ClusterNode { shares, ..ClusterNode::empty("mixed", true, "") };
        assert_eq!(holders_of(&node, &Resource::Cpus), [7, 9]);
        assert_eq!(holders_of(&node, &Resource::WholeNode), [7, 9]);
        assert_eq!(holders_of(&node, &Resource::Memory), [8, 9]);
    }
}
