//! Whether a job fits on nodes now, and which resources are missing.

use super::request::{Gpus, Request};
use super::{Reservation, Situation};
use crate::nodes::{ClusterNode, GpuState};
use model::hostlist;
use model::queued_job::QueuedJob;
use model::slurm_time::{date_seconds, seconds};

/// A resource of which a job requests more than is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    /// GPUs of one type, or of any type.
    Gpus(Option<String>),
    /// CPUs.
    Cpus,
    /// Memory, in MiB.
    Memory,
    /// Nodes without other jobs.
    WholeNode,
}

/// The requested, free and total amounts of a resource of which too little is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shortage {
    pub(super) resource: Resource,
    pub(super) requested: u64,
    pub(super) free: u64,
    pub(super) total: u64,
}

impl Shortage {
    /// Whether the request exceeds the total, so that the job would wait forever.
    pub(super) const fn is_permanent(&self) -> bool {
        self.requested > self.total
    }
}

/// Why a job cannot start on a node even if enough resources are free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Closed<'a> {
    /// In its current state, the node accepts no jobs.
    State,
    /// The node is reserved now.
    Reserved(&'a Reservation),
    /// A reservation of the node begins before a job that starts now reaches its time limit.
    Soon(&'a Reservation),
}

/// The nodes that the job's options allow.
pub(super) fn allowed<'a>(job: &QueuedJob, request: &Request, situation: &'a Situation<'_>) -> Vec<&'a ClusterNode> {
    in_partitions(job, situation).filter(|node| meets_options(node, job, request)).collect()
}

/// The nodes of the job's partitions.
pub(super) fn in_partitions<'a>(
    job: &QueuedJob,
    situation: &'a Situation<'_>,
) -> impl Iterator<Item = &'a ClusterNode> {
    let partitions: Vec<String> = job.partition.split(',').map(str::to_owned).collect();
    situation.nodes.iter().filter(move |node| node.partitions.iter().any(|known| partitions.contains(known)))
}

fn meets_options(node: &ClusterNode, job: &QueuedJob, request: &Request) -> bool {
    let is_named = |list: &str| hostlist::expand(list).contains(&node.name);
    let has_all =
        |all: &Vec<&str>| all.iter().all(|one| one.is_empty() || node.features.iter().any(|known| known == one));
    let has_features = request.alternatives().is_none_or(|lists| lists.iter().any(has_all));
    (job.required.is_empty() || is_named(&job.required)) && !is_named(&job.excluded) && has_features
}

/// The reason why the job cannot start on this node even if enough resources are free; `None` if there is no such reason.
pub(super) fn closed<'a>(node: &ClusterNode, request: &Request, situation: &'a Situation<'_>) -> Option<Closed<'a>> {
    if !node.accepts_jobs() {
        return Some(Closed::State);
    }
    let now = date_seconds(&situation.details.now)?;
    let end = seconds(&request.limit).map_or(u64::MAX, |limit| now + limit);
    let others =
        situation.details.reservations.iter().filter(|one| one.name != request.reservation && one.has(&node.name));
    let mut others = others.filter_map(|one| Some((one, date_seconds(&one.start)?, date_seconds(&one.end)?)));
    others.find_map(|(one, from, until)| match () {
        () if from <= now && now < until => Some(Closed::Reserved(one)),
        () if now < from && from < end => Some(Closed::Soon(one)),
        () => None,
    })
}

/// The shortages if this node must satisfy the whole request.
pub(super) fn shortages(node: &ClusterNode, request: &Request) -> Vec<Shortage> {
    missing(&Capacity::of(&[node]), request, node.threads)
}

/// The shortages if these nodes together must satisfy the request of a job that can be spread.
pub(super) fn shortages_together(nodes: &[&ClusterNode], request: &Request) -> Vec<Shortage> {
    missing(&Capacity::of(nodes), request, 1)
}

/// The free and the total resources of nodes.
struct Capacity<'a> {
    nodes: &'a [&'a ClusterNode],
    cpus: (u64, u64),
    memory: (u64, u64),
}

impl<'a> Capacity<'a> {
    fn of(nodes: &'a [&'a ClusterNode]) -> Self {
        let sum =
            |value: fn(&ClusterNode) -> u64| nodes.iter().fold(0_u64, |sum, node| sum.saturating_add(value(node)));
        Self {
            nodes,
            cpus: (sum(|node| node.cpus.saturating_sub(node.cpus_allocated)), sum(|node| node.cpus)),
            memory: (
                sum(|node| node.memory_mib.saturating_sub(node.memory_allocated_mib)),
                sum(|node| node.memory_mib),
            ),
        }
    }

    fn gpus(&self, gres_type: Option<&str>) -> (u64, u64) {
        let all = self.nodes.iter().flat_map(|node| &node.gpus);
        let of_type: Vec<_> = all.filter(|gpu| gres_type.is_none_or(|one| gpu.gres_type == one)).collect();
        (of_type.iter().filter(|gpu| gpu.state == GpuState::Free).count() as u64, of_type.len() as u64)
    }
}

/// The number of free GPUs and the number of all GPUs, of one type or of any type.
pub(super) fn gpus(node: &ClusterNode, gres_type: Option<&str>) -> (u64, u64) {
    Capacity::of(&[node]).gpus(gres_type)
}

fn missing(there: &Capacity<'_>, request: &Request, threads: u64) -> Vec<Shortage> {
    let shortage = |resource, requested, (free, total)| Shortage { resource, requested, free, total };
    // A job may request GPUs of one type and further GPUs of any type, so the sum must be available, too.
    let any = Gpus { gres_type: None, count: request.gpu_count() };
    let kinds = request.gpus.iter().filter(|gpus| gpus.gres_type.is_some()).chain((any.count > 0).then_some(&any));
    let gpus = kinds.map(|gpus| {
        shortage(Resource::Gpus(gpus.gres_type.clone()), gpus.count, there.gpus(gpus.gres_type.as_deref()))
    });
    let cpus = request.cpus.div_ceil(threads) * threads;
    let rest =
        [shortage(Resource::Cpus, cpus, there.cpus), shortage(Resource::Memory, request.memory_mib, there.memory)];
    let mut all: Vec<Shortage> = gpus.chain(rest).filter(|one| one.requested > one.free).collect();
    // If GPUs of a type are missing, the sum gives no further information.
    if all.iter().any(|one| matches!(one.resource, Resource::Gpus(Some(_)))) {
        all.retain(|one| one.resource != Resource::Gpus(None));
    }
    if request.is_exclusive && there.cpus.0 < there.cpus.1 && all.iter().all(|one| !one.is_permanent()) {
        all = vec![shortage(Resource::WholeNode, request.nodes, (0, there.nodes.len() as u64))];
    }
    all
}

/// A weighted sum of the missing resources, to compare nodes. GPUs have the highest weight.
pub(super) fn missing_amount(all: &[Shortage]) -> u64 {
    let weight = |one: &Shortage| match one.resource {
        Resource::Gpus(_) => 1 << 40,
        Resource::Cpus => 1 << 20,
        Resource::Memory | Resource::WholeNode => 1,
    };
    all.iter()
        .fold(0, |sum, one| sum.saturating_add(one.requested.saturating_sub(one.free).saturating_mul(weight(one))))
}

#[cfg(test)]
mod tests {
    use super::super::Details;
    use super::*;

    #[test]
    fn reservation_closes_node_from_its_start_to_its_end() {
        let node = ClusterNode::empty("idle", true, "");
        let closed_by = |start: &str, end: &str, nodes: &str, request: &Request| {
            let (name, start, end) = ("upkeep".to_owned(), format!("2026-11-28T{start}"), format!("2026-11-28T{end}"));
            let reservations = vec![Reservation { name, start, end, nodes: nodes.to_owned() }];
            let details = Details { now: "2026-11-28T12:00:00".to_owned(), reservations, ..Details::default() };
            let situation = Situation { jobs: &[], nodes: &[], details: &details };
            closed(&node, request, &situation).map(|why| match why {
                Closed::State => "state",
                Closed::Reserved(_) => "reserved",
                Closed::Soon(_) => "soon",
            })
        };
        let hour = Request { limit: "1:00:00".to_owned(), ..Request::default() };
        for (start, end, expected) in [
            ("12:00:00", "13:00:00", Some("reserved")),
            ("11:00:00", "12:00:01", Some("reserved")),
            ("11:00:00", "12:00:00", None),
            ("12:00:01", "13:00:00", Some("soon")),
            ("12:59:59", "14:00:00", Some("soon")),
            ("13:00:00", "14:00:00", None),
        ] {
            assert_eq!(closed_by(start, end, "c[1-2]", &hour), expected, "{start} {end}");
        }
        assert_eq!(closed_by("12:00:00", "13:00:00", "c2", &hour), None);
        let own = Request { reservation: "upkeep".to_owned(), ..hour };
        assert_eq!(closed_by("12:00:00", "13:00:00", "c1", &own), None);
        let unlimited = Request { limit: "UNLIMITED".to_owned(), ..Request::default() };
        assert_eq!(closed_by("23:00:00", "23:59:00", "c1", &unlimited), Some("soon"));
        let drained = ClusterNode::empty("drained", true, "fan");
        let details = Details::default();
        let situation = Situation { jobs: &[], nodes: &[], details: &details };
        assert_eq!(closed(&drained, &unlimited, &situation), Some(Closed::State));
    }

    #[test]
    fn job_may_have_exactly_what_is_free() {
        let node = ClusterNode {
            cpus: 8,
            cpus_allocated: 4,
            memory_mib: 4096,
            memory_allocated_mib: 1024,
            threads: 2,
            ..ClusterNode::empty("mixed", true, "")
        };
        let lacks = |cpus, memory_mib| {
            let request = Request { cpus, memory_mib, nodes: 1, tasks: 1, ..Request::default() };
            shortages(&node, &request)
                .into_iter()
                .map(|one| (one.requested, one.free, one.is_permanent()))
                .collect::<Vec<_>>()
        };
        assert_eq!(lacks(4, 3072), []);
        // Whole cores of two threads.
        assert_eq!(lacks(3, 3072), []);
        assert_eq!(lacks(5, 3072), [(6, 4, false)]);
        assert_eq!(lacks(8, 3073), [(8, 4, false), (3073, 3072, false)]);
        assert_eq!(lacks(9, 4097), [(10, 4, true), (4097, 3072, true)]);
    }
}
