//! The GPUs and MIG instances that jobs can get, for gres.conf, the node's Gres and the task prolog.

mod numbering;
mod offer;
mod selection;
mod sharing;

use std::collections::BTreeSet;

use config::{Config, GresMode, Sharing, TypeName};
use model::inventory::gres::counted;
use model::inventory::{CpuSet, Driver, Finding, Inventory, Kind, Obstacle, PciAddress, Severity, Vendor};

use super::names::{DevicePath, GresType};
use super::{NodePlan, Reasons};
pub(super) use offer::display_names;
use offer::{Offer, offers};
pub use selection::select;

/// The plan of gres.conf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GresPlan {
    /// What determines the devices.
    pub auto_detect: AutoDetect,
    /// The usable GPUs and MIG instances, in the order in which jobs count them: grouped by type, as Slurm sorts
    /// them by the types in the node's Gres.
    pub lines: Vec<GresLine>,
    /// Whether Slurm and the runtimes number the devices in the same way without further settings.
    pub matches_runtime_numbers: bool,
    /// How jobs can share whole GPUs; `None` if they cannot.
    pub sharing: Option<Sharing>,
}

impl GresPlan {
    /// The flags of every line, which select the environment variables that a job gets. Slurm drops a line whose flags
    /// differ from those of the first line ("does not match env flags for previous GRES"). So on a machine with GPUs of several vendors,
    /// each line has the flags of all of them.
    pub fn flags(&self) -> String {
        let mut vendors: Vec<Vendor> = self.lines.iter().map(|line| line.vendor).collect();
        vendors.sort_unstable();
        vendors.dedup();
        vendors.into_iter().map(|vendor| vendor.traits().slurm.flag).collect::<Vec<_>>().join(",")
    }

    /// The devices that jobs can share, and how each is counted.
    pub fn shared(&self) -> impl Iterator<Item = (&GresLine, Sharing)> {
        let shared = |sharing| {
            self.lines.iter().filter(move |line| sharing::is_shared(sharing, line)).map(move |line| (line, sharing))
        };
        self.sharing.into_iter().flat_map(shared)
    }

    /// The value of GresTypes: the GRES that a job may request, even if this node has none of them.
    pub(super) fn types(config: &Config) -> String {
        config.gpu.sharing().map_or_else(|| "gpu".to_owned(), |sharing| format!("gpu,{}", sharing.gres()))
    }

    /// Gres of the node's line: `gpu:nvidia:2,gpu:amd:1,shard:12`.
    pub(super) fn node_gres(&self) -> String {
        let counts = counted(self.lines.iter().map(|line| (&line.gres_type, 1)));
        let mut gres: Vec<String> = counts.iter().map(|(name, count)| format!("gpu:{name}:{count}")).collect();
        if let Some(sharing) = self.sharing {
            let count: u32 = self.shared().map(|(_, sharing)| sharing.count_per_gpu()).sum();
            gres.push(format!("{}:{count}", sharing.gres()));
        }
        gres.join(",")
    }
}

/// What determines the devices in gres.conf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoDetect {
    /// The lines in gres.conf.
    Off,
    /// Slurm's plugin for this vendor; gres.conf then lists the GPUs only in comments.
    Plugin(Vendor),
}

impl AutoDetect {
    /// The value of AutoDetect in gres.conf.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Plugin(vendor) => vendor.traits().slurm.auto_detect,
        }
    }
}

/// A GPU or MIG instance for jobs, with the values of its line in gres.conf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GresLine {
    /// The value of Type.
    pub gres_type: GresType,
    /// The value of File, or of MultipleFiles for a MIG instance.
    pub files: Vec<DevicePath>,
    /// Cores, as Slurm's abstract core indices. Either all lines have cores or none.
    pub cores: Option<CpuSet>,
    /// The number of links to each whole GPU in gres.conf; -1 for the GPU itself. Empty for a MIG instance or a simulated GPU.
    pub links: Vec<i64>,
    /// The vendor, which determines the environment variables that a job gets.
    pub vendor: Vendor,
    /// The driver's index of the GPU.
    pub index: u32,
    /// The name that the vendor's runtime uses: a number, or for CUDA the UUID if that is configured or the number is unknown. Without a UUID,
    /// an unknown number is guessed.
    pub runtime_name: String,
    /// The UUID, if `runtime_name` is a CUDA device number that depends on which device files the job's user can open.
    pub uuid: Option<String>,
    /// A readable name: `NVIDIA H200`, `NVIDIA H200 MIG 1g.18gb`.
    pub name: String,
    /// The memory, in MiB, if known.
    pub memory_mib: Option<u64>,
    /// The PCI address.
    pub pci_address: Option<PciAddress>,
    /// The comment above the line: vendor and index, name, and if known the memory, PCI address and UUID.
    pub comment: String,
}

impl GresLine {
    /// Whether this is a whole GPU rather than a MIG instance.
    pub fn is_whole(&self) -> bool {
        self.files.len() == 1
    }
}

pub(super) fn plan(config: &Config, inventory: &Inventory, node: &NodePlan, reasons: &mut Reasons) -> GresPlan {
    let offers = offers(inventory, reasons);
    let auto_detect = auto_detect(config, inventory, node, &offers, reasons);
    let gpus = in_slurms_order(config, auto_detect, offers, inventory);
    let cores = match gpus.iter().map(|offer| cores(offer, inventory, node)).collect::<Result<Vec<_>, _>>() {
        Ok(cores) => cores.into_iter().map(Some).collect(),
        Err(why) => {
            reasons.decide("no Cores", why);
            vec![None; gpus.len()]
        }
    };
    let numbering = numbering::number(inventory, config.gpu.cuda_devices, &gpus);
    let mut lines = Vec::new();
    let names = numbering.names.into_iter().zip(numbering.uuids);
    for (((position, offer), cores), (runtime_name, uuid)) in gpus.iter().enumerate().zip(cores).zip(names) {
        lines.push(GresLine {
            gres_type: gres_type(config, auto_detect, offer, inventory),
            files: offer.files.clone(),
            cores,
            links: links(position, &gpus),
            vendor: offer.gpu.vendor,
            index: offer.gpu.index,
            runtime_name,
            uuid,
            name: offer.display_name(),
            memory_mib: offer.memory_mib(),
            pci_address: offer.gpu.pci_address,
            comment: offer.comment(),
        });
    }
    let sharing = sharing::plan(config, &lines, auto_detect, reasons);
    let plan = GresPlan { auto_detect, lines, matches_runtime_numbers: numbering.matches_slurm_positions, sharing };
    if !plan.lines.is_empty() {
        reasons.decide(format!("Gres={}", plan.node_gres()), type_reason(config, &plan));
    }
    plan
}

/// Sorts the devices. Whole GPUs come before MIG instances, and instances are sorted by their GPU's minor, as in Slurm's own detection, so
/// that the link matrix stays square. Then they are grouped by type: Slurm sorts the lines like that anyway, but not
/// the links.
fn in_slurms_order<'a>(
    config: &Config,
    auto_detect: AutoDetect,
    mut offers: Vec<Offer<'a>>,
    inventory: &Inventory,
) -> Vec<Offer<'a>> {
    offers.sort_by_key(|offer| offer.instance.map(|_| offer.gpu.minor));
    let types: Vec<GresType> = offers.iter().map(|offer| gres_type(config, auto_detect, offer, inventory)).collect();
    let mut ranked: Vec<_> = offers.into_iter().zip(&types).collect();
    ranked.sort_by_key(|(_, own)| types.iter().position(|known| known == *own));
    ranked.into_iter().map(|(offer, _)| offer).collect()
}

fn auto_detect(
    config: &Config,
    inventory: &Inventory,
    node: &NodePlan,
    gpus: &[Offer<'_>],
    reasons: &mut Reasons,
) -> AutoDetect {
    let explicit = |why: &str, reasons: &mut Reasons| {
        reasons.decide("AutoDetect=off", why);
        AutoDetect::Off
    };
    let vendor = match vendor_to_detect(config, inventory, gpus) {
        Ok(vendor) => vendor,
        Err(why) => return explicit(why, reasons),
    };
    if let Some(why) = numbering::plugin_fault(vendor, gpus) {
        let maker = vendor.traits().maker;
        reasons.warn(
            Kind::Settings,
            format!("gres = \"autodetect\" is not possible with these {maker} GPUs; listing the GPUs explicitly in gres.conf"),
            why,
            "no action; gres = \"explicit\" avoids this warning",
        );
        return explicit(why, reasons);
    }
    let plugin = plugin(vendor);
    if let Some(fault) = auto_detect_fault(vendor, inventory, node).filter(|_| inventory.slurm.has_plugin(&plugin)) {
        let why = fault.cause.clone();
        let what = "gres = \"autodetect\" is not possible here; listing the GPUs explicitly in gres.conf";
        reasons.warn(fault.kind, what, &*why, format!("{}, or set gres = \"explicit\"", fault.fix));
        return explicit(&why, reasons);
    }
    if inventory.slurm.has_plugin(&plugin) {
        let choice = AutoDetect::Plugin(vendor);
        reasons.decide(format!("AutoDetect={}", choice.as_str()), "`[gpu] gres = \"autodetect\"`");
        return choice;
    }
    reasons.warn(
        Kind::Settings,
        format!("gres = \"autodetect\" is not possible: Slurm's plugin {plugin} is not installed; listing the GPUs explicitly in gres.conf"),
        "without the plugin slurmd finds no GPU, and Slurm drains the node",
        format!("build the image with GPU_TYPE={vendor}, or set gres = \"explicit\""),
    );
    explicit("the plugin is not installed", reasons)
}

/// The vendor whose plugin can detect all devices, or the reason why gres.conf must list them.
fn vendor_to_detect(config: &Config, inventory: &Inventory, gpus: &[Offer<'_>]) -> Result<Vendor, &'static str> {
    if config.gpu.gres == GresMode::Explicit {
        return Err(
            "explicit lines match the devices that this container can open; if Slurm's plugin detected others, Slurm would drain the node",
        );
    }
    let vendor = gpus.first().map(|offer| offer.gpu.vendor).ok_or("no GPU to detect")?;
    let is_chosen = |obstacle| {
        matches!(obstacle, Obstacle::NotChosen | Obstacle::Integrated | Obstacle::Faulty | Obstacle::Starting)
    };
    if gpus.iter().any(|offer| offer.gpu.vendor != vendor) {
        Err("Slurm detects GPUs of only one vendor, but the node has GPUs of several vendors")
    } else if inventory.gpus.iter().filter_map(|gpu| gpu.access.obstacle()).any(is_chosen) {
        Err("Slurm's plugin would also offer the excluded GPUs")
    } else if config.gpu.sharing().is_some() && gpus.iter().any(|offer| offer.instance.is_some()) {
        Err("Slurm would also share MIG instances")
    } else {
        Ok(vendor)
    }
}

/// The file name of Slurm's plugin for a vendor, without `.so`.
pub(super) fn plugin(vendor: Vendor) -> String {
    format!("gpu_{}", vendor.traits().slurm.auto_detect)
}

/// The problem with AutoDetect here, if any: Slurm's plugin would find no GPU, or jobs for some GPUs would be rejected. The finding's `what` is
/// empty.
pub(super) fn auto_detect_fault(vendor: Vendor, inventory: &Inventory, node: &NodePlan) -> Option<Finding> {
    let fault = |severity, cause: String, fix: &str| {
        Some(Finding { kind: Kind::Settings, severity, what: String::new(), cause, fix: fix.to_owned() })
    };
    if let Some((source, cause, fix)) = vendor.traits().slurm.plugin_source {
        let answers = |driver: &Driver| driver.vendor == vendor && driver.source == source;
        if !inventory.drivers.iter().any(answers) {
            return fault(Severity::Error, cause.to_owned(), fix);
        }
    }
    let machine: usize = inventory.cpu.sockets.iter().flatten().map(|core| core.len()).sum();
    if machine > node.cpus as usize {
        let cause = format!(
            "Slurm's plugin uses the cores of all {machine} CPUs, but the node has {}: jobs for some GPUs would be rejected",
            node.cpus
        );
        return fault(
            Severity::Warning,
            cause,
            "assign all CPUs to the container and to the node (no `cpus` in [node])",
        );
    }
    None
}

fn gres_type(config: &Config, auto_detect: AutoDetect, offer: &Offer<'_>, inventory: &Inventory) -> GresType {
    let gpu = offer.gpu;
    // Instances differ in size, which a type named after the vendor would hide.
    if let Some(of_instance) = offer.mig_type() {
        if auto_detect != AutoDetect::Off || config.gpu.type_name != TypeName::Index {
            return of_instance;
        }
    }
    let vendor = GresType::own(gpu.vendor);
    let model = gpu.model.as_deref().and_then(GresType::from_model);
    if auto_detect != AutoDetect::Off {
        return match model.filter(|_| gpu.vendor.traits().slurm.plugin_names_models) {
            Some(model) if config.gpu.type_name != TypeName::Vendor || !model.as_str().contains(vendor.as_str()) => {
                model
            }
            _ => vendor,
        };
    }
    match config.gpu.type_name {
        TypeName::Vendor => vendor,
        TypeName::Model => model.unwrap_or(vendor),
        TypeName::Index => GresType::own(format_args!("gpu{}", offer.number(inventory))),
    }
}

fn type_reason(config: &Config, plan: &GresPlan) -> &'static str {
    match config.gpu.type_name {
        _ if plan.auto_detect != AutoDetect::Off => "the types match those that Slurm's plugin detects",
        TypeName::Vendor | TypeName::Model if plan.lines.iter().any(|line| line.links.is_empty()) => {
            "one device per line in gres.conf; a MIG instance's type is the model of the GPU and the profile of the instance, as \
             in Slurm's own detection"
        }
        TypeName::Model if plan.lines.iter().all(|line| line.gres_type.as_str() == line.vendor.as_str()) => {
            "one device per line in gres.conf; the type is the vendor's name, because no model name is usable"
        }
        TypeName::Vendor => "one device per line in gres.conf; the type is the vendor's name",
        TypeName::Model => "one device per line in gres.conf; the type is the model (`[gpu] type_name`)",
        TypeName::Index => "one device per line in gres.conf; each has its own type (`[gpu] type_name`)",
    }
}

/// The cores close to a GPU, or why no line can have any: slurmctld reports an error at every registration if only some
/// lines have cores. The cores are those of whole sockets, even if a GPU is close to only part of a socket (several NUMA nodes per socket):
/// with part of a socket, slurmctld 24.11 marks the node invalid ("GRES core specification doesn't match socket boundaries").
fn cores(offer: &Offer<'_>, inventory: &Inventory, node: &NodePlan) -> Result<CpuSet, String> {
    let file = offer.files.first().map_or("a GPU", DevicePath::as_str);
    if node.topology.is_none() {
        return Err("core numbers require that the node's line describes the whole machine".to_owned());
    }
    if inventory.cpu.sockets.len() == 1 {
        return Err("the machine has one socket".to_owned());
    }
    let Some(near) = &offer.gpu.cpus else {
        return Err(format!("the CPUs near {file} are unknown"));
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
        true => Err(format!("the CPUs near {file} do not exist on this machine")),
        false => Ok(cores.into_iter().collect()),
    }
}

/// A row of the link matrix. Slurm's own detection writes one even without links, and slurmctld marks the node invalid
/// if a row is longer than the list of GPUs. GPUs in MIG mode have no NVLink.
fn links(position: usize, gpus: &[Offer<'_>]) -> Vec<i64> {
    let Offer { gpu, instance: None, .. } = &gpus[position] else { return Vec::new() };
    let link = |(other, Offer { gpu: peer, .. }): (usize, &Offer<'_>)| match gpu.links.get(&peer.index) {
        _ if other == position => -1,
        Some(count) if gpu.vendor == peer.vendor => i64::from(*count),
        _ => 0,
    };
    gpus.iter().take_while(|offer| offer.instance.is_none()).enumerate().map(link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::{Gpu, Source};

    fn gpu(vendor: Vendor, index: u32) -> Gpu {
        Gpu {
            vendor,
            index,
            uuid: Some(format!("GPU-{index}")),
            device_file: Some(format!("/dev/{vendor}{index}").into()),
            ..Gpu::default()
        }
    }

    fn planned(inventory: &Inventory) -> crate::NodesPlan {
        let inventory = Inventory { hostname: "head".to_owned(), ..inventory.clone() };
        crate::plan(&Config::default(), &inventory).unwrap().nodes
    }

    #[test]
    fn links_are_a_row_for_each_whole_gpu_of_its_vendor() {
        let linked = |vendor, index, peer: u32, count| Gpu { links: [(peer, count)].into(), ..gpu(vendor, index) };
        let gpus = vec![
            linked(Vendor::Nvidia, 0, 1, 18),
            linked(Vendor::Nvidia, 1, 0, 18),
            // The other vendor's driver counts from 0, too.
            linked(Vendor::Amd, 1, 0, 4),
        ];
        let inventory = Inventory { gpus, ..Inventory::default() };
        let rows: Vec<Vec<i64>> = planned(&inventory).gres.lines.iter().map(|line| line.links.clone()).collect();
        assert_eq!(rows, [[-1, 18, 0], [18, -1, 0], [0, 0, -1]]);
        let flags: Vec<&str> = [Vendor::Nvidia, Vendor::Amd].map(|vendor| vendor.traits().slurm.flag).to_vec();
        assert_eq!(planned(&inventory).gres.flags(), flags.join(","));
    }

    #[test]
    fn plugin_needs_its_library_and_all_cpus() {
        let nvml = Driver { vendor: Vendor::Nvidia, source: Source::Nvml, version: None, cuda_version: None };
        let severity = |driver: Option<&Driver>, cpus: u32| {
            let mut inventory = Inventory { drivers: driver.into_iter().cloned().collect(), ..Inventory::default() };
            let core = |first: u32| [first, first + 1].into_iter().collect();
            inventory.cpu.sockets = vec![vec![core(0), core(2)]];
            let node = NodePlan { cpus, ..planned(&inventory).node };
            auto_detect_fault(Vendor::Nvidia, &inventory, &node).map(|finding| finding.severity)
        };
        assert_eq!(severity(Some(&nvml), 4), None);
        assert_eq!(severity(Some(&nvml), 3), Some(Severity::Warning));
        assert_eq!(severity(None, 4), Some(Severity::Error));
        assert_eq!(severity(Some(&Driver { vendor: Vendor::Amd, ..nvml }), 4), Some(Severity::Error));
    }
}
