//! Turns the `resources` of a method.json into arguments for sbatch.
//!
//! The output consists only of fixed words and numbers, so a shell may split it at blanks.

mod capacity;
mod resources;

pub use capacity::{Capacity, NodeSize, Partition, is_name};
pub use model::slurm_time::TimeLimit;
pub use resources::Resources;

use resources::Cpus;

/// Where a job can be placed: the nodes of one partition.
#[derive(Clone, Copy, Debug)]
struct Placement<'a> {
    partition: &'a Partition,
    nodes: &'a [&'a NodeSize],
}

/// The arguments, in one line. Without a `cluster` nothing is checked against it. `partition` defaults to the
/// cluster's default partition.
///
/// # Errors
/// No node has the requested resources: one line with the key and the repair.
pub fn line(wanted: &Resources, cluster: Option<&Capacity>, partition: Option<&str>) -> Result<String, String> {
    let cpus = match cluster {
        None => wanted.cpus.and_then(Cpus::count),
        Some(cluster) => {
            let own = cluster.partition(partition)?;
            let nodes: Vec<&NodeSize> = cluster.nodes_of(own).collect();
            let place = Placement { partition: own, nodes: &nodes };
            each_is_there(wanted, place)?;
            let largest = all_are_together(wanted, place)?;
            wanted.cpus.map(|cpus| cpus.count().unwrap_or(largest))
        }
    };
    // The number of CPUs in "all" is unknown here, but Slurm knows it.
    let is_whole_node = wanted.exclusive || (wanted.cpus == Some(Cpus::All) && cpus.is_none());
    let arguments = [
        Some("--nodes=1 --ntasks=1".to_owned()),
        partition.map(|name| format!("--partition={name}")),
        cpus.map(|count| format!("--cpus-per-task={count}")),
        wanted.memory_mib().map(|mib| format!("--mem={mib}M")),
        (wanted.gpus > 0).then(|| format!("--gres=gpu:{}", wanted.gpus)),
        wanted.time_limit.map(|limit| format!("--time={limit}")),
        is_whole_node.then(|| "--exclusive".to_owned()),
    ];
    Ok(arguments.into_iter().flatten().collect::<Vec<_>>().join(" "))
}

/// Checks that some node has each resource by itself, so that a refusal can name the missing one.
fn each_is_there(wanted: &Resources, place: Placement<'_>) -> Result<(), String> {
    let Placement { partition, nodes } = place;
    let name = &partition.name;
    let elsewhere = "or name another partition (--partition NAME)";
    if nodes.is_empty() {
        return Err(format!("the partition {name} has no nodes; add one, {elsewhere}"));
    }
    let most = |of: &dyn Fn(&NodeSize) -> u64| nodes.iter().map(|node| of(node)).max().unwrap_or(0);
    let missing = |what: String, has: u64, key: &str| {
        let largest = if has == 0 { "no node has any".to_owned() } else { format!("the largest node has {has}") };
        Err(format!("requests {what}, {largest} (partition {name}); lower resources.{key}, {elsewhere}"))
    };
    let most_gpus = most(&|node| node.gpus);
    if wanted.gpus > most_gpus {
        return missing(counted(wanted.gpus, "GPU"), most_gpus, "gpus");
    }
    let most_cpus = most(&|node| node.cpus).min(partition.most_cpus.unwrap_or(u64::MAX));
    if let Some(cpus) = wanted.cpus.and_then(Cpus::count).filter(|cpus| *cpus > most_cpus) {
        return missing(counted(cpus, "CPU"), most_cpus, "cpus");
    }
    let most_memory = most(&|node| node.memory_mib);
    if let Some(mib) = wanted.memory_mib().filter(|mib| *mib > most_memory) {
        return missing(format!("{mib} MiB of memory{}", wanted.why_memory()), most_memory, wanted.memory_key());
    }
    let (Some(limit), Some(most)) = (wanted.time_limit, partition.max_time) else { return Ok(()) };
    if limit.minutes() > most.minutes() {
        return Err(format!(
            "requests a time limit of {limit}, the partition {name} allows {most} (MaxTime); lower resources.time_limit, {elsewhere}"
        ));
    }
    Ok(())
}

fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Checks that one node has all resources together. Returns the maximum CPUs of such a node.
fn all_are_together(wanted: &Resources, place: Placement<'_>) -> Result<u64, String> {
    let cpus = wanted.cpus.and_then(Cpus::count).unwrap_or(1);
    let memory = wanted.memory_mib().unwrap_or(0);
    let fits = |node: &&&NodeSize| node.gpus >= wanted.gpus && node.cpus >= cpus && node.memory_mib >= memory;
    let most = place.nodes.iter().filter(fits).map(|node| node.cpus).max();
    most.map(|most| most.min(place.partition.most_cpus.unwrap_or(u64::MAX))).ok_or_else(|| {
        let asked = [
            (wanted.gpus > 0).then(|| counted(wanted.gpus, "GPU")),
            wanted.cpus.and_then(Cpus::count).map(|cpus| counted(cpus, "CPU")),
            (memory > 0).then(|| format!("{memory} MiB of memory{}", wanted.why_memory())),
        ];
        let asked = asked.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let name = &place.partition.name;
        format!("requests {asked}: no node of the partition {name} has all of these; lower one of them in resources")
    })
}

#[cfg(test)]
mod tests;
