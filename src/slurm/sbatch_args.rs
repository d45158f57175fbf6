//! Turns the `resources` of a method.json into arguments for sbatch.
//!
//! The output consists of fixed words, numbers and the partition's name, which must be plain ([`is_plain_name`]). So a shell may split it at blanks.

mod capacity;
mod resources;

pub use capacity::{Capacity, NodeSize, Partition, is_plain_name};
pub use model::slurm_time::TimeLimit;
pub use resources::Resources;

use model::printable;
use resources::Cpus;

/// Where a job can be placed: the nodes of one partition.
#[derive(Clone, Copy, Debug)]
struct Placement<'a> {
    partition: &'a Partition,
    nodes: &'a [&'a NodeSize],
}

/// The arguments, in one line. Without a `cluster`, the request is not checked. `partition` defaults to the cluster's
/// default partition.
///
/// # Errors
/// The partition does not exist, the cluster has no default partition, no node of the partition has the requested resources, or the time limit
/// exceeds the partition's maximum. The error is one line with the fix.
pub fn sbatch_line(
    requested: &Resources,
    cluster: Option<&Capacity>,
    partition: Option<&str>,
) -> Result<String, String> {
    let cpus = match cluster {
        None => requested.cpus.and_then(Cpus::count),
        Some(cluster) => {
            let partition = cluster.partition(partition)?;
            let nodes: Vec<&NodeSize> = cluster.nodes_of(partition).collect();
            let placement = Placement { partition, nodes: &nodes };
            check_each_resource(requested, placement)?;
            let largest = check_combination(requested, placement)?;
            requested.cpus.map(|cpus| cpus.count().unwrap_or(largest))
        }
    };
    // Without a cluster, the number of CPUs in "all" is unknown, so --exclusive requests the whole node.
    let is_whole_node = requested.exclusive || (requested.cpus == Some(Cpus::All) && cpus.is_none());
    let arguments = [
        Some("--nodes=1 --ntasks=1".to_owned()),
        partition.map(|name| format!("--partition={name}")),
        cpus.map(|count| format!("--cpus-per-task={count}")),
        requested.memory_mib().map(|mib| format!("--mem={mib}M")),
        (requested.gpus > 0).then(|| format!("--gres=gpu:{}", requested.gpus)),
        requested.time_limit.map(|limit| format!("--time={limit}")),
        is_whole_node.then(|| "--exclusive".to_owned()),
    ];
    Ok(arguments.into_iter().flatten().collect::<Vec<_>>().join(" "))
}

/// Checks for each resource separately that some node has enough of it, so that the error can name the insufficient resource. Also checks
/// the time limit.
fn check_each_resource(requested: &Resources, placement: Placement<'_>) -> Result<(), String> {
    let Placement { partition, nodes } = placement;
    let name = &partition.name;
    let alternative = "or name another partition (--partition NAME)";
    if nodes.is_empty() {
        return Err(format!("the partition {name} has no nodes; add one, {alternative}"));
    }
    let max = |of: &dyn Fn(&NodeSize) -> u64| nodes.iter().map(|node| of(node)).max().unwrap_or(0);
    let insufficient = |what: String, max: u64, unit: &str, key: &str| {
        let largest =
            if max == 0 { "no node has any".to_owned() } else { format!("the maximum per node is {max}{unit}") };
        Err(format!("requests {what}, but {largest} (partition {name}); lower resources.{key}, {alternative}"))
    };
    let max_gpus = max(&|node| node.gpus);
    if requested.gpus > max_gpus {
        return insufficient(printable::count(requested.gpus, "GPU"), max_gpus, "", "gpus");
    }
    let max_cpus = max(&|node| node.cpus).min(partition.max_cpus.unwrap_or(u64::MAX));
    if let Some(cpus) = requested.cpus.and_then(Cpus::count).filter(|cpus| *cpus > max_cpus) {
        return insufficient(printable::count(cpus, "CPU"), max_cpus, "", "cpus");
    }
    let max_memory = max(&|node| node.memory_mib);
    if let Some(mib) = requested.memory_mib().filter(|mib| *mib > max_memory) {
        let memory = format!("{mib} MiB of memory{}", requested.memory_note());
        return insufficient(memory, max_memory, " MiB", requested.memory_key());
    }
    let (Some(limit), Some(max)) = (requested.time_limit, partition.max_time) else { return Ok(()) };
    if limit.minutes() > max.minutes() {
        return Err(format!(
            "requests a time limit of {limit}, but the partition {name} allows at most {max} (MaxTime); lower resources.time_limit, {alternative}"
        ));
    }
    Ok(())
}

/// Checks that one node has all resources together. Returns the maximum number of CPUs that the partition allows on such a node.
fn check_combination(requested: &Resources, placement: Placement<'_>) -> Result<u64, String> {
    let cpus = requested.cpus.and_then(Cpus::count).unwrap_or(1);
    let memory = requested.memory_mib().unwrap_or(0);
    let fits = |node: &&&NodeSize| node.gpus >= requested.gpus && node.cpus >= cpus && node.memory_mib >= memory;
    let max = placement.nodes.iter().filter(fits).map(|node| node.cpus).max();
    max.map(|max| max.min(placement.partition.max_cpus.unwrap_or(u64::MAX))).ok_or_else(|| {
        let list = [
            (requested.gpus > 0).then(|| printable::count(requested.gpus, "GPU")),
            requested.cpus.and_then(Cpus::count).map(|cpus| printable::count(cpus, "CPU")),
            (memory > 0).then(|| format!("{memory} MiB of memory{}", requested.memory_note())),
        ];
        let list = list.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let name = &placement.partition.name;
        format!("requests {list}: no node of the partition {name} has all of these; lower one of them in resources")
    })
}

#[cfg(test)]
mod tests;
