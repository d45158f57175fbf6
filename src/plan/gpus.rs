//! gres.conf: one line for each GPU that a job can be given.

use std::collections::BTreeSet;

use crate::config::{Config, GresMode, TypeName};
use crate::inventory::{Access, CpuSet, Finding, Gpu, Inventory, Severity, Vendor};

use super::names::{DevicePath, GresType};
use super::{Decision, NodePlan};

/// gres.conf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GresPlan {
    /// Who names the devices.
    pub auto_detect: AutoDetect,
    /// One for each usable GPU, in the order in which jobs count them.
    pub lines: Vec<GresLine>,
}

impl GresPlan {
    /// Gres of the node's line: `gpu:nvidia:2,gpu:amd:1`.
    pub(super) fn node_gres(&self) -> String {
        let mut counts: Vec<(&GresType, usize)> = Vec::new();
        for line in &self.lines {
            match counts.iter_mut().find(|(known, _)| **known == line.gres_type) {
                Some((_, count)) => *count += 1,
                None => counts.push((&line.gres_type, 1)),
            }
        }
        counts.iter().map(|(name, count)| format!("gpu:{name}:{count}")).collect::<Vec<_>>().join(",")
    }
}

/// Who names the devices in gres.conf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoDetect {
    /// We do.
    Off,
    /// Slurm's NVML plugin; the lines are for counting only.
    Nvml,
    /// Slurm's ROCm plugin; the lines are for counting only.
    Rsmi,
}

impl AutoDetect {
    /// As in gres.conf.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Nvml => "nvml",
            Self::Rsmi => "rsmi",
        }
    }
}

/// A line of gres.conf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GresLine {
    /// Type.
    pub gres_type: GresType,
    /// File.
    pub file: DevicePath,
    /// Cores, as Slurm's abstract core indices; all lines have them or none.
    pub cores: Option<CpuSet>,
    /// Links to every GPU of the file: -1 for itself.
    pub links: Vec<i64>,
    /// Whose environment variables a job gets.
    pub vendor: Vendor,
    /// For the comment above it: model, UUID, PCI address.
    pub comment: String,
}

impl GresLine {
    /// Flags: the vendor's own environment variables only, not those of every vendor.
    pub const fn flags(&self) -> &'static str {
        match self.vendor {
            Vendor::Nvidia => "nvidia_gpu_env",
            Vendor::Amd => "amd_gpu_env",
        }
    }
}

/// Decides the lines.
pub(super) fn plan(
    config: &Config,
    inventory: &Inventory,
    node: &NodePlan,
    decisions: &mut Vec<Decision>,
    findings: &mut Vec<Finding>,
) -> GresPlan {
    let gpus = nameable(inventory, decisions, findings);
    let auto_detect = auto_detect(config, inventory, &gpus, decisions, findings);
    let cores = match gpus.iter().map(|(gpu, file)| cores(gpu, file, inventory, node)).collect::<Result<Vec<_>, _>>() {
        Ok(cores) => cores.into_iter().map(Some).collect(),
        Err(why) => {
            decisions.push(Decision::new("no Cores", why));
            vec![None; gpus.len()]
        }
    };
    let mut lines = Vec::new();
    for ((position, (gpu, file)), cores) in gpus.iter().enumerate().zip(cores) {
        lines.push(GresLine {
            gres_type: gres_type(config, auto_detect, gpu, position),
            file: file.clone(),
            cores,
            links: links(position, &gpus),
            vendor: gpu.vendor,
            comment: comment(gpu),
        });
    }
    let plan = GresPlan { auto_detect, lines };
    if !plan.lines.is_empty() {
        decisions.push(Decision::new(format!("Gres={}", plan.node_gres()), type_reason(config)));
    }
    plan
}

/// The usable GPUs whose device file can be written down, each file once; NVIDIA first, in the driver's order.
fn nameable<'a>(
    inventory: &'a Inventory,
    decisions: &mut Vec<Decision>,
    findings: &mut Vec<Finding>,
) -> Vec<(&'a Gpu, DevicePath)> {
    let mut gpus: Vec<&Gpu> = inventory.gpus.iter().collect();
    gpus.sort_by_key(|gpu| (gpu.vendor, gpu.index));
    let mut files = BTreeSet::new();
    let mut nameable = Vec::new();
    let mut unusable = Vec::new();
    let counted = gpus.len();
    for gpu in gpus {
        let label = format!("{} GPU {}", gpu.vendor, gpu.index);
        if let Access::Unusable { reason } = &gpu.access {
            decisions.push(Decision::new(format!("{label} is left out"), one_line(reason)));
            unusable.push(format!("{label} ({})", one_line(reason)));
            continue;
        }
        // Slurm ignores a GPU without a file and takes the node out of service for the missing one.
        let file = match gpu.device_file.as_deref().map(DevicePath::try_from) {
            Some(Ok(file)) if files.insert(file.clone()) => Ok(file),
            Some(Ok(file)) => {
                Err(format!("its device file {file} is already another GPU's, and slurmd dies of a second one"))
            }
            Some(Err(fault)) => Err(fault),
            None => Err("it has no device file of its own, and Slurm gives jobs only what has one".to_owned()),
        };
        match file {
            Ok(file) => nameable.push((gpu, file)),
            Err(why) => {
                decisions.push(Decision::new(format!("{label} is left out"), why.clone()));
                findings.push(Finding {
                    severity: Severity::Warning,
                    what: format!("{label} cannot be given to jobs"),
                    cause: why,
                    repair: "run `slurminit detect` to see every GPU and its device file".to_owned(),
                });
            }
        }
    }
    if !unusable.is_empty() {
        findings.push(Finding {
            severity: Severity::Warning,
            what: format!("left out, of {counted} GPUs that the drivers count: {}", unusable.join("; ")),
            cause: "this container was not given them, or may not open them".to_owned(),
            repair: "nothing, if that is meant; else create the container with them (docker run --gpus all)".to_owned(),
        });
    }
    nameable
}

fn auto_detect(
    config: &Config,
    inventory: &Inventory,
    gpus: &[(&Gpu, DevicePath)],
    decisions: &mut Vec<Decision>,
    findings: &mut Vec<Finding>,
) -> AutoDetect {
    let explicit = |why: &str, decisions: &mut Vec<Decision>| {
        decisions.push(Decision::new("AutoDetect=off", why));
        AutoDetect::Off
    };
    if config.gpu.gres == GresMode::Explicit {
        let why = "the lines name exactly the devices that this container can open; a plugin that is missing or \
                   sees others would take the node out of service";
        return explicit(why, decisions);
    }
    let has = |vendor| gpus.iter().any(|(gpu, _)| gpu.vendor == vendor);
    let (choice, plugin) = match (has(Vendor::Nvidia), has(Vendor::Amd)) {
        (true, false) => (AutoDetect::Nvml, "gpu_nvml"),
        (false, true) => (AutoDetect::Rsmi, "gpu_rsmi"),
        (false, false) => return explicit("there is no GPU to detect", decisions),
        (true, true) => return explicit("Slurm detects one vendor at a time, and there are two", decisions),
    };
    if inventory.slurm.has_plugin(plugin) {
        decisions.push(Decision::new(format!("AutoDetect={}", choice.as_str()), "[gpu] gres = \"autodetect\""));
        return choice;
    }
    findings.push(Finding {
        severity: Severity::Warning,
        what: format!(
            "gres = \"autodetect\" is not possible: Slurm's plugin {plugin} is not installed; explicit lines are used"
        ),
        cause: "with AutoDetect and no plugin slurmd finds no GPU, and the node is taken out of service".to_owned(),
        repair: format!("build the image with GPU_TYPE={}, or set gres = \"explicit\"", gpus[0].0.vendor),
    });
    explicit("the plugin is not installed", decisions)
}

fn gres_type(config: &Config, auto_detect: AutoDetect, gpu: &Gpu, position: usize) -> GresType {
    let vendor = GresType::own(gpu.vendor);
    let model = gpu.model.as_deref().and_then(GresType::from_model);
    if auto_detect != AutoDetect::Off {
        // The plugin keeps a Type only if it is a part of the name that it detects.
        return match model {
            Some(model) if config.gpu.type_name != TypeName::Vendor || !model.as_str().contains(vendor.as_str()) => {
                model
            }
            _ => vendor,
        };
    }
    match config.gpu.type_name {
        TypeName::Vendor => vendor,
        TypeName::Model => model.unwrap_or(vendor),
        TypeName::Index => GresType::own(format_args!("gpu{position}")),
    }
}

fn type_reason(config: &Config) -> &'static str {
    match config.gpu.type_name {
        TypeName::Vendor => "as many as there are lines in gres.conf; the type is the vendor's name",
        TypeName::Model => "as many as there are lines in gres.conf; the type is the model, as [gpu] type_name says",
        TypeName::Index => "as many as there are lines in gres.conf; each has its own type, as [gpu] type_name says",
    }
}

/// The cores near to a GPU, or why no line can have any: slurmctld calls a mixture an error at every registration. Whole
/// sockets only: where a GPU is near to a part of a socket, as with several NUMA nodes in one, slurmctld 24.11 takes the
/// node out of service ("GRES core specification doesn't match socket boundaries"), so the socket stands for its part.
fn cores(gpu: &Gpu, file: &DevicePath, inventory: &Inventory, node: &NodePlan) -> Result<CpuSet, String> {
    if node.topology.is_none() {
        return Err("core numbers mean something only where the node's line has the whole machine".to_owned());
    }
    if inventory.cpu.sockets.len() == 1 {
        return Err("the machine has one socket, and Slurm places jobs near to a GPU by socket".to_owned());
    }
    let Some(near) = &gpu.cpus else {
        return Err(format!(
            "the machine does not tell which CPUs are near to {file} (NUMA node -1 is \"unknown\", not 0)"
        ));
    };
    let mut first = 0;
    let mut cores = BTreeSet::new();
    for socket in &inventory.cpu.sockets {
        let next = first + u32::try_from(socket.len()).unwrap_or(u32::MAX);
        if socket.iter().any(|core| core.intersects(near)) {
            cores.extend(first..next);
        }
        first = next;
    }
    match cores.is_empty() {
        true => Err(format!("none of the CPUs near to {file} is one of this machine's")),
        false => Ok(cores.into_iter().collect()),
    }
}

/// A row of the link matrix: Slurm's own detection writes it also where nothing is linked, and slurmctld takes the node
/// out of service if it is longer than the list of GPUs.
fn links(position: usize, gpus: &[(&Gpu, DevicePath)]) -> Vec<i64> {
    let (gpu, _) = &gpus[position];
    let link = |(other, (peer, _)): (usize, &(&Gpu, DevicePath))| match gpu.links.get(&peer.index) {
        _ if other == position => -1,
        Some(count) if gpu.vendor == peer.vendor => i64::from(*count),
        _ => 0,
    };
    gpus.iter().enumerate().map(link).collect()
}

/// How a person calls it: `NVIDIA H200`.
pub(super) fn display_name(gpu: &Gpu) -> String {
    let model = gpu.model.as_deref().map(one_line).filter(|model| !model.is_empty());
    model.unwrap_or_else(|| format!("{} GPU", gpu.vendor))
}

fn comment(gpu: &Gpu) -> String {
    let mut parts = vec![format!("{} {}", gpu.vendor, gpu.index), display_name(gpu)];
    parts.extend(gpu.memory_mib.map(|memory| format!("{memory} MiB")));
    parts.extend(gpu.pci_address.map(|address| address.to_string()));
    parts.extend(gpu.uuid.as_deref().map(one_line));
    parts.join(", ")
}

/// Words from hardware for a comment: one line, no backslash that would continue it, nothing that turns or hides text on
/// a terminal, of bounded length.
fn one_line(text: &str) -> String {
    let safe = |c: char| if c.is_ascii_graphic() && c != '\\' { c } else { ' ' };
    let text: String = text.chars().map(safe).take(120).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
