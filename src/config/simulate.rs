//! Simulated nodes in one container, for testing software that uses Slurm.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::error::Fault;
use super::{Config, ConfigError, FeatureName, NodeName, NodeRange, Role};

/// The maximum number of nodes; each is a slurmd in this container.
const MAX_NODES: usize = 512;

/// The name prefix of the identical nodes if `[node] name` is not set.
const NAME_PREFIX: &str = "node";

/// The settings of the table `[simulate]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Simulate {
    /// The number of identical nodes; `None` without `[[simulate.node]]` disables simulation.
    pub nodes: Option<u32>,
    /// CPUs per node; `None` means all CPUs of the container, on each node.
    pub cpus: Option<u32>,
    /// Memory per node in MiB; `None` means all memory of the container, on each node.
    pub memory_mib: Option<u64>,
    /// Simulated GPUs per node; `None` means the detected simulated GPUs, or none if a `[[simulate.node]]` sets `gpus`.
    pub gpus: Option<u32>,
    /// The GRES type of the GPUs that `gpus` simulates; `None` means `simulated`.
    pub gpu_type: Option<FeatureName>,
    /// `[[simulate.node]]`: nodes with other resources.
    pub node: Vec<OtherNodes>,
}

/// Simulated nodes with other resources. Missing values are taken from `[simulate]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtherNodes {
    /// The names of these nodes.
    pub name: NodeRange,
    /// CPUs of each node.
    #[serde(default)]
    pub cpus: Option<u32>,
    /// Memory of each node, in MiB.
    #[serde(default)]
    pub memory_mib: Option<u64>,
    /// Simulated GPUs of each node.
    #[serde(default)]
    pub gpus: Option<u32>,
    /// The GRES type of the simulated GPUs.
    #[serde(default)]
    pub gpu_type: Option<FeatureName>,
    /// The features of these nodes, in addition to those of all nodes.
    #[serde(default)]
    pub features: Vec<FeatureName>,
}

/// The maximum number of GPUs per node, more than any known machine has.
const MAX_GPUS: u32 = 64;

/// The maximum number of other Slurm daemons' ports that the numbering of the nodes' ports skips.
const OTHER_PORTS: usize = 3;

/// The nodes of a simulated cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedNodes {
    /// The groups of identical nodes; at least one.
    pub groups: Vec<SimulatedGroup>,
}

/// Identical simulated nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedGroup {
    /// The resources of each node, and the hostlist: `node[1-4]`.
    pub each: OtherNodes,
    /// The nodes in order: name and slurmd's port.
    pub nodes: Vec<(String, u16)>,
}

impl SimulatedNodes {
    /// All nodes in order: name and slurmd's port.
    pub fn iter(&self) -> impl Iterator<Item = &(String, u16)> {
        self.groups.iter().flat_map(|group| &group.nodes)
    }

    /// The hostlist of all nodes: `node[1-4],big[1-2]`.
    pub fn range(&self) -> String {
        self.groups.iter().map(|group| group.each.name.as_str()).collect::<Vec<_>>().join(",")
    }
}

impl Config {
    /// Sets the number of identical simulated nodes from the command line.
    ///
    /// # Errors
    /// The simulated cluster would be invalid with this number of nodes.
    pub fn with_simulated_nodes(mut self, nodes: u32) -> Result<Self, ConfigError> {
        self.simulate.nodes = Some(nodes);
        let invalid = |fault: Fault| ConfigError::invalid("the option --nodes", &nodes.to_string(), fault.what());
        check(&self).map_err(invalid)?;
        Ok(self)
    }

    /// The simulated nodes, if this container has any.
    pub fn simulated(&self) -> Option<SimulatedNodes> {
        if self.role != Role::All || self.shares_a_cluster() {
            return None;
        }
        let used_ports = self.ports_beside_nodes();
        let mut ports = (self.slurm.daemon_port..=u16::MAX).filter(|port| !used_ports.contains(port));
        let groups: Vec<_> = node_groups(self)
            .map(|each| SimulatedGroup { nodes: each.name.names().into_iter().zip(&mut ports).collect(), each })
            .collect();
        (!groups.is_empty()).then_some(SimulatedNodes { groups })
    }

    /// The ports of the other Slurm daemons, which no simulated node may use.
    fn ports_beside_nodes(&self) -> Vec<u16> {
        let accounting = self.runs_accounting().then_some(self.accounting.port);
        let rest = self.rest.listen.filter(|_| self.runs_rest()).map(|address| address.port());
        [Some(self.slurm.controller_port), accounting, rest].into_iter().flatten().collect()
    }
}

/// The identical nodes, then those of `[[simulate.node]]`, with missing values taken from `[simulate]`.
fn node_groups(config: &Config) -> impl Iterator<Item = OtherNodes> {
    let Simulate { nodes, cpus, memory_mib, gpus, ref gpu_type, ref node } = config.simulate;
    let prefix = if config.node.name == NodeName::default() { NAME_PREFIX } else { config.node.name.as_str() };
    let range = nodes.map(|count| if count == 1 { format!("{prefix}1") } else { format!("{prefix}[1-{count}]") });
    let identical = range.and_then(|range| NodeRange::try_from(range).ok()).map(|name| OtherNodes {
        name,
        cpus,
        memory_mib,
        gpus,
        gpu_type: gpu_type.clone(),
        features: Vec::new(),
    });
    identical.into_iter().chain(node.iter().map(move |other| OtherNodes {
        cpus: other.cpus.or(cpus),
        memory_mib: other.memory_mib.or(memory_mib),
        gpus: other.gpus.or(gpus),
        gpu_type: other.gpu_type.as_ref().or(gpu_type.as_ref()).cloned(),
        ..other.clone()
    }))
}

/// Checks the simulated nodes.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let simulate = &config.simulate;
    let at = |key: &'static str, why: String| Err(Fault::new(vec!["simulate".into(), key.into()], why));
    let node_keys = [
        ("cpus", simulate.cpus.is_some()),
        ("memory_mib", simulate.memory_mib.is_some()),
        ("gpus", simulate.gpus.is_some()),
        ("gpu_type", simulate.gpu_type.is_some()),
    ];
    match simulate.nodes {
        None if simulate.node.is_empty() => {
            return match node_keys.into_iter().find(|(_, is_set)| *is_set) {
                Some((key, _)) => at(key, "requires `nodes` in [simulate], or [[simulate.node]]".to_owned()),
                None => Ok(()),
            };
        }
        Some(nodes) if !(1..=MAX_NODES).contains(&(nodes as usize)) => {
            return at("nodes", format!("expected 1 to {MAX_NODES} nodes"));
        }
        _ => {}
    }
    if let Some((key, why)) = find_invalid_resource(simulate.cpus, simulate.memory_mib, simulate.gpus) {
        return at(key, why);
    }
    check_groups(config)?;
    check_ports(config)
}

/// Checks that the nodes' ports do not exceed the highest port, and do not include the port of `[metrics] listen`. The range includes the ports
/// that may be skipped.
fn check_ports(config: &Config) -> Result<(), Fault> {
    let count: usize = node_groups(config).map(|group| group.name.names().len()).sum();
    let (first, metrics) = (usize::from(config.slurm.daemon_port), config.metrics.listen.map(|address| address.port()));
    let last = first + count - 1 + OTHER_PORTS;
    let what = format!("the nodes use ports from `daemon_port` ({first}) on, and skip those of other daemons");
    let why = match metrics.filter(|port| (first..=last).contains(&usize::from(*port))) {
        _ if last > usize::from(u16::MAX) => format!("{what}; the last port could be {last}, above 65535"),
        Some(port) => format!("{what}; they may need port {port} of `[metrics] listen`"),
        None => return Ok(()),
    };
    Err(Fault::new(vec!["simulate".into()], why))
}

/// Checks each `[[simulate.node]]`.
fn check_groups(config: &Config) -> Result<(), Fault> {
    let first = usize::from(config.simulate.nodes.is_some());
    let mut seen: BTreeSet<String> =
        node_groups(config).take(first).flat_map(|identical| identical.name.names()).collect();
    for (index, other) in config.simulate.node.iter().enumerate() {
        let at = |key: &'static str, why: String| {
            Err(Fault::new(vec!["simulate".into(), "node".into(), index.into(), key.into()], why))
        };
        let names = other.name.names();
        if names.len() + seen.len() > MAX_NODES {
            return at("name", format!("expected at most {MAX_NODES} nodes in all"));
        }
        if names.iter().any(|name| *name == NodeName::default().as_str()) {
            return at(
                "name",
                "`localhost` is reserved: Slurm uses a single node of this name for every node name".to_owned(),
            );
        }
        if let Some(name) = names.into_iter().find(|name| !seen.insert(name.clone())) {
            return at("name", format!("duplicate node name `{name}`"));
        }
        if let Some((key, why)) = find_invalid_resource(other.cpus, other.memory_mib, other.gpus) {
            return at(key, why);
        }
    }
    Ok(())
}

/// An invalid resource of a node and the reason.
fn find_invalid_resource(
    cpus: Option<u32>,
    memory_mib: Option<u64>,
    gpus: Option<u32>,
) -> Option<(&'static str, String)> {
    match (cpus, memory_mib, gpus) {
        (Some(0), _, _) => Some(("cpus", "a node needs at least 1 CPU".to_owned())),
        (_, Some(0), _) => Some(("memory_mib", "a node needs at least 1 MiB".to_owned())),
        (_, _, Some(gpus)) if gpus > MAX_GPUS => Some(("gpus", format!("a node can have at most {MAX_GPUS} GPUs"))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("t"))
    }

    fn range(text: &str) -> Option<String> {
        parse(text).unwrap().simulated().map(|nodes| nodes.range())
    }

    #[test]
    fn only_standalone_cluster_simulates_numbered_nodes() {
        assert_eq!(range(""), None);
        assert_eq!(range("[simulate]\nnodes = 4").as_deref(), Some("node[1-4]"));
        assert_eq!(range("[simulate]\nnodes = 1\n[node]\nname = 'nid0'").as_deref(), Some("nid01"));
        assert_eq!(range("role = 'none'\n[simulate]\nnodes = 4"), None);
        assert_eq!(range("[slurm]\ncontroller = 'head'\n[simulate]\nnodes = 4"), None);
    }

    #[test]
    fn node_groups_inherit_common_settings() {
        let big = "cpus = 8\ngpus = 1\n[[simulate.node]]\nname = 'big[08-09]'\ncpus = 64\ngpu_type = 'a100'\nfeatures = ['fat']";
        assert_eq!(range(&format!("[simulate]\nnodes = 2\n{big}")).as_deref(), Some("node[1-2],big[08-09]"));
        let nodes = parse(&format!("[simulate]\n{big}")).unwrap().simulated().unwrap();
        assert_eq!(nodes.iter().cloned().collect::<Vec<_>>(), [("big08".to_owned(), 6818), ("big09".to_owned(), 6819)]);
        let OtherNodes { cpus, memory_mib, gpus, gpu_type, features, .. } = &nodes.groups[0].each;
        assert_eq!((*cpus, *memory_mib, *gpus), (Some(64), None, Some(1)));
        assert_eq!((gpu_type.as_ref().unwrap().as_str(), features[0].as_str()), ("a100", "fat"));
    }

    #[test]
    fn simulated_node_ports_skip_other_daemon_ports() {
        let text = "[simulate]\nnodes = 3\n[accounting]\nmode = 'embedded'\n[rest]\nlisten = '127.0.0.1:6821'\n[slurm]\ndaemon_port = 6816";
        let ports: Vec<u16> = parse(text).unwrap().simulated().unwrap().iter().map(|(_, port)| *port).collect();
        assert_eq!(ports, [6816, 6818, 6820]);
    }

    #[test]
    fn rejects_invalid_values_with_position() {
        for (bad, place, why) in [
            ("nodes = 0", "t:2:9: simulate.nodes", "1 to 512"),
            ("nodes = 513", "t:2:9: simulate.nodes", "1 to 512"),
            ("cpus = 4", "t:2:8: simulate.cpus", "requires `nodes`"),
            ("memory_mib = 4", "t:2:14: simulate.memory_mib", "requires `nodes`"),
            ("nodes = 2\ncpus = 0", "t:3:8: simulate.cpus", "at least 1 CPU"),
            ("nodes = 2\nmemory_mib = 0", "t:3:14: simulate.memory_mib", "1 MiB"),
            ("gpus = 1", "t:2:8: simulate.gpus", "requires `nodes`"),
            ("nodes = 2\ngpus = 65", "t:3:8: simulate.gpus", "at most 64"),
            (
                "nodes = 2\n[[simulate.node]]\nname = 'node[2-3]'",
                "t:4:8: simulate.node[0].name",
                "duplicate node name `node2`",
            ),
            (
                "[[simulate.node]]\nname = 'a'\n[[simulate.node]]\nname = 'a'",
                "t:5:8: simulate.node[1].name",
                "duplicate node name `a`",
            ),
            ("[[simulate.node]]\nname = 'a[1-'", "t:3:8: simulate.node[0].name", "is not a node name"),
            ("[[simulate.node]]\nname = 'localhost'", "t:3:8: simulate.node[0].name", "localhost"),
            ("[[simulate.node]]\nname = 'a[1-513]'", "t:3:8: simulate.node[0].name", "at most 512"),
            ("[[simulate.node]]\nname = 'a'\ncpus = 0", "t:4:8: simulate.node[0].cpus", "at least 1 CPU"),
            ("[[simulate.node]]\nname = 'a'\nsockets = 2", "t:4:1: simulate.node[0].sockets", "unknown field"),
            ("nodes = 9\n[slurm]\ndaemon_port = 65530", "t:1:1: simulate", "the last port could be 65541"),
            ("nodes = 9\n[metrics]\nlisten = '127.0.0.1:6820'", "t:1:1: simulate", "port 6820 of `[metrics] listen`"),
        ] {
            let error = parse(&format!("[simulate]\n{bad}")).unwrap_err().to_string();
            assert!(error.starts_with(place) && error.contains(why), "{bad}: {error}");
        }
    }
}
