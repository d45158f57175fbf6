//! AMD's GPUs, as the kernel driver KFD counts them.
//!
//! `/dev/dri` is no count: an integrated GPU of another maker is `renderD128` there, and some accelerators have render
//! nodes that nothing uses. Each partition of a partitioned GPU is a node of its own, with its own render node.

mod memory;
mod model;
mod topology;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::device;
use super::left_out;
use super::pci::{self, Place};
use crate::inventory::{Access, CpuSet, Driver, Finding, Gpu, Obstacle, PciAddress, Severity, Source, Vendor};
use model::Names;
use topology::{GpuNode, Topology};

/// What was found.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The driver; `None` where KFD is not loaded.
    pub driver: Option<Driver>,
    /// The GPUs and partitions that this container sees, in KFD's order.
    pub gpus: Vec<Gpu>,
    /// What the operator should know.
    pub findings: Vec<Finding>,
}

/// Reads KFD's topology, and opens each device as a job would. Call it only inside the sandbox.
pub fn probe(root: &Path) -> Probe {
    let nodes = root.join("sys/class/kfd/kfd/topology/nodes");
    if !nodes.is_dir() {
        return Probe::default();
    }
    let topology = topology::read(&nodes, |path| fs::read_to_string(path));
    let driver = Driver { vendor: Vendor::Amd, source: Source::Kfd, version: version(root), cuda_version: None };
    let mut findings = findings(&topology, root.join("dev/kfd").exists());
    let gpus = gpus(root, &topology);
    findings.extend(left_out::findings(&gpus));
    let files = gpus.iter().filter(|gpu| gpu.is_usable()).filter_map(|gpu| gpu.device_file.as_deref());
    let groups = files.flat_map(|file| [Path::new("/dev/kfd"), file]).filter_map(|file| {
        let group = device::only_for_group(&root.join(file.strip_prefix("/").ok()?))?;
        Some((group, file.to_owned()))
    });
    findings.extend(groups_finding(&groups.collect()));
    Probe { driver: Some(driver), gpus, findings }
}

/// Only AMD's own packages write it; the driver in the kernel's tree has the kernel's version.
fn version(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("sys/module/amdgpu/version")).ok()?;
    Some(text.trim().to_owned()).filter(|version| !version.is_empty())
}

fn gpus(root: &Path, topology: &Topology) -> Vec<Gpu> {
    if topology.gpus.is_empty() {
        return Vec::new();
    }
    let names = Names::read(root);
    let machine = Machine { root, nodes_with_cpus: nodes_with_cpus(root), cpu_nodes: &topology.cpu_nodes };
    let kfd = device::access(&root.join("dev/kfd"));
    // The partitions of a chip lie in one place, and with 64 of them the links alone are thousands of files.
    let mut places: BTreeMap<PciAddress, Place> = BTreeMap::new();
    let mut gpus: Vec<Gpu> = Vec::new();
    for (index, node) in (0..).zip(&topology.gpus) {
        let minor = node.properties.render_minor;
        let address = node.properties.pci_address;
        let place = places.entry(address).or_insert_with(|| machine.place(node)).clone();
        let access = access(root, &kfd, node, &gpus);
        let memory = memory::of(root, node, place.numa_node);
        gpus.push(Gpu {
            vendor: Vendor::Amd,
            index,
            minor: Some(minor),
            device_file: Some(format!("/dev/dri/renderD{minor}").into()),
            uuid: uuid(node, &topology.gpus),
            model: names.model(root, &node.properties),
            pci_address: Some(address),
            memory_mib: memory.mib,
            shares_memory: memory.is_shared,
            memory_node: pci::memory_node(root, [place.numa_node]),
            integrated: memory::is_integrated(&node.properties, &memory),
            compute: node.properties.gfx.clone(),
            cpus: place.cpus,
            numa_node: place.numa_node,
            links: BTreeMap::new(),
            mig: None,
            condition: None,
            access,
        });
    }
    gpus
}

/// A job needs `/dev/kfd`, which all GPUs share, and the GPU's own render node.
fn access(root: &Path, kfd: &Access, node: &GpuNode, before: &[Gpu]) -> Access {
    let minor = node.properties.render_minor;
    // slurmd dies of a file that two lines name.
    if let Some(same) = before.iter().find(|gpu| gpu.minor == Some(minor)) {
        let reason = format!("/dev/dri/renderD{minor} is already that of AMD GPU {}", same.index);
        return Access::unusable(Obstacle::SharedFile, reason);
    }
    match kfd {
        Access::Usable => device::access(&root.join(format!("dev/dri/renderD{minor}"))),
        Access::Unusable { .. } => kfd.clone(),
    }
}

/// ROCm's spelling of the chip's serial number. The partitions of a GPU share it, so it names none of them: `None`.
fn uuid(node: &GpuNode, all: &[GpuNode]) -> Option<String> {
    let id = node.properties.unique_id?;
    let owners = all.iter().filter(|other| other.properties.unique_id == Some(id)).count();
    (owners == 1).then(|| format!("GPU-{id:016x}"))
}

/// What the places of GPUs are looked up in.
struct Machine<'a> {
    root: &'a Path,
    nodes_with_cpus: Vec<(u32, CpuSet)>,
    cpu_nodes: &'a [u64],
}

impl Machine<'_> {
    /// What the PCI device says, else the CPU node at the end of the GPU's lightest link.
    fn place(&self, node: &GpuNode) -> Place {
        let place = pci::place(self.root, node.properties.pci_address);
        if place != Place::default() {
            return place;
        }
        // KFD makes one CPU node for each NUMA node that has CPUs, in their order; without that it proves nothing.
        let nearest = || {
            let position = node.nearest_cpu_node(self.cpu_nodes)?;
            self.nodes_with_cpus.get(position).filter(|_| self.cpu_nodes.len() == self.nodes_with_cpus.len())
        };
        nearest()
            .map_or_else(Place::default, |(number, cpus)| Place { cpus: Some(cpus.clone()), numa_node: Some(*number) })
    }
}

/// The NUMA nodes that have CPUs, ascending.
fn nodes_with_cpus(root: &Path) -> Vec<(u32, CpuSet)> {
    let entries = fs::read_dir(root.join("sys/devices/system/node")).into_iter().flatten().flatten();
    let mut nodes: Vec<(u32, CpuSet)> = entries
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let cpus: CpuSet = fs::read_to_string(entry.path().join("cpulist")).ok()?.parse().ok()?;
            (!cpus.is_empty()).then_some((number, cpus))
        })
        .collect();
    nodes.sort();
    nodes
}

fn findings(topology: &Topology, has_kfd: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !topology.gpus.is_empty() && !has_kfd {
        findings.push(Finding {
            severity: Severity::Warning,
            what: format!("{} AMD GPU(s) are visible, and /dev/kfd is not in this container", topology.gpus.len()),
            cause: "the container was started without AMD's compute device".to_owned(),
            repair: "start it with --device /dev/kfd --device /dev/dri".to_owned(),
        });
    }
    if !topology.riddles.is_empty() {
        let nodes = topology.riddles.iter().map(|(number, why)| format!("node {number} ({why})"));
        findings.push(Finding {
            severity: Severity::Warning,
            what: format!(
                "the AMD kernel driver (KFD) lists what cannot be used: {}",
                nodes.collect::<Vec<_>>().join("; ")
            ),
            cause: "the GPU failed or is being reset, or this kernel writes its topology in another way".to_owned(),
            repair: "look for amdgpu messages on the host (dmesg | grep -i amdgpu) and compare with `rocminfo` there; where it \
                     has the GPU, report what /sys/class/kfd/kfd/topology/nodes/N/properties says"
                .to_owned(),
        });
    }
    if topology.hidden > 0 {
        let repair = match has_kfd {
            true => {
                "to use them too, pass their render nodes: --device /dev/dri, or --device /dev/dri/renderDN for each"
            }
            false => "to use them, start it with --device /dev/kfd --device /dev/dri",
        };
        findings.push(Finding {
            severity: Severity::Info,
            what: format!("{} AMD GPU(s) of this machine are hidden from this container", topology.hidden),
            cause: "the container's device rules do not hold their render nodes".to_owned(),
            repair: repair.to_owned(),
        });
    }
    findings
}

/// ROCr gives up as a whole where one render node says "permission denied" (libhsakmt, topology.c).
fn groups_finding(groups: &BTreeMap<u32, PathBuf>) -> Option<Finding> {
    let (first, file) = groups.first_key_value()?;
    let numbers: Vec<String> = groups.keys().map(u32::to_string).collect();
    let numbers = numbers.join(" and ");
    let file = file.display();
    Some(Finding {
        severity: Severity::Info,
        what: format!("jobs of other users than root can use AMD GPUs only as members of group {numbers} (the number)"),
        cause: format!(
            "{file} and its like are closed to others, and Slurm gives a job the groups that its user has in /etc/group, not \
             those of docker's --group-add"
        ),
        repair: format!(
            "before the start, in the image or a hook: groupadd -g {first} amd-gpu && usermod -aG amd-gpu USER; or open the \
             files to all on the host by a udev rule (MODE=\"0666\")"
        ),
    })
}

#[cfg(test)]
mod tests;
