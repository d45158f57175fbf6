//! gres.conf: one line for each GPU that a job can be given.

mod numbering;
mod offer;
mod selection;
mod sharing;

use std::collections::BTreeSet;

use crate::config::{Config, GresMode, Sharing, TypeName};
use crate::inventory::{CpuSet, Finding, Inventory, Obstacle, PciAddress, Severity, Vendor};

use super::names::{DevicePath, GresType};
use super::{Decision, NodePlan};
pub(super) use offer::display_names;
use offer::{Offer, offers};
pub use selection::select;

/// gres.conf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GresPlan {
    /// Who names the devices.
    pub auto_detect: AutoDetect,
    /// One for each usable GPU or MIG instance, in the order in which jobs count them: each type's lines together, as
    /// Slurm sorts them by the types of the node's Gres.
    pub lines: Vec<GresLine>,
    /// Whether CUDA and ROCr give the devices the numbers that Slurm gives them.
    pub counts_as_runtimes: bool,
    /// As what jobs can share the whole GPUs.
    pub sharing: Option<Sharing>,
}

impl GresPlan {
    /// Flags of every line: whose environment variables a job gets. Slurm drops a line whose flags differ from those of the
    /// first ("does not match env flags for previous GRES"), so on a machine with both vendors each line has both.
    pub fn flags(&self) -> String {
        let mut vendors: Vec<Vendor> = self.lines.iter().map(|line| line.vendor).collect();
        vendors.sort_unstable();
        vendors.dedup();
        let flag = |vendor: Vendor| match vendor {
            Vendor::Nvidia => "nvidia_gpu_env",
            Vendor::Amd => "amd_gpu_env",
        };
        vendors.into_iter().map(flag).collect::<Vec<_>>().join(",")
    }

    /// The devices that jobs can share, and as how much each is counted.
    pub fn shared(&self) -> impl Iterator<Item = (&GresLine, Sharing)> {
        let shared = |sharing| {
            self.lines.iter().filter(move |line| sharing::is_shared(sharing, line)).map(move |line| (line, sharing))
        };
        self.sharing.into_iter().flat_map(shared)
    }

    /// GresTypes: what a job may name, also where there is none of it.
    pub(super) fn types(config: &Config) -> String {
        config.gpu.sharing().map_or_else(|| "gpu".to_owned(), |sharing| format!("gpu,{}", sharing.gres()))
    }

    /// Gres of the node's line: `gpu:nvidia:2,gpu:amd:1,shard:12`.
    pub(super) fn node_gres(&self) -> String {
        let mut counts: Vec<(&GresType, usize)> = Vec::new();
        for line in &self.lines {
            match counts.iter_mut().find(|(known, _)| **known == line.gres_type) {
                Some((_, count)) => *count += 1,
                None => counts.push((&line.gres_type, 1)),
            }
        }
        let mut gres: Vec<String> = counts.iter().map(|(name, count)| format!("gpu:{name}:{count}")).collect();
        if let Some(sharing) = self.sharing {
            let count: u32 = self.shared().map(|(_, sharing)| sharing.of_each_gpu()).sum();
            gres.push(format!("{}:{count}", sharing.gres()));
        }
        gres.join(",")
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
    /// File; for a MIG instance MultipleFiles.
    pub files: Vec<DevicePath>,
    /// Cores, as Slurm's abstract core indices; all lines have them or none.
    pub cores: Option<CpuSet>,
    /// Links to every whole GPU of the file: -1 for itself. Empty for a MIG instance.
    pub links: Vec<i64>,
    /// Whose environment variables a job gets.
    pub vendor: Vendor,
    /// By what the vendor's runtime finds it: a UUID for CUDA, a number for ROCr.
    pub runtime_name: String,
    /// What a person calls it: `NVIDIA H200`, `NVIDIA H200 MIG 1g.18gb`.
    pub name: String,
    /// Where it is.
    pub pci_address: Option<PciAddress>,
    /// For the comment above it: model, UUID, PCI address.
    pub comment: String,
}

impl GresLine {
    /// Whether it is a GPU, and not an instance of one.
    pub fn is_whole(&self) -> bool {
        self.files.len() == 1
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
    let offers = offers(inventory, decisions, findings);
    let auto_detect = auto_detect(config, inventory, &offers, decisions, findings);
    let gpus = in_slurms_order(config, auto_detect, offers);
    let cores = match gpus.iter().map(|offer| cores(offer, inventory, node)).collect::<Result<Vec<_>, _>>() {
        Ok(cores) => cores.into_iter().map(Some).collect(),
        Err(why) => {
            decisions.push(Decision::new("no Cores", why));
            vec![None; gpus.len()]
        }
    };
    let numbering = numbering::number(inventory, &gpus);
    let mut lines = Vec::new();
    for (((position, offer), cores), runtime_name) in gpus.iter().enumerate().zip(cores).zip(numbering.names) {
        lines.push(GresLine {
            gres_type: gres_type(config, auto_detect, offer, position),
            files: offer.files.clone(),
            cores,
            links: links(position, &gpus),
            vendor: offer.gpu.vendor,
            runtime_name,
            name: offer.display_name(),
            pci_address: offer.gpu.pci_address,
            comment: offer.comment(),
        });
    }
    let sharing = sharing::plan(config, &lines, auto_detect, decisions, findings);
    let plan = GresPlan { auto_detect, lines, counts_as_runtimes: numbering.is_slurms, sharing };
    if !plan.lines.is_empty() {
        decisions.push(Decision::new(format!("Gres={}", plan.node_gres()), type_reason(config, &plan)));
    }
    plan
}

/// Whole GPUs before MIG instances, and these by their GPU's minor, as Slurm's own detection has them: so the link matrix
/// stays a square. Then type by type: Slurm sorts the lines like this anyway, and would not sort the links with them.
fn in_slurms_order<'a>(config: &Config, auto_detect: AutoDetect, mut offers: Vec<Offer<'a>>) -> Vec<Offer<'a>> {
    offers.sort_by_key(|offer| offer.instance.map(|_| offer.gpu.minor));
    let types: Vec<GresType> =
        offers.iter().enumerate().map(|(position, offer)| gres_type(config, auto_detect, offer, position)).collect();
    let mut ranked: Vec<_> = offers.into_iter().zip(&types).collect();
    ranked.sort_by_key(|(_, own)| types.iter().position(|known| known == *own));
    ranked.into_iter().map(|(offer, _)| offer).collect()
}

fn auto_detect(
    config: &Config,
    inventory: &Inventory,
    gpus: &[Offer<'_>],
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
    let has = |vendor| gpus.iter().any(|offer| offer.gpu.vendor == vendor);
    let (choice, plugin) = match (has(Vendor::Nvidia), has(Vendor::Amd)) {
        (true, false) => (AutoDetect::Nvml, "gpu_nvml"),
        (false, true) => (AutoDetect::Rsmi, "gpu_rsmi"),
        (false, false) => return explicit("there is no GPU to detect", decisions),
        (true, true) => return explicit("Slurm detects one vendor at a time, and there are two", decisions),
    };
    let is_chosen = |obstacle| matches!(obstacle, Obstacle::NotChosen | Obstacle::Integrated);
    if inventory.gpus.iter().filter_map(|gpu| gpu.access.obstacle()).any(is_chosen) {
        return explicit("Slurm's plugin would offer the GPUs that are left out here, too", decisions);
    }
    if config.gpu.sharing().is_some() && gpus.iter().any(|offer| offer.instance.is_some()) {
        return explicit("Slurm would spread what jobs share over MIG instances, too", decisions);
    }
    if let Some(why) = numbering::rsmi_fault(gpus).filter(|_| choice == AutoDetect::Rsmi) {
        findings.push(Finding {
            severity: Severity::Warning,
            what: "gres = \"autodetect\" is not possible with these AMD GPUs; explicit lines are used".to_owned(),
            cause: why.to_owned(),
            repair: "nothing; gres = \"explicit\" says the same without this warning".to_owned(),
        });
        return explicit(why, decisions);
    }
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
        repair: format!("build the image with GPU_TYPE={}, or set gres = \"explicit\"", gpus[0].gpu.vendor),
    });
    explicit("the plugin is not installed", decisions)
}

fn gres_type(config: &Config, auto_detect: AutoDetect, offer: &Offer<'_>, position: usize) -> GresType {
    let gpu = offer.gpu;
    // Instances differ by size, which no vendor's name says.
    if let Some(of_instance) = offer.mig_type() {
        if auto_detect != AutoDetect::Off || config.gpu.type_name != TypeName::Index {
            return of_instance;
        }
    }
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

fn type_reason(config: &Config, plan: &GresPlan) -> &'static str {
    match config.gpu.type_name {
        TypeName::Vendor | TypeName::Model if plan.lines.iter().any(|line| line.links.is_empty()) => {
            "as many as there are lines in gres.conf; the type of a MIG instance is its GPU's model and its profile, as \
             Slurm's own detection names it"
        }
        TypeName::Vendor => "as many as there are lines in gres.conf; the type is the vendor's name",
        TypeName::Model => "as many as there are lines in gres.conf; the type is the model, as [gpu] type_name says",
        TypeName::Index => "as many as there are lines in gres.conf; each has its own type, as [gpu] type_name says",
    }
}

/// The cores near to a GPU, or why no line can have any: slurmctld calls a mixture an error at every registration. Whole
/// sockets only: where a GPU is near to a part of a socket, as with several NUMA nodes in one, slurmctld 24.11 takes the
/// node out of service ("GRES core specification doesn't match socket boundaries"), so the socket stands for its part.
fn cores(offer: &Offer<'_>, inventory: &Inventory, node: &NodePlan) -> Result<CpuSet, String> {
    let file = offer.files.first().map_or("a GPU", DevicePath::as_str);
    if node.topology.is_none() {
        return Err("core numbers mean something only where the node's line has the whole machine".to_owned());
    }
    if inventory.cpu.sockets.len() == 1 {
        return Err("the machine has one socket, and Slurm places jobs near to a GPU by socket".to_owned());
    }
    let Some(near) = &offer.gpu.cpus else {
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
/// out of service if it is longer than the list of GPUs. NVLink ends where MIG begins.
fn links(position: usize, gpus: &[Offer<'_>]) -> Vec<i64> {
    let Offer { gpu, instance: None, .. } = &gpus[position] else { return Vec::new() };
    let link = |(other, Offer { gpu: peer, .. }): (usize, &Offer<'_>)| match gpu.links.get(&peer.index) {
        _ if other == position => -1,
        Some(count) if gpu.vendor == peer.vendor => i64::from(*count),
        _ => 0,
    };
    gpus.iter().take_while(|offer| offer.instance.is_none()).enumerate().map(link).collect()
}
