//! Metrics of the cluster under the names of vpenso/prometheus-slurm-exporter (`slurm_*`).
//!
//! That exporter's gauges whose names end in `_total` are untyped here, because Prometheus reserves that suffix for counters.

use std::collections::BTreeMap;

use super::exposition::{Family, Kind, Value};
use crate::overview::seen::Slurm;
use slurm::nodes::ClusterNode;

use Kind::{Gauge, Untyped};

/// For each node state: the suffix of vpenso's metric name, the help text, and the prefix of Slurm's state names.
const NODE_STATES: [(&str, &str, &str); 10] = [
    ("alloc", "Nodes whose CPUs are all allocated.", "allocated"),
    ("comp", "Nodes with completing jobs.", "completing"),
    ("down", "Nodes that are down.", "down"),
    ("drain", "Nodes that are drained or draining.", "drain"),
    ("err", "Nodes with an invalid or unknown state.", "err"),
    ("fail", "Failing nodes.", "fail"),
    ("idle", "Idle nodes.", "idle"),
    ("maint", "Nodes in maintenance.", "maint"),
    ("mix", "Nodes with some CPUs allocated.", "mix"),
    ("resv", "Idle nodes that are reserved.", "res"),
];

const JOB_STATES: [(&str, &str, &str); 11] = [
    ("pending", "PENDING", "Pending jobs."),
    ("running", "RUNNING", "Running jobs."),
    ("suspended", "SUSPENDED", "Jobs that are suspended."),
    ("cancelled", "CANCELLED", "Cancelled jobs that slurmctld keeps in memory (MinJobAge)."),
    ("completing", "COMPLETING", "Completing jobs."),
    ("completed", "COMPLETED", "Completed jobs that slurmctld keeps in memory (MinJobAge)."),
    ("configuring", "CONFIGURING", "Jobs whose nodes are being prepared."),
    ("failed", "FAILED", "Failed jobs that slurmctld keeps in memory (MinJobAge)."),
    ("timeout", "TIMEOUT", "Timed-out jobs that slurmctld keeps in memory (MinJobAge)."),
    ("preempted", "PREEMPTED", "Preempted jobs that slurmctld keeps in memory (MinJobAge)."),
    ("node_fail", "NODE_FAIL", "Jobs that a node failure ended and that slurmctld keeps in memory (MinJobAge)."),
];

/// All metric families of the cluster.
pub(super) fn families(slurm: &Slurm) -> Vec<Family> {
    let parts = [nodes, queue, cpus_and_gpus, partitions, shares, fair_shares, each_node, scheduler];
    parts.iter().flat_map(|part: &fn(&Slurm) -> Vec<Family>| part(slurm)).collect()
}

fn gauge(name: String, help: &'static str, value: impl Into<Value>) -> Family {
    Family::new(name, Gauge, help).with(&[], value)
}

fn nodes(slurm: &Slurm) -> Vec<Family> {
    let states: Vec<&str> = slurm.cluster.nodes.iter().map(counted_state).collect();
    let count = |start: &str| states.iter().filter(|state| state.starts_with(start)).count() as u64;
    NODE_STATES.iter().map(|(name, help, start)| gauge(format!("slurm_nodes_{name}"), help, count(start))).collect()
}

/// The state under which a node is counted: exactly one of [`NODE_STATES`]. A state that is not among them, such as `planned` or one of
/// power saving, is replaced by the node's base state.
fn counted_state(node: &ClusterNode) -> &'static str {
    const SYNONYMS: [(&str, &str); 2] = [("inval", "err"), ("unknown", "err")];
    let base = node.state_flags.first().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
    let known = |word: &str| {
        let word = SYNONYMS.iter().find(|(other, _)| *other == word).map_or(word, |(_, word)| word);
        NODE_STATES.iter().find(|(_, _, start)| word.starts_with(start)).map(|(_, _, start)| *start)
    };
    known(state(node)).or_else(|| known(&base)).unwrap_or("err")
}

/// The state as in `sinfo`: a node in a maintenance reservation is in maintenance, and an idle node in another reservation is reserved.
fn state(node: &ClusterNode) -> &str {
    let has = |word: &str| node.state_flags.iter().any(|own| own == word);
    match node.report.state.as_str() {
        "idle" | "mixed" | "allocated" if has("MAINTENANCE") => "maint",
        "idle" if has("RESERVED") => "reserved",
        state => state,
    }
}

fn queue(slurm: &Slurm) -> Vec<Family> {
    let state = |(name, state, help): &(&str, &str, &'static str)| {
        gauge(format!("slurm_queue_{name}"), help, slurm.queue.count(state))
    };
    let waiting = gauge(
        "slurm_queue_pending_dependency".to_owned(),
        "Jobs that wait for a dependency.",
        slurm.queue.waiting_for_others(),
    );
    JOB_STATES.iter().map(state).chain([waiting]).collect()
}

/// Whether the node accepts no jobs.
fn is_closed(node: &ClusterNode) -> bool {
    node.drained || ["down", "fail", "failing", "inval"].contains(&node.report.state.as_str())
}

/// CPUs as in `sinfo --format=%C`.
#[derive(Clone, Copy, Debug, Default)]
struct Cpus {
    allocated: u64,
    idle: u64,
    other: u64,
    total: u64,
}

impl Cpus {
    fn of(node: &ClusterNode) -> Self {
        let rest = node.cpus.saturating_sub(node.cpus_allocated);
        let (idle, other) = if is_closed(node) { (0, rest) } else { (rest, 0) };
        Self { allocated: node.cpus_allocated, idle, other, total: node.cpus }
    }

    const fn plus(self, more: Self) -> Self {
        Self {
            allocated: self.allocated + more.allocated,
            idle: self.idle + more.idle,
            other: self.other + more.other,
            total: self.total + more.total,
        }
    }
}

fn cpus_and_gpus(slurm: &Slurm) -> Vec<Family> {
    let nodes = &slurm.cluster.nodes;
    let cpus = nodes.iter().map(Cpus::of).fold(Cpus::default(), Cpus::plus);
    let gpus = || nodes.iter().flat_map(|node| &node.gpus);
    let (total, used) = (gpus().count() as u64, gpus().filter(|gpu| gpu.state.is_in_use()).count() as u64);
    let open = nodes.iter().filter(|node| !is_closed(node)).flat_map(|node| &node.gpus);
    let idle = open.filter(|gpu| !gpu.state.is_in_use()).count() as u64;
    #[expect(clippy::cast_precision_loss, reason = "no cluster has so many GPUs")]
    let ratio = (total > 0).then(|| used as f64 / total as f64);
    vec![
        gauge("slurm_cpus_alloc".to_owned(), "CPUs allocated to jobs.", cpus.allocated),
        gauge("slurm_cpus_idle".to_owned(), "Free CPUs of nodes that accept jobs.", cpus.idle),
        gauge("slurm_cpus_other".to_owned(), "Free CPUs of nodes that accept no jobs.", cpus.other),
        Family::new("slurm_cpus_total", Untyped, "All CPUs.").with(&[], cpus.total),
        gauge("slurm_gpus_alloc".to_owned(), "GPUs allocated to jobs, in whole or in part.", used),
        gauge("slurm_gpus_idle".to_owned(), "Free GPUs of nodes that accept jobs.", idle),
        gauge("slurm_gpus_other".to_owned(), "Free GPUs of nodes that accept no jobs.", total - used - idle),
        Family::new("slurm_gpus_total", Untyped, "All GPUs.").with(&[], total),
        gauge("slurm_gpus_utilization".to_owned(), "Fraction of the GPUs allocated to jobs.", ratio),
    ]
}

fn partitions(slurm: &Slurm) -> Vec<Family> {
    let mut cpus: BTreeMap<&str, Cpus> = BTreeMap::new();
    for node in &slurm.cluster.nodes {
        for partition in &node.partitions {
            let sum = cpus.entry(partition).or_default();
            *sum = sum.plus(Cpus::of(node));
        }
    }
    let family = |name: &str, kind, help, value: fn(&Cpus) -> u64| {
        let mut family = Family::new(format!("slurm_partition_cpus_{name}"), kind, help);
        cpus.iter().for_each(|(partition, cpus)| family.add(&[("partition", partition)], value(cpus)));
        family
    };
    let mut pending = Family::new("slurm_partition_jobs_pending", Gauge, "Pending jobs in the partition.");
    let waiting = slurm.queue.pending_by_partition();
    for partition in cpus.keys() {
        pending.add(&[("partition", partition)], waiting.get(partition).copied().unwrap_or_default());
    }
    vec![
        family("allocated", Gauge, "The partition's CPUs allocated to jobs.", |cpus| cpus.allocated),
        family("idle", Gauge, "Free CPUs of the partition's nodes that accept jobs.", |cpus| cpus.idle),
        family("other", Gauge, "Free CPUs of the partition's nodes that accept no jobs.", |cpus| cpus.other),
        family("total", Untyped, "The partition's CPUs.", |cpus| cpus.total),
        pending,
    ]
}

fn fair_shares(slurm: &Slurm) -> Vec<Family> {
    let mut family =
        Family::new("slurm_account_fairshare", Gauge, "Fair-share factor of the account; LevelFS under Fair Tree.");
    slurm.fair_shares.iter().for_each(|share| family.add(&[("account", &share.account)], share.factor));
    vec![family]
}

/// CPUs and jobs of users and accounts. A value of 0 has no series, as in vpenso's exporter.
fn shares(slurm: &Slurm) -> Vec<Family> {
    let by_user = slurm.queue.by(|job| &job.user);
    let by_account = slurm.queue.by(|job| &job.account);
    let mut families = Vec::new();
    for (label, shares) in [("account", &by_account), ("user", &by_user)] {
        let mut add = |what: &str, help, value: fn(&crate::overview::queue::Share) -> u64| {
            let mut family = Family::new(format!("slurm_{label}_{what}"), Gauge, help);
            for (name, share) in shares {
                family.add(&[(label, name)], Some(value(share)).filter(|value| *value > 0));
            }
            families.push(family);
        };
        add("jobs_pending", "Pending jobs.", |share| share.pending);
        add("jobs_running", "Running jobs.", |share| share.running);
        add("cpus_running", "CPUs of running jobs.", |share| share.cpus);
        add("jobs_suspended", "Jobs that are suspended.", |share| share.suspended);
    }
    families
}

fn each_node(slurm: &Slurm) -> Vec<Family> {
    let family = |name: &str, kind, help, value: fn(&ClusterNode) -> u64| {
        let mut family = Family::new(format!("slurm_node_{name}"), kind, help);
        for node in &slurm.cluster.nodes {
            family.add(&[("node", &node.name), ("status", state(node))], value(node));
        }
        family
    };
    vec![
        family("cpu_alloc", Gauge, "The node's CPUs allocated to jobs.", |node| Cpus::of(node).allocated),
        family("cpu_idle", Gauge, "The node's free CPUs; 0 if it accepts no jobs.", |node| Cpus::of(node).idle),
        family("cpu_other", Gauge, "The node's free CPUs; 0 if it accepts jobs.", |node| Cpus::of(node).other),
        family("cpu_total", Untyped, "The node's CPUs.", |node| Cpus::of(node).total),
        family("mem_alloc", Gauge, "The node's memory allocated to jobs, in MiB.", |node| node.memory_allocated_mib),
        family("mem_total", Untyped, "The node's memory for jobs, in MiB.", |node| node.memory_mib),
    ]
}

fn scheduler(slurm: &Slurm) -> Vec<Family> {
    let scheduler = &slurm.scheduler;
    let rows: [(&str, Kind, &'static str, Option<u64>); 12] = [
        ("threads", Gauge, "Server threads of slurmctld.", scheduler.threads),
        ("queue_size", Gauge, "Messages queued by slurmctld for sending.", scheduler.queue_size),
        ("dbd_queue_size", Gauge, "Messages queued for slurmdbd.", scheduler.dbd_queue_size),
        ("last_cycle", Gauge, "Duration of the main scheduler's last cycle, in microseconds.", scheduler.last_cycle),
        ("mean_cycle", Gauge, "Mean duration of a cycle of the main scheduler, in microseconds.", scheduler.mean_cycle),
        ("cycle_per_minute", Gauge, "Cycles of the main scheduler per minute.", scheduler.cycles_per_minute),
        (
            "backfill_last_cycle",
            Gauge,
            "Duration of the backfill scheduler's last cycle, in microseconds.",
            scheduler.backfill_last_cycle,
        ),
        (
            "backfill_mean_cycle",
            Gauge,
            "Mean duration of a backfill cycle, in microseconds.",
            scheduler.backfill_mean_cycle,
        ),
        (
            "backfill_depth_mean",
            Gauge,
            "Mean number of jobs considered per backfill cycle.",
            scheduler.backfill_depth_mean,
        ),
        (
            "backfilled_jobs_since_start_total",
            Kind::Counter,
            "Jobs started by backfill since slurmctld's start.",
            scheduler.backfilled_since_start,
        ),
        (
            "backfilled_jobs_since_cycle_total",
            Kind::Counter,
            "Jobs started by backfill since the statistics were reset.",
            scheduler.backfilled_since_cycle,
        ),
        (
            "backfilled_heterogeneous_total",
            Kind::Counter,
            "Components of heterogeneous jobs started by backfill.",
            scheduler.backfilled_heterogeneous,
        ),
    ];
    let family =
        |(name, kind, help, value)| Family::new(format!("slurm_scheduler_{name}"), kind, help).with(&[], value);
    rows.into_iter().map(family).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use slurm::nodes::ClusterNodes;

    fn counted(flags: &[&str]) -> &'static str {
        let node = serde_json::json!({"nodes": [{"name": "c1", "state": flags}]});
        let cluster = ClusterNodes::parse(&node.to_string(), r#"{"jobs": []}"#).unwrap();
        let slurm = Slurm { cluster, ..Slurm::default() };
        let states = slurm.cluster.nodes.iter().map(counted_state);
        let counts = |state: &str| NODE_STATES.iter().filter(|(_, _, start)| state.starts_with(start)).count();
        states.inspect(|state| assert_eq!(counts(state), 1, "{flags:?}: {state}")).next().unwrap_or_default()
    }

    #[test]
    fn each_node_counts_in_one_state() {
        for (flags, state) in [
            (&["IDLE"][..], "idle"),
            (&["IDLE", "PLANNED"], "idle"),
            (&["MIXED", "PLANNED"], "mix"),
            (&["ALLOCATED", "PLANNED"], "allocated"),
            (&["IDLE", "POWERED_DOWN", "CLOUD"], "idle"),
            (&["ALLOCATED", "POWERING_UP", "CLOUD"], "allocated"),
            (&["IDLE", "COMPLETING"], "completing"),
            (&["MIXED", "DRAIN"], "drain"),
            (&["IDLE", "DRAIN"], "drain"),
            (&["MIXED", "FAIL"], "fail"),
            (&["IDLE", "INVALID_REG"], "err"),
            (&["UNKNOWN"], "err"),
            (&["DOWN", "NOT_RESPONDING"], "down"),
            (&["MIXED", "MAINTENANCE"], "maint"),
            (&["IDLE", "RESERVED"], "res"),
            (&[], "err"),
        ] {
            assert_eq!(counted(flags), state, "{flags:?}");
        }
    }

    #[test]
    fn sums_cpus_and_gpus_of_nodes_and_partitions() {
        let nodes = serde_json::json!({"nodes": [
            {"name": "c1", "state": ["MIXED"], "cpus": 8, "alloc_cpus": 3, "gres": "gpu:a:4", "gres_used": "gpu:a:1(IDX:2)", "partitions": ["main"]},
            {"name": "c2", "state": ["IDLE", "DRAIN"], "cpus": 16, "alloc_cpus": 5, "gres": "gpu:a:2", "partitions": ["main", "old"]},
            {"name": "c3", "state": ["IDLE"], "cpus": 2, "partitions": ["old"]},
            {"name": "c4", "state": ["MIXED", "FAIL"], "cpus": 4, "alloc_cpus": 1, "partitions": ["old"]},
        ]});
        let cluster = ClusterNodes::parse(&nodes.to_string(), r#"{"jobs": []}"#).unwrap();
        let slurm = Slurm { cluster, ..Slurm::default() };
        let text = |families: &[Family]| super::super::exposition::text(families);
        let all = text(&cpus_and_gpus(&slurm));
        for (name, value) in [
            ("cpus_alloc", "9"),
            ("cpus_idle", "7"),
            ("cpus_other", "14"),
            ("cpus_total", "30"),
            ("gpus_alloc", "1"),
            ("gpus_idle", "3"),
            ("gpus_other", "2"),
            ("gpus_total", "6"),
        ] {
            assert!(all.contains(&format!("\nslurm_{name} {value}\n")), "{name}: {all}");
        }
        let partitions = text(&partitions(&slurm));
        for (partition, [allocated, idle, other, total]) in [("main", [8, 5, 11, 24]), ("old", [6, 2, 14, 22])] {
            for (name, value) in [("allocated", allocated), ("idle", idle), ("other", other), ("total", total)] {
                let line = format!("\nslurm_partition_cpus_{name}{{partition=\"{partition}\"}} {value}\n");
                assert!(partitions.contains(&line), "{line}: {partitions}");
            }
        }
        assert!(!text(&cpus_and_gpus(&Slurm::default())).contains("\nslurm_gpus_utilization "), "without GPUs");
    }
}
