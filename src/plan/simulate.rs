//! Nodes that are made up: what a container tells of them.

use std::path::Path;

use crate::config::{Config, FeatureName, SimulatedNodes};
use crate::inventory::{Finding, Inventory, Kind, Vendor};

use super::gpus::{AutoDetect, GresLine, GresPlan};
use super::names::{DevicePath, GresType};
use super::{NodePlan, Reasons, cluster};

/// How the stand-in for a driver's library calls its GPUs.
const MADE_UP: &str = "Simulated ";

/// Where made-up GPUs have their device files, which are links to /dev/null: Slurm wants character devices.
pub const DEVICES: &str = "/dev/simulated";

/// What a node is told to have in place of what was detected.
pub(super) fn gres(config: &Config, reasons: &mut Reasons) -> Option<GresPlan> {
    let count = config.simulate.gpus.filter(|_| config.simulated().is_some())?;
    let gres_type = config.simulate.gpu_type.as_ref().map_or("simulated", FeatureName::as_str);
    let line = |index: u32| {
        Some(GresLine {
            gres_type: GresType::own(gres_type),
            files: vec![DevicePath::try_from(Path::new(&format!("{DEVICES}/gpu{index}"))).ok()?],
            cores: None,
            links: Vec::new(),
            // For CUDA_VISIBLE_DEVICES.
            vendor: Vendor::Nvidia,
            runtime_name: index.to_string(),
            name: "Simulated GPU".to_owned(),
            memory_mib: None,
            pci_address: None,
            comment: "SIMULATED".to_owned(),
        })
    };
    let lines = (0..count).filter_map(line).collect();
    let plan = GresPlan { auto_detect: AutoDetect::Off, lines, counts_as_runtimes: true, sharing: None };
    reasons.decide(format!("Gres={}", plan.node_gres()), "[simulate] gpus");
    Some(plan)
}

/// A GPU is real, and is one. Each node would offer it.
pub(super) fn without_real_gpus(config: &Config, inventory: Inventory, findings: &mut Vec<Finding>) -> Inventory {
    let is_real = |model: &Option<String>| !model.as_deref().is_some_and(|model| model.starts_with(MADE_UP));
    if config.simulate.gpus.is_some() {
        return cluster::without_gpus(&inventory);
    }
    if !inventory.usable_gpus().any(|gpu| is_real(&gpu.model)) {
        return inventory;
    }
    findings.push(Finding::warning(
        Kind::Settings,
        "no GPU is offered",
        "[simulate] nodes: each simulated node would offer the same real GPUs",
        "leave nodes out for a cluster with these GPUs, or set gpus in [simulate] for made-up ones",
    ));
    cluster::without_gpus(&inventory)
}

/// What a simulated node claims, whatever the container has; slurmd is told to believe it (`config_overrides`).
pub(super) fn node(mut node: NodePlan, config: &Config, reasons: &mut Reasons) -> NodePlan {
    let Some(SimulatedNodes { range, names, .. }) = &node.simulated else { return node };
    reasons.decide(format!("NodeName={range}"), format!("[simulate] nodes: {} slurmd in this container", names.len()));
    let why = |key: &str| format!("[simulate] {key}; the nodes share what the container has");
    if let Some(cpus) = config.simulate.cpus {
        (node.cpus, node.topology) = (cpus, None);
        reasons.decide(format!("CPUs={cpus}"), why("cpus"));
    }
    if let Some(memory) = config.simulate.memory_mib {
        node.memory_mib = Some(memory);
        reasons.decide(format!("RealMemory={memory}"), why("memory_mib"));
    }
    node
}

/// `SIMULATED: 4 nodes, each with ...`.
pub(super) fn summary(nodes: &SimulatedNodes, each: &str) -> String {
    let count = nodes.names.len();
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} SIMULATED node{plural} in this container, each with {each}")
}
