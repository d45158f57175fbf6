//! Constructed situations and their texts, in the snapshot.
//!
//! A node is `NAME KEY=VALUE...`: `cpus=8` `memory=16` (GiB) `gpus=nvidia:2` `state=` `reason=` `features=` `partition=` `threads=`. A job is `ID
//! USER STATE`, with `on=NODE` if it runs, and `cpus=` `memory=` (GiB) `gpus=` `type=` `reason=` `priority=` `limit=` `end=` `start=` `nodes=`
//! `tasks=` and so on. The nodes' free resources follow from the running jobs.

use std::fmt::Write as _;

use super::*;
use crate::nodes::{GpuState, NodeGpu, answer::NodeShare};
use machine::node_report::NodeReport;
use model::queued_job::OwnedJob;

const NOW: &str = "2026-11-28T12:00:00";

#[derive(Default)]
struct Cluster {
    jobs: Vec<QueuedJob>,
    nodes: Vec<ClusterNode>,
    details: Details,
}

/// The value of a `KEY=VALUE`.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn number(line: &str, key: &str) -> Option<u64> {
    Some(value(line, key)?.parse().unwrap())
}

impl Cluster {
    fn new(text: &str) -> Self {
        let mut cluster = Self { details: Details { now: NOW.to_owned(), ..Details::default() }, ..Self::default() };
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (word, rest) = line.split_once(' ').unwrap();
            match word {
                "node" => cluster.nodes.push(node(rest)),
                "job" => cluster.add_job(rest),
                "reservation" => cluster.details.reservations.push(Reservation {
                    name: rest.split(' ').next().unwrap().to_owned(),
                    start: value(rest, "start").unwrap().to_owned(),
                    end: value(rest, "end").unwrap().to_owned(),
                    nodes: value(rest, "nodes").unwrap().to_owned(),
                }),
                _ => panic!("{line}"),
            }
        }
        cluster
    }

    fn add_job(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let text = |key: &str| value(line, key).unwrap_or_default().replace('_', " ");
        let job = QueuedJob {
            number: words[0].split('_').next().unwrap().parse().unwrap(),
            id: words[0].to_owned(),
            user: words[1].to_owned(),
            state: words[2].to_owned(),
            partition: value(line, "partition").unwrap_or("main").to_owned(),
            reason: text("reason"),
            required: text("required"),
            excluded: text("excluded"),
            dependency: text("dependency"),
            nodes: text("on"),
            cpus: number(line, "cpus").unwrap_or(1),
            ..QueuedJob::default()
        };
        let gpus = number(line, "gpus").map(|count| Gpus { gres_type: value(line, "type").map(str::to_owned), count });
        let request = Request {
            nodes: number(line, "nodes").unwrap_or(1),
            tasks: number(line, "tasks").unwrap_or(1),
            cpus: job.cpus,
            memory_mib: number(line, "memory").unwrap_or(1) * 1024,
            gpus: gpus.into_iter().collect(),
            has_more: line.contains("shard"),
            features: text("features"),
            is_exclusive: line.contains("exclusive"),
            reservation: text("reservation"),
            priority: number(line, "priority").unwrap_or(1),
            limit: value(line, "limit")
                .unwrap_or(if line.contains("end=") { "8:00:00" } else { "UNLIMITED" })
                .to_owned(),
            start: value(line, "start").unwrap_or("N/A").to_owned(),
            end: value(line, "end").unwrap_or("2027-11-28T12:00:00").to_owned(),
        };
        for node in self.nodes.iter_mut().filter(|node| node.name == job.nodes) {
            node.cpus_allocated += request.cpus;
            node.memory_allocated_mib += request.memory_mib;
            let is_hidden = words[1] == "hidden";
            let owner = OwnedJob { job: job.number, user: job.user.clone() };
            let free = node.gpus.iter_mut().filter(|gpu| gpu.state == GpuState::Free);
            let of_type = free.filter(|gpu| value(line, "type").is_none_or(|kind| kind == gpu.gres_type));
            let count = usize::try_from(request.gpu_count()).unwrap();
            of_type
                .take(count)
                .for_each(|gpu| gpu.state = GpuState::Allocated { job: (!is_hidden).then(|| owner.clone()) });
            if !is_hidden {
                node.jobs.push(owner.clone());
                let (cpus, memory_mib) = (request.cpus, request.memory_mib);
                node.shares.push(NodeShare { job: job.number, cpus, memory_mib, gpus: request.gpu_count() });
            }
        }
        if words[1] != "hidden" {
            self.details.requests.insert(job.number, request);
            self.jobs.push(job);
        }
    }

    fn situation(&self) -> Situation<'_> {
        Situation { jobs: &self.jobs, nodes: &self.nodes, details: &self.details }
    }
}

fn node(line: &str) -> ClusterNode {
    let state = value(line, "state").unwrap_or("mixed");
    let reason = value(line, "reason").unwrap_or_default().replace('_', " ");
    let mut node = ClusterNode {
        name: line.split(' ').next().unwrap().to_owned(),
        report: NodeReport { state: state.to_owned(), responding: true, reason, is_roots: false },
        partitions: value(line, "partition").unwrap_or("main").split(',').map(str::to_owned).collect(),
        cpus: number(line, "cpus").unwrap_or(8),
        memory_mib: number(line, "memory").unwrap_or(16) * 1024,
        features: value(line, "features").unwrap_or_default().split(',').map(str::to_owned).collect(),
        threads: number(line, "threads").unwrap_or(1),
        ..ClusterNode::empty(state, true, "")
    };
    let free = if node.accepts_jobs() { GpuState::Free } else { GpuState::Unavailable };
    for gpus in value(line, "gpus").unwrap_or_default().split(',').filter(|gpus| !gpus.is_empty()) {
        let (kind, count) = gpus.split_once(':').unwrap();
        for _ in 0..count.parse::<u32>().unwrap() {
            let slurm_index = node.gpus.len();
            node.gpus.push(NodeGpu {
                index: u32::try_from(slurm_index).unwrap(),
                slurm_index,
                file: None,
                gres_type: kind.to_owned(),
                model: None,
                memory_mib: None,
                state: free.clone(),
            });
        }
    }
    node
}

/// Each entry: its name, the situation, and the job to explain.
const SITUATIONS: &[(&str, &str, &str)] = &[
    (
        "one user has all GPUs",
        "7",
        "node c1 gpus=nvidia:2
        job 3 alice RUNNING on=c1 gpus=2 cpus=2 end=2026-11-28T18:30:00
        job 7 bob PENDING reason=Resources gpus=1 start=2026-11-28T18:30:00",
    ),
    (
        "two users have the GPUs",
        "7",
        "node c1 gpus=nvidia:2
        job 3 alice RUNNING on=c1 gpus=1 end=2026-11-28T18:30:00
        job 4 eve RUNNING on=c1 gpus=1
        job 7 bob PENDING reason=Resources gpus=2",
    ),
    (
        "one of two GPUs is free",
        "7",
        "node c1 gpus=nvidia:2
        job 3 alice RUNNING on=c1 gpus=1 end=2026-11-29T09:00:00
        job 7 bob PENDING reason=Resources gpus=2 start=2026-11-29T09:00:00",
    ),
    (
        "one CPU too few",
        "7",
        "node c1 cpus=4 gpus=nvidia:2
        job 3 alice RUNNING on=c1 cpus=2 gpus=1 end=2026-11-28T13:00:00
        job 7 bob PENDING reason=Resources gpus=1 cpus=3",
    ),
    (
        "no CPU left",
        "7",
        "node c1 cpus=4 gpus=nvidia:2
        job 3 alice RUNNING on=c1 cpus=4
        job 7 bob PENDING reason=Resources gpus=1 cpus=1 start=2027-11-28T12:00:00",
    ),
    (
        "too little memory",
        "7",
        "node c1 memory=16
        job 3 alice RUNNING on=c1 memory=10 end=2026-11-28T13:00:00
        job 7 bob PENDING reason=Resources memory=8",
    ),
    (
        "CPUs and memory are missing",
        "7",
        "node c1 memory=16 cpus=8
        job 3 alice RUNNING on=c1 cpus=6 memory=10 end=2026-11-28T13:00:00
        job 7 bob PENDING reason=Resources cpus=4 memory=8",
    ),
    (
        "whole cores",
        "7",
        "node c1 cpus=8 threads=2
        job 3 alice RUNNING on=c1 cpus=6 end=2026-11-28T13:00:00
        job 7 bob PENDING reason=Resources cpus=3",
    ),
    (
        "the other type is free",
        "7",
        "node c1 gpus=nvidia:1,h200:1
        job 3 alice RUNNING on=c1 gpus=1 type=h200 end=2026-11-28T13:00:00
        job 7 bob PENDING reason=Resources gpus=1 type=h200",
    ),
    (
        "both types are in use",
        "7",
        "node c1 gpus=nvidia:1,h200:1
        job 3 alice RUNNING on=c1 gpus=2
        job 7 bob PENDING reason=Resources gpus=1 type=h200",
    ),
    (
        "jobs that the reader may not see",
        "7",
        "node c1 gpus=nvidia:2
        job 3 hidden RUNNING on=c1 gpus=2
        job 7 bob PENDING reason=Resources gpus=1",
    ),
    (
        "one of two GPUs has a hidden job",
        "7",
        "node c1 gpus=nvidia:2
        job 3 alice RUNNING on=c1 gpus=1 end=2026-11-28T13:00:00
        job 4 hidden RUNNING on=c1 gpus=1
        job 7 bob PENDING reason=Resources gpus=1",
    ),
    (
        "hidden jobs have the CPUs",
        "7",
        "node c1 cpus=4
        job 3 hidden RUNNING on=c1 cpus=3
        job 7 bob PENDING reason=Resources cpus=2",
    ),
    (
        "another job is before it and has what it needs",
        "7",
        "node c1 gpus=nvidia:2
        job 3 alice RUNNING on=c1 gpus=1 end=2026-11-28T13:00:00
        job 5 eve PENDING reason=Resources gpus=2
        job 7 bob PENDING reason=Priority gpus=1",
    ),
    (
        "before it, and it has a time limit",
        "7",
        "node c1 gpus=nvidia:2
        job 3 alice RUNNING on=c1 gpus=1 end=2026-11-28T13:00:00
        job 5 eve PENDING reason=Resources gpus=2
        job 7 bob PENDING reason=Priority gpus=1 limit=4:00:00 start=2026-11-28T14:00:00",
    ),
    (
        "a higher priority is before a lower id",
        "5",
        "node c1 gpus=nvidia:1
        job 3 alice RUNNING on=c1 gpus=1 end=2026-11-28T13:00:00
        job 5 eve PENDING reason=Priority gpus=1 priority=10
        job 7 bob PENDING reason=Resources gpus=1 priority=20",
    ),
    (
        "the first in the queue",
        "7",
        "node c1 gpus=nvidia:1
        job 3 alice RUNNING on=c1 gpus=1 end=2026-11-28T13:00:00
        job 5 eve PENDING reason=Priority gpus=1 priority=10
        job 7 bob PENDING reason=Resources gpus=1 priority=20",
    ),
    (
        "held jobs and other partitions are not before it",
        "7",
        "node c1 gpus=nvidia:1
        job 3 alice RUNNING on=c1 gpus=1 end=2026-11-28T13:00:00
        job 5 eve PENDING reason=JobHeldUser gpus=1 priority=0
        job 6 eve PENDING reason=Resources gpus=1 partition=other priority=99
        job 7 bob PENDING reason=Resources gpus=1",
    ),
    (
        "held by its user",
        "7",
        "node c1
        job 7 bob PENDING reason=JobHeldUser priority=0",
    ),
    (
        "held by an administrator",
        "7",
        "node c1
        job 7 bob PENDING reason=JobHeldAdmin priority=0",
    ),
    (
        "waits for a job that runs",
        "7",
        "node c1
        job 3 alice RUNNING on=c1 end=2026-11-28T13:00:00
        job 7 bob PENDING reason=Dependency dependency=afterok:3(unfulfilled)",
    ),
    (
        "waits for a job that waits",
        "7",
        "node c1
        job 3 alice PENDING reason=Resources
        job 7 bob PENDING reason=Dependency dependency=afterany:3(unfulfilled)",
    ),
    (
        "can never start after a failed job",
        "7",
        "node c1
        job 7 bob PENDING reason=DependencyNeverSatisfied dependency=afterok:3(failed)",
    ),
    (
        "waits for its start time",
        "7",
        "node c1
        job 7 bob PENDING reason=BeginTime start=2026-11-28T20:00:00",
    ),
    (
        "a limit of its QOS",
        "7",
        "node c1
        job 7 bob PENDING reason=QOSMaxGRESPerUser gpus=1",
    ),
    (
        "other tasks of its array",
        "7_3",
        "node c1
        job 7_3 bob PENDING reason=JobArrayTaskLimit",
    ),
    (
        "its partition is closed",
        "7",
        "node c1
        job 7 bob PENDING reason=PartitionDown",
    ),
    (
        "its time limit is too long",
        "7",
        "node c1
        job 7 bob PENDING reason=PartitionTimeLimit limit=2-00:00:00",
    ),
    (
        "the only node is drained",
        "7",
        "node c1 gpus=nvidia:2 state=drained reason=slurminit:_GPU_0_is_lost
        job 7 bob PENDING reason=Nodes_required_for_job_are_DOWN gpus=1",
    ),
    (
        "one of two nodes is down",
        "7",
        "node c1 gpus=nvidia:1 state=down reason=Not_responding
        node c2 gpus=nvidia:1
        job 3 alice RUNNING on=c2 gpus=1 end=2026-11-28T13:00:00
        job 7 bob PENDING reason=Resources gpus=1",
    ),
    (
        "only the drained node has enough GPUs",
        "7",
        "node c1 gpus=nvidia:4 state=drained reason=fan
        node c2 gpus=nvidia:1
        job 7 bob PENDING reason=Resources gpus=2",
    ),
    (
        "more GPUs than any node has",
        "7",
        "node c1 gpus=nvidia:2
        node c2 gpus=nvidia:2
        job 7 bob PENDING reason=BadConstraints gpus=4
        job 8 bob PENDING reason=Resources gpus=4",
    ),
    (
        "more GPUs than any node has since a GPU was lost",
        "8",
        "node c1 gpus=nvidia:2
        node c2 gpus=nvidia:2
        job 8 bob PENDING reason=Resources gpus=4",
    ),
    (
        "a node that is named is full and another one is free",
        "7",
        "node c1 gpus=nvidia:1
        node c2 gpus=nvidia:1
        job 3 alice RUNNING on=c1 gpus=1 end=2026-11-28T13:00:00
        job 7 bob PENDING reason=Resources gpus=1 required=c1",
    ),
    (
        "an excluded node is free",
        "7",
        "node c1 gpus=nvidia:1
        node c2 gpus=nvidia:1
        job 3 alice RUNNING on=c1 gpus=1
        job 7 bob PENDING reason=Resources gpus=1 excluded=c[2-9]",
    ),
    (
        "the feature's node is full",
        "7",
        "node c1 gpus=nvidia:1 features=a100
        node c2 gpus=nvidia:1 features=h200
        job 3 alice RUNNING on=c2 gpus=1 end=2026-11-28T13:00:00
        job 7 bob PENDING reason=Resources gpus=1 features=h200",
    ),
    (
        "no node has the feature",
        "7",
        "node c1 gpus=nvidia:1 features=a100
        job 7 bob PENDING reason=Resources gpus=1 features=b200",
    ),
    (
        "a node for itself",
        "7",
        "node c1
        job 3 alice RUNNING on=c1 cpus=2 end=2026-11-28T13:00:00
        job 7 bob PENDING reason=Resources cpus=8 exclusive",
    ),
    (
        "a node for itself, of which it needs a part",
        "7",
        "node c1
        job 3 alice RUNNING on=c1 cpus=2 end=2026-11-28T13:00:00
        job 7 bob PENDING reason=Resources cpus=4 exclusive",
    ),
    (
        "reserved now",
        "7",
        "node c1
        reservation course nodes=c[1-2] start=2026-11-28T10:00:00 end=2026-11-28T16:00:00
        job 7 bob PENDING reason=Resources",
    ),
    (
        "its own reservation",
        "7",
        "node c1 cpus=2
        reservation course nodes=c1 start=2026-11-28T10:00:00 end=2026-11-28T16:00:00
        job 3 alice RUNNING on=c1 cpus=2 end=2026-11-28T13:00:00
        job 7 bob PENDING reason=Resources reservation=course limit=1:00:00",
    ),
    (
        "a reservation that has not begun",
        "7",
        "node c1
        reservation course nodes=c1 start=2026-11-29T10:00:00 end=2026-11-29T16:00:00
        job 7 bob PENDING reason=Reservation reservation=course",
    ),
    (
        "maintenance is before the end of its time limit",
        "7",
        "node c1
        reservation maint nodes=ALL start=2026-11-28T14:00:00 end=2026-11-28T15:00:00
        job 7 bob PENDING reason=ReqNodeNotAvail,_Reserved_for_maintenance",
    ),
    (
        "maintenance is after the end of its time limit",
        "7",
        "node c1 cpus=2
        reservation maint nodes=ALL start=2026-11-28T14:00:00 end=2026-11-28T15:00:00
        job 3 alice RUNNING on=c1 cpus=2 end=2026-11-28T13:00:00
        job 7 bob PENDING reason=Resources limit=30:00",
    ),
    (
        "enough on two nodes together",
        "7",
        "node c1 gpus=nvidia:2
        node c2 gpus=nvidia:2
        job 7 bob PENDING reason=Resources gpus=2 nodes=2 tasks=2 cpus=2",
    ),
    (
        "several nodes",
        "7",
        "node c1 gpus=nvidia:1
        node c2 gpus=nvidia:1
        job 3 alice RUNNING on=c2 gpus=1 end=2026-11-28T13:00:00
        job 7 bob PENDING reason=Resources gpus=2 nodes=2 tasks=2 cpus=2",
    ),
    (
        "tasks that can be spread",
        "7",
        "node c1 cpus=2
        node c2 cpus=2
        job 3 alice RUNNING on=c1 cpus=1 end=2026-11-28T13:00:00
        job 7 bob PENDING reason=Resources cpus=4 tasks=4",
    ),
    (
        "shares of a GPU",
        "7",
        "node c1 gpus=nvidia:1
        job 7 bob PENDING reason=Resources shard=1",
    ),
    (
        "just submitted",
        "7",
        "node c1 gpus=nvidia:1
        job 7 bob PENDING reason=None gpus=1",
    ),
    (
        "the best of two nodes",
        "7",
        "node c1 cpus=8
        node c2 cpus=8
        job 3 alice RUNNING on=c1 cpus=7
        job 4 eve RUNNING on=c2 cpus=5 end=2026-11-28T13:00:00
        job 7 bob PENDING reason=Resources cpus=4",
    ),
    (
        "many users",
        "7",
        "node c1 cpus=8
        job 1 u1 RUNNING on=c1 end=2026-11-28T13:00:00
        job 2 u2 RUNNING on=c1 end=2026-11-28T13:01:00
        job 3 u3 RUNNING on=c1 end=2026-11-28T13:02:00
        job 4 u4 RUNNING on=c1 end=2026-11-28T13:03:00
        job 5 u5 RUNNING on=c1 end=2026-11-28T13:04:00
        job 6 u6 RUNNING on=c1 end=2026-11-28T13:05:00
        job 7 bob PENDING reason=Resources cpus=8",
    ),
    (
        "a job that runs",
        "3",
        "node c1 gpus=nvidia:2
        job 3 alice RUNNING on=c1 gpus=1 cpus=2 memory=4 end=2026-11-28T18:30:00",
    ),
    (
        "a job that ends",
        "3",
        "node c1 gpus=nvidia:2
        job 3 alice COMPLETING on=c1 gpus=1 end=2026-11-28T11:59:00",
    ),
    (
        "a GPU of a job that ends",
        "7",
        "node c1 gpus=nvidia:1 state=completing
        job 3 alice COMPLETING on=c1 gpus=1 end=2026-11-28T11:59:00
        job 7 bob PENDING reason=Resources gpus=1",
    ),
];

#[test]
fn explains_constructed_situations() {
    let mut all = String::new();
    for (name, id, text) in SITUATIONS {
        let cluster = Cluster::new(text);
        let situation = cluster.situation();
        let job = situation.job(id).unwrap_or_else(|| panic!("{name}"));
        writeln!(all, "{name}:\n    {}", situation.sentence(job)).unwrap();
    }
    assert!(SITUATIONS.len() >= 40);
    insta::assert_snapshot!(all);
}

#[test]
fn finds_job_by_number_task_and_array() {
    let cluster = Cluster::new("node c1\njob 7_1 bob RUNNING on=c1\njob 7_3 bob PENDING reason=Resources");
    let found = |id: &str| cluster.situation().job(id).map(|job| job.id.clone());
    assert_eq!(found("7_3").as_deref(), Some("7_3"));
    assert_eq!(found("8"), None);
}

#[test]
fn unknown_request_has_slurms_reason() {
    let mut cluster = Cluster::new("node c1\njob 7 bob PENDING reason=Resources cpus=2");
    cluster.details.requests.clear();
    assert_eq!(cluster.situation().explain(&cluster.jobs[0]), "waits for resources; it requests 2 CPUs");
}

proptest::proptest! {
    /// A suggestion, once taken, makes the request fit.
    #[test]
    fn reduced_request_fits(cpus in 1_u64..12, memory in 1_u64..20, gpus in 0_u64..4, used in 0_u64..8, used_gpus in 0_u64..3) {
        let running = format!("job 3 alice RUNNING on=c1 cpus={used} memory={used} gpus={used_gpus}");
        let wanted = |cpus, memory, gpus| {
            let gpus = if gpus > 0 { format!(" gpus={gpus}") } else { String::new() };
            format!("node c1 cpus=8 gpus=nvidia:2\n{running}\njob 7 bob PENDING reason=Resources cpus={cpus} memory={memory}{gpus}")
        };
        let cluster = Cluster::new(&wanted(cpus, memory, gpus));
        let text = cluster.situation().explain(&cluster.jobs[1]);
        let fits = cpus <= 8 - used && memory <= 16 - used && gpus <= 2_u64.saturating_sub(used_gpus);
        proptest::prop_assert_eq!(text.contains("next scheduling cycle"), fits, "{}", text);
        if let Some((_, change)) = text.split_once("It would start now with ") {
            let most = |unit: &str| change.split(" and ").find(|part| part.contains(unit))
                .and_then(|part| part.strip_prefix("at most ")?.split(' ').next()?.parse::<u64>().ok());
            let (cpus, gpus) = (most("CPU").unwrap_or(cpus), most("GPU").unwrap_or(gpus));
            let memory = most("GiB").unwrap_or(memory);
            let changed = Cluster::new(&wanted(cpus, memory, gpus));
            let text = changed.situation().explain(&changed.jobs[1]);
            proptest::prop_assert!(text.contains("next scheduling cycle"), "{}", text);
        }
    }
}
