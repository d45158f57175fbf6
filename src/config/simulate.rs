//! Nodes that are made up, all of them in one container: for tests of what runs on Slurm.

use std::ops::RangeInclusive;

use serde::Deserialize;

use super::error::Fault;
use super::{Config, ConfigError, FeatureName, NodeName, NodeRange, Role};

/// The most nodes: each is a daemon of this container.
const MOST: u32 = 512;

/// What simulated nodes are called, with their number behind it, where `[node] name` does not say.
const NAME: &str = "node";

/// `[simulate]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Simulate {
    /// How many nodes the cluster has; `None` means the container itself, as it is.
    pub nodes: Option<u32>,
    /// The CPUs of each; `None` means those of the container, all of them on each node.
    pub cpus: Option<u32>,
    /// The memory of each, in MiB; as with the CPUs.
    pub memory_mib: Option<u64>,
    /// The made-up GPUs of each; `None` means the simulated GPUs that are detected, if any are.
    pub gpus: Option<u32>,
    /// Their GRES type.
    pub gpu_type: Option<FeatureName>,
}

/// The most GPUs of a node: as many as are known on any machine, and more.
const MOST_GPUS: u32 = 64;

/// A simulated cluster's nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedNodes {
    /// All of their names, as Slurm writes them: `node[1-4]`.
    pub range: String,
    /// Each name, in order.
    pub names: Vec<String>,
    /// The port of each.
    pub ports: RangeInclusive<u16>,
}

impl Config {
    /// With so many simulated nodes, as the command line says.
    ///
    /// # Errors
    /// So many are not possible.
    pub fn with_simulated_nodes(self, nodes: u32) -> Result<Self, ConfigError> {
        set_nodes(self, nodes, "the option --nodes")
    }

    /// The simulated nodes, if that is what this container runs.
    pub fn simulated(&self) -> Option<SimulatedNodes> {
        let count = self.simulate.nodes.filter(|_| self.role == Role::All && !self.shares_a_cluster())?;
        let name = if self.node.name == NodeName::default() { NAME } else { self.node.name.as_str() };
        let range = if count == 1 { format!("{name}1") } else { format!("{name}[1-{count}]") };
        let names = NodeRange::try_from(range.clone()).map(|range| range.names()).unwrap_or_default();
        let first = self.slurm.daemon_port;
        let more = u16::try_from(count.saturating_sub(1)).unwrap_or(u16::MAX);
        Some(SimulatedNodes { range, names, ports: first..=first.saturating_add(more) })
    }
}

/// The key that is not possible, and why.
fn wrong(config: &Config) -> Option<(&'static str, String)> {
    let simulate = &config.simulate;
    let of_nodes = [
        ("cpus", simulate.cpus.is_some()),
        ("memory_mib", simulate.memory_mib.is_some()),
        ("gpus", simulate.gpus.is_some()),
        ("gpu_type", simulate.gpu_type.is_some()),
    ];
    let last_port = |nodes: u32| u32::from(config.slurm.daemon_port) + nodes - 1;
    match simulate.nodes {
        None => {
            let (key, _) = of_nodes.into_iter().find(|(_, is_set)| *is_set)?;
            Some((key, "it is of simulated nodes: set nodes, too".to_owned()))
        }
        Some(nodes) if !(1..=MOST).contains(&nodes) => Some(("nodes", format!("want 1 to {MOST} nodes"))),
        Some(nodes) if last_port(nodes) > u32::from(u16::MAX) => Some((
            "nodes",
            format!("each node has a port from daemon_port on, and the last would be {}", last_port(nodes)),
        )),
        _ if simulate.cpus == Some(0) => Some(("cpus", "a node has one CPU at least".to_owned())),
        _ if simulate.gpus > Some(MOST_GPUS) => Some(("gpus", format!("a node has at most {MOST_GPUS} GPUs"))),
        Some(_) => None,
    }
}

/// Whether the file asks for what is possible.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    match wrong(config) {
        Some((key, why)) => Err(Fault::new(vec!["simulate".into(), key.into()], why)),
        None => Ok(()),
    }
}

/// Sets the number of nodes, as it is said at this place.
pub(super) fn set_nodes(mut config: Config, nodes: u32, place: &str) -> Result<Config, ConfigError> {
    config.simulate.nodes = Some(nodes);
    match wrong(&config) {
        Some((_, why)) => Err(ConfigError::said(place.to_owned(), &nodes.to_string(), why)),
        None => Ok(config),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn nodes_have_numbers_and_only_a_whole_cluster_has_them() {
        let parse = |text: &str| Config::parse(text, Path::new("t"));
        let range = |text: &str| parse(text).unwrap().simulated().map(|nodes| nodes.range);
        assert_eq!(range(""), None);
        assert_eq!(range("[simulate]\nnodes = 4").as_deref(), Some("node[1-4]"));
        assert_eq!(range("[simulate]\nnodes = 1\n[node]\nname = 'nid0'").as_deref(), Some("nid01"));
        assert_eq!(range("role = 'none'\n[simulate]\nnodes = 4"), None);
        assert_eq!(range("[slurm]\ncontroller = 'head'\n[simulate]\nnodes = 4"), None);
        for bad in [
            "nodes = 0",
            "nodes = 513",
            "cpus = 4",
            "memory_mib = 4",
            "nodes = 2\ncpus = 0",
            "gpus = 1",
            "nodes = 2\ngpus = 65",
        ] {
            assert!(parse(&format!("[simulate]\n{bad}")).is_err(), "{bad}");
        }
    }
}
