//! The capacity of a cluster, from the output of `scontrol --oneliner show node` and `scontrol --oneliner show partition`.

use super::TimeLimit;
use crate::node_record::{number, value};
use model::inventory::gres;

/// The nodes and partitions of a cluster, in any state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    nodes: Vec<NodeSize>,
    partitions: Vec<Partition>,
}

/// The resources of a node that jobs can use, and its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSize {
    /// The CPUs available to jobs.
    pub(super) cpus: u64,
    /// The memory available to jobs, in MiB.
    pub(super) memory_mib: u64,
    pub(super) gpus: u64,
    partitions: Vec<String>,
}

/// A partition and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    pub(super) name: String,
    is_default: bool,
    /// The longest time limit that a job can request; `None` if Slurm reports no valid one.
    pub(super) max_time: Option<TimeLimit>,
    pub(super) max_cpus: Option<u64>,
}

impl Capacity {
    /// Parses the output of the two `scontrol` commands. Skips incomplete lines, and partitions without a plain name.
    pub fn parse(nodes: &str, partitions: &str) -> Self {
        Self {
            nodes: nodes.lines().filter_map(NodeSize::parse).collect(),
            partitions: partitions.lines().filter_map(Partition::parse).collect(),
        }
    }

    /// The partition with this name, or the default partition.
    pub(super) fn partition(&self, name: Option<&str>) -> Result<&Partition, String> {
        let is_match = |partition: &&Partition| name.map_or(partition.is_default, |name| partition.name == name);
        self.partitions.iter().find(is_match).ok_or_else(|| {
            let names: Vec<&str> = self.partitions.iter().map(|partition| partition.name.as_str()).collect();
            let available = format!("use --partition with one of: {}", names.join(", "));
            match name {
                Some(name) => format!("no partition named {name}; {available}"),
                None => format!("the cluster has no default partition; {available}"),
            }
        })
    }

    pub(super) fn nodes_of<'a>(&'a self, partition: &'a Partition) -> impl Iterator<Item = &'a NodeSize> {
        self.nodes.iter().filter(|node| node.partitions.contains(&partition.name))
    }
}

impl NodeSize {
    fn parse(line: &str) -> Option<Self> {
        value(line, "NodeName")?;
        // CPUEfctv excludes the cores reserved for the system.
        let cpus = number(line, "CPUEfctv")?;
        let reserved = number::<u64>(line, "MemSpecLimit").unwrap_or(0);
        Some(Self {
            cpus,
            memory_mib: number::<u64>(line, "RealMemory")?.saturating_sub(reserved),
            gpus: gres::gpus(value(line, "Gres").unwrap_or_default()),
            partitions: value(line, "Partitions").unwrap_or_default().split(',').map(str::to_owned).collect(),
        })
    }
}

impl Partition {
    fn parse(line: &str) -> Option<Self> {
        let name = value(line, "PartitionName").filter(|name| is_plain_name(name))?;
        Some(Self {
            name: name.to_owned(),
            is_default: value(line, "Default") == Some("YES"),
            max_time: value(line, "MaxTime").and_then(TimeLimit::parse),
            max_cpus: number(line, "MaxCPUsPerNode"),
        })
    }
}

/// Whether a partition's name can be used unquoted in a shell command.
pub fn is_plain_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.+@".contains(&byte);
    !name.is_empty() && name.len() <= 255 && !name.starts_with('-') && name.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_plain_names() {
        for good in ["debug", "gpu-a100_long", "1"] {
            assert!(is_plain_name(good), "{good}");
        }
        for bad in ["", "-x", "a b", "a;b", "$(id)", "a\n", "a'b", "ä"] {
            assert!(!is_plain_name(bad), "{bad:?}");
        }
    }
}
