//! AMD GPUs, as listed by the kernel driver KFD.
//!
//! `/dev/dri` does not list them reliably: `renderD128` may be an integrated GPU of another vendor, and some
//! accelerators have render nodes that nothing uses. Each partition of a partitioned GPU is a KFD node with its own
//! render node.

mod memory;
mod product_name;
mod readings;
mod resets;
mod smi_ioctl;
mod smi_line;
mod topology;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::job_map::Format;
use crate::pci::{self, Locality};
use crate::vendor::{Events, VendorProbe};
use crate::{ProbeResult, device, groups, left_out, regular};
use model::inventory::{
    Access, Condition, CpuSet, Driver, Finding, Gpu, Kind, Obstacle, PciAddress, Readings, Source, Vendor,
};
use product_name::ModelNames;
use resets::Resets;
use topology::{GpuNode, Topology};

/// The minor of the first render node.
const FIRST_RENDER_NODE: u32 = 128;

const NODES: &str = "sys/class/kfd/kfd/topology/nodes";

/// AMD's GPUs.
#[derive(Debug)]
pub struct Amd;

impl VendorProbe for Amd {
    fn has_traces(&self, root: &Path) -> bool {
        root.join(NODES).is_dir()
    }

    fn probe(&self, root: &Path) -> ProbeResult {
        probe(root)
    }

    fn list(&self, root: &Path) -> Vec<Gpu> {
        gpus(root, &topology::read(&root.join(NODES), |path| fs::read_to_string(path)), device::access_without_open)
    }

    fn sample(&self, root: &Path, gpu: &Gpu) -> (Condition, Readings) {
        let nothing = || (Condition { index: gpu.index, ..Condition::default() }, Readings::default());
        // Reading a value would wake a GPU that sleeps.
        let address = gpu.pci_address.filter(|address| !pci::is_asleep(root, *address));
        address.map_or_else(nothing, |address| readings::read(root, gpu.index, address))
    }

    fn map_entry(&self, root: &Path, device: &str) -> Option<(String, Format)> {
        let minor = device.strip_prefix("/dev/dri/renderD")?.parse().ok()?;
        Some((host_number(root, minor)?.to_string(), Format::Json))
    }

    fn events(&self) -> Box<dyn Events> {
        Box::new(Resets::default())
    }
}

/// Reads KFD's topology, and opens each device as a job would. Call it only inside the sandbox.
pub fn probe(root: &Path) -> ProbeResult {
    let nodes = root.join(NODES);
    if !nodes.is_dir() {
        return ProbeResult::default();
    }
    let topology = topology::read(&nodes, |path| fs::read_to_string(path));
    let driver = Driver { vendor: Vendor::Amd, source: Source::Kfd, version: version(root), cuda_version: None };
    let mut findings = findings(&topology, root.join("dev/kfd").exists());
    let gpus = gpus(root, &topology, device::access);
    findings.extend(left_out::findings(&gpus));
    findings.extend(groups::finding(root, Vendor::Amd, &gpus));
    ProbeResult { driver: Some(driver), gpus, findings }
}

/// The GPU's number on the host, as AMD's exporter counts it: the position among KFD's GPUs, including those that this container may
/// not use. A render node's number is not this position, because each MI300X has eight render nodes. Without KFD, `minor` minus 128 is
/// the best guess.
fn host_number(root: &Path, minor: u32) -> Option<usize> {
    let topology = topology::read(&root.join(NODES), |path| fs::read_to_string(path));
    if topology.gpus.is_empty() {
        return usize::try_from(minor.checked_sub(FIRST_RENDER_NODE)?).ok();
    }
    let own = topology.gpus.iter().find(|node| node.properties.render_minor == minor)?;
    let visible_before = topology.gpus.iter().filter(|node| node.number < own.number).count();
    Some(visible_before + topology.hidden.iter().filter(|number| **number < own.number).count())
}

/// The GPUs' numbers in KFD's ioctls, in the order of [`probe`].
fn gpu_ids(root: &Path) -> Vec<Option<u32>> {
    let topology = topology::read(&root.join(NODES), |path| fs::read_to_string(path));
    let id = |node: &GpuNode| regular::line(&node.directory.join("gpu_id"))?.parse().ok();
    topology.gpus.iter().map(id).collect()
}

/// The driver's version. Only AMD's own packages provide this file; the in-tree driver has the kernel's version.
fn version(root: &Path) -> Option<String> {
    regular::line(&root.join("sys/module/amdgpu/version"))
}

fn gpus(root: &Path, topology: &Topology, check_access: fn(&Path) -> Access) -> Vec<Gpu> {
    if topology.gpus.is_empty() {
        return Vec::new();
    }
    let names = ModelNames::read(root);
    let nodes_with_cpus = nodes_with_cpus(root);
    let kfd = check_access(&root.join("dev/kfd"));
    // Cached, because all partitions of a chip share a location. With 64 partitions the links alone are thousands of
    // files.
    let mut localities: BTreeMap<PciAddress, Locality> = BTreeMap::new();
    let mut gpus: Vec<Gpu> = Vec::new();
    for (index, node) in (0..).zip(&topology.gpus) {
        let minor = node.properties.render_minor;
        let address = node.properties.pci_address;
        let locality = || locality(root, node, &topology.cpu_nodes, &nodes_with_cpus);
        let locality = localities.entry(address).or_insert_with(locality).clone();
        let access = access(root, &kfd, node, &gpus, check_access);
        let memory = memory::read(root, node, locality.numa_node);
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
            memory_node: pci::memory_node(root, [locality.numa_node]),
            integrated: memory::is_integrated(&node.properties, &memory),
            compute: node.properties.gfx.clone(),
            cpus: locality.cpus,
            numa_node: locality.numa_node,
            access,
            ..Gpu::default()
        });
    }
    gpus
}

/// A job needs `/dev/kfd`, which all GPUs share, and the GPU's own render node.
fn access(
    root: &Path,
    kfd: &Access,
    node: &GpuNode,
    previous_gpus: &[Gpu],
    check_access: fn(&Path) -> Access,
) -> Access {
    let minor = node.properties.render_minor;
    // slurmd exits if two gres.conf lines name the same file.
    if let Some(same) = previous_gpus.iter().find(|gpu| gpu.minor == Some(minor)) {
        let reason = format!("/dev/dri/renderD{minor} already belongs to AMD GPU {}", same.index);
        return Access::unusable(Obstacle::SharedFile, reason);
    }
    match kfd {
        Access::Usable => check_access(&root.join(format!("dev/dri/renderD{minor}"))),
        Access::Unusable { .. } => kfd.clone(),
    }
}

/// The chip's serial number as ROCm writes it. Partitions of a GPU share it, so the result is `None` if another listed GPU has this number.
fn uuid(node: &GpuNode, all: &[GpuNode]) -> Option<String> {
    let id = node.properties.unique_id?;
    let owners = all.iter().filter(|other| other.properties.unique_id == Some(id)).count();
    (owners == 1).then(|| format!("GPU-{id:016x}"))
}

/// The location according to the PCI device, otherwise the CPU node at the end of the GPU's lightest link.
fn locality(root: &Path, node: &GpuNode, cpu_nodes: &[u64], nodes_with_cpus: &[(u32, CpuSet)]) -> Locality {
    let locality = pci::locality(root, node.properties.pci_address);
    if locality != Locality::default() {
        return locality;
    }
    // KFD creates one CPU node per NUMA node with CPUs, in the same order. If the counts differ, the positions do not correspond.
    let nearest = || {
        let position = node.nearest_cpu_node(cpu_nodes)?;
        nodes_with_cpus.get(position).filter(|_| cpu_nodes.len() == nodes_with_cpus.len())
    };
    nearest().map_or(locality, |(number, cpus)| Locality { cpus: Some(cpus.clone()), numa_node: Some(*number) })
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
        findings.push(Finding::warning(
            Kind::AmdDevices,
            format!("{} AMD GPU(s) visible, but /dev/kfd is not in this container", topology.gpus.len()),
            "the container was started without AMD's compute device",
            "start the container with --device /dev/kfd --device /dev/dri",
        ));
    }
    if !topology.unrecognized_nodes.is_empty() {
        let nodes = topology.unrecognized_nodes.iter().map(|(number, why)| format!("node {number} ({why})"));
        let nodes = nodes.collect::<Vec<_>>().join("; ");
        findings.push(Finding::warning(
            Kind::DriverFails,
            format!("unusable entries of the AMD kernel driver (KFD): {nodes}"),
            "the GPU failed or is being reset, or this kernel's topology format is not supported",
            "run `dmesg | grep -i amdgpu` on the host; if `rocminfo` lists the GPU there, report a bug with the files in /sys/class/kfd/kfd/topology/nodes",
        ));
    }
    if !topology.hidden.is_empty() {
        let fix = match has_kfd {
            true => "to use them, pass their render nodes: --device /dev/dri, or --device /dev/dri/renderDN for each",
            false => "to use them, start the container with --device /dev/kfd --device /dev/dri",
        };
        findings.push(Finding::info(
            Kind::AmdDevices,
            format!("{} AMD GPU(s) of this machine are hidden from this container", topology.hidden.len()),
            "the container's device rules deny their render nodes",
            fix,
        ));
    }
    findings
}

#[cfg(test)]
mod tests;
