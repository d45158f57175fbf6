//! Simulated nodes and their resources.

use std::path::Path;

use config::{Config, FeatureName, OtherNodes, SimulatedGroup};
use model::inventory::{Finding, Inventory, Kind, Vendor};
use model::printable;

use super::gpus::{AutoDetect, GresLine, GresPlan};
use super::names::{DevicePath, GresType, HostName};
use super::{NodePlan, NodesPlan, Reasons, cluster};

/// The beginning of the model names of simulated GPUs.
const MODEL_PREFIX: &str = "Simulated ";

/// The directory of simulated device files, which are links to /dev/null (Slurm requires character devices).
pub const DEVICES: &str = "/dev/simulated";

/// The simulated GPUs of a simulated node; `None` if the node is not simulated, or the number of GPUs is not configured.
pub(super) fn gres(node: &NodePlan, reasons: &mut Reasons) -> Option<GresPlan> {
    let OtherNodes { name, gpus, gpu_type, .. } = &node.simulated.as_ref()?.each;
    let (count, gres_type) = ((*gpus)?, gpu_type.as_ref().map_or("simulated", FeatureName::as_str));
    let line = |index: u32| {
        Some(GresLine {
            gres_type: GresType::own(gres_type),
            files: vec![DevicePath::try_from(Path::new(&format!("{DEVICES}/gpu{index}"))).ok()?],
            cores: None,
            links: Vec::new(),
            vendor: Vendor::SIMULATED,
            index,
            runtime_name: index.to_string(),
            uuid: None,
            name: "Simulated GPU".to_owned(),
            memory_mib: None,
            pci_address: None,
            comment: "SIMULATED".to_owned(),
        })
    };
    let lines = (0..count).filter_map(line).collect();
    let plan = GresPlan { auto_detect: AutoDetect::Off, lines, matches_runtime_numbers: true, sharing: None };
    reasons.decide(format!("Gres={}", plan.node_gres()), why(name.as_str(), "gpus"));
    Some(plan)
}

/// Excludes real GPUs from simulated nodes, because each node would offer them.
pub(super) fn without_real_gpus(config: &Config, inventory: Inventory, findings: &mut Vec<Finding>) -> Inventory {
    let is_real = |model: &Option<String>| !model.as_deref().is_some_and(|model| model.starts_with(MODEL_PREFIX));
    let sets_gpus = |group: &SimulatedGroup| group.each.gpus.is_some();
    if config.simulated().is_some_and(|nodes| nodes.groups.iter().any(sets_gpus)) {
        return cluster::without_gpus(&inventory);
    }
    if !inventory.usable_gpus().any(|gpu| is_real(&gpu.model)) {
        return inventory;
    }
    findings.push(Finding::warning(
        Kind::Settings,
        "no GPU is offered",
        "the nodes of this container are simulated, and each would offer the same real GPUs",
        "to use these GPUs, do not simulate nodes ([simulate], SLURMINIT_NODES, --nodes); to simulate GPUs, set `gpus` in [simulate]",
    ));
    cluster::without_gpus(&inventory)
}

fn why(nodes: &str, key: &str) -> String {
    format!("`{key}` of {nodes} in [simulate]; the nodes share the container's resources")
}

/// Plans the container's node, or each group of simulated nodes with its claimed resources. With `config_overrides`, slurmd accepts
/// these resources.
pub(super) fn nodes(container: NodePlan, config: &Config, reasons: &mut Reasons) -> (NodePlan, Vec<NodePlan>) {
    let Some(nodes) = config.simulated() else { return (container, Vec::new()) };
    let of = |count| format!("number of slurmd daemons in this container: {count} ([simulate])");
    reasons.decide(format!("NodeName={}", nodes.range()), of(nodes.iter().count()));
    // Slurm allocates either cores or CPUs, on all nodes alike (SelectTypeParameters).
    let sets_cpus = nodes.groups.iter().any(|group| group.each.cpus.is_some());
    let mut plans = nodes.groups.into_iter().map(|group| {
        let (mut node, name) = (container.clone(), group.each.name.as_str());
        node.topology = container.topology.filter(|_| !sets_cpus);
        if let Some(cpus) = group.each.cpus {
            node.cpus = cpus;
            reasons.decide(format!("CPUs={cpus}"), why(name, "cpus"));
        }
        if let Some(memory) = group.each.memory_mib {
            node.memory_mib = Some(memory);
            reasons.decide(format!("RealMemory={memory}"), why(name, "memory_mib"));
        }
        node.simulated = Some(group);
        node
    });
    let first = plans.next().unwrap_or_else(|| container.clone());
    (first, plans.collect())
}

/// The host of the container's node or of the simulated nodes: `localhost` if a simulated node has the container's host name. slurmctld exits
/// if a node has the name of another node's host.
pub(super) fn host(config: &Config, host: &HostName) -> HostName {
    let is_name_of_node = config.simulated().is_some_and(|nodes| nodes.iter().any(|(name, _)| name == host.as_str()));
    let other = is_name_of_node.then(|| HostName::try_from("localhost".to_owned()).ok());
    other.flatten().unwrap_or_else(|| host.clone())
}

/// A one-line summary: `4 SIMULATED nodes in this container, each with ...`.
pub(super) fn summary(kinds: &[&NodesPlan], each: impl Fn(&NodesPlan) -> String) -> String {
    let count = |kind: &NodesPlan| kind.node.simulated.as_ref().map_or(1, |group| group.nodes.len());
    let all: usize = kinds.iter().map(|kind| count(kind)).sum();
    let has = match kinds {
        [kind] => format!(", each with {}", each(kind)),
        _ => kinds.iter().map(|kind| format!("; {} with {}", kind.node.names(), each(kind))).collect(),
    };
    format!("{} in this container{has}", printable::count(all, "SIMULATED node"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use model::inventory::Gpu;

    #[test]
    fn no_simulated_node_has_the_name_of_the_container() {
        let config = Config::parse("[simulate]\nnodes = 2\n", Path::new("x")).unwrap();
        let host_of = |name: &str| host(&config, &HostName::try_from(name.to_owned()).unwrap()).as_str().to_owned();
        assert_eq!(["node1", "node2", "node3", "slurm"].map(host_of), ["localhost", "localhost", "node3", "slurm"]);
    }

    fn planned(toml: &str, gpus: &[Gpu]) -> crate::Plan {
        let config = Config::parse(toml, Path::new("x")).unwrap();
        let inventory = Inventory { hostname: "head".to_owned(), gpus: gpus.to_vec(), ..Inventory::default() };
        crate::plan(&config, &inventory).unwrap()
    }

    #[test]
    fn simulated_nodes_never_offer_real_gpus() {
        let gpu = |model: &str| Gpu {
            uuid: Some("GPU-1".to_owned()),
            model: Some(model.to_owned()),
            device_file: Some("/dev/nvidia0".into()),
            ..Gpu::default()
        };
        let gres = |toml: &str, gpu: Gpu| {
            let plan = planned(toml, &[gpu]);
            (plan.nodes.gres.lines.len(), plan.findings.iter().any(|finding| finding.what == "no GPU is offered"))
        };
        let (real, simulated) = (gpu("NVIDIA H200"), gpu("Simulated H200"));
        assert_eq!(gres("", real.clone()), (1, false));
        assert_eq!(gres("[simulate]\nnodes = 2\n", real.clone()), (0, true));
        assert_eq!(gres("[simulate]\nnodes = 2\n", simulated), (1, false));
        assert_eq!(gres("[simulate]\nnodes = 2\ngpus = 3\n", real), (3, false));
    }

    #[test]
    fn each_kind_of_node_has_its_resources() {
        let plan = planned("[simulate]\nnodes = 2\ncpus = 4\nmemory_mib = 5000\n", &[]);
        assert_eq!(plan.summary, "2 SIMULATED nodes in this container, each with no GPU, 4 CPUs, 5000 MiB");
        let plan = planned(
            "[simulate]\nnodes = 2\ncpus = 4\nmemory_mib = 5000\n[[simulate.node]]\nname = 'big'\ncpus = 8\ngpus = 2\n",
            &[],
        );
        assert!(
            plan.summary.starts_with("3 SIMULATED nodes in this container; node[1-2] with no GPU, 4 CPUs"),
            "{}",
            plan.summary
        );
        assert!(plan.summary.contains("; big with 2 simulated GPUs, 8 CPUs"), "{}", plan.summary);
        let reason = |fact: &str| plan.decisions.iter().find(|one| one.what == fact).map(|one| one.why.as_str());
        assert!(
            reason("CPUs=8").is_some_and(|why| why.starts_with("`cpus` of big in [simulate]")),
            "{:?}",
            plan.decisions
        );
        assert_eq!(plan.node_names(), "node[1-2],big");
    }
}
