//! The devices for jobs: whole GPUs and MIG instances with device files that gres.conf can name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::Reasons;
use crate::names::{DevicePath, GresType};
use model::inventory::{Access, Finding, Gpu, Inventory, Kind, MigInstance, Obstacle, Severity, Vendor, WSL_DEVICE};

/// A whole GPU, or an instance of one in MIG mode.
#[derive(Clone, Debug)]
pub(super) struct Offer<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) instance: Option<&'a MigInstance>,
    /// The GPU's own file; for an instance also those of its two capabilities.
    pub(super) files: Vec<DevicePath>,
}

impl Offer<'_> {
    /// The UUID by which CUDA selects the device, if it is safe in a script. A MIG instance has no number, and CUDA's numbers skip GPUs in
    /// MIG mode.
    pub(super) fn cuda_name(&self) -> Option<&str> {
        let name = self.instance.map_or(self.gpu.uuid.as_deref(), |instance| instance.uuid.as_deref());
        name.filter(|name| is_cuda_name(name))
    }

    /// The position among the devices that jobs could get if no GPU had a fault: `gpu:gpu1` remains the same card while another card is faulty.
    /// Whole GPUs come before MIG instances, as in [`super::in_slurms_order`].
    pub(super) fn number(&self, inventory: &Inventory) -> usize {
        let counts = |access: &Access| access.obstacle().is_none_or(Obstacle::is_fault);
        let mut all: Vec<(&Gpu, Option<&MigInstance>)> = Vec::new();
        for gpu in inventory.gpus.iter().filter(|gpu| counts(&gpu.access)) {
            match &gpu.mig {
                None => all.push((gpu, None)),
                Some(mig) => {
                    let instances = mig.iter().filter(|instance| counts(&instance.access));
                    all.extend(instances.map(|instance| (gpu, Some(instance))));
                }
            }
        }
        // The sort is stable, so the GPUs of a vendor keep the driver's order.
        all.sort_by_key(|(gpu, instance)| (instance.map(|_| gpu.minor), gpu.vendor));
        let is_own = |gpu: &Gpu, instance: Option<&MigInstance>| {
            std::ptr::eq(gpu, self.gpu) && instance.map(std::ptr::from_ref) == self.instance.map(std::ptr::from_ref)
        };
        all.iter().position(|(gpu, instance)| is_own(gpu, *instance)).unwrap_or_default()
    }

    pub(super) fn mig_type(&self) -> Option<GresType> {
        let instance = self.instance?;
        Some(GresType::of_instance(self.gpu.vendor, self.gpu.model.as_deref(), instance.profile.as_deref()))
    }

    /// A readable name: `NVIDIA H200`, `NVIDIA H200 MIG 1g.18gb`.
    pub(super) fn display_name(&self) -> String {
        let gpu = display_name(self.gpu);
        self.instance.map_or(gpu.clone(), |instance| {
            format!("{gpu} MIG {}", one_line(instance.profile.as_deref().unwrap_or("instance")))
        })
    }

    pub(super) fn memory_mib(&self) -> Option<u64> {
        self.instance.map_or(self.gpu.memory_mib, |instance| instance.memory_mib)
    }

    pub(super) fn comment(&self) -> String {
        let gpu = self.gpu;
        let uuid = self.instance.map_or(gpu.uuid.as_deref(), |instance| instance.uuid.as_deref());
        let mut parts = vec![format!("{} {}", gpu.vendor, gpu.index), self.display_name()];
        let whose = if gpu.shares_memory { " of the machine's memory" } else { "" };
        parts.extend(self.memory_mib().map(|memory| format!("{memory} MiB{whose}")));
        parts.extend(gpu.pci_address.map(|address| address.to_string()));
        parts.extend(uuid.map(one_line));
        parts.join(", ")
    }
}

/// Whether the name is safe in a shell script and in a comma-separated list.
fn is_cuda_name(name: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'/');
    name.starts_with(|first: char| first.is_ascii_uppercase()) && name.bytes().all(valid)
}

/// All usable devices, each device file once. NVIDIA comes first, and each vendor's devices are in the driver's order.
pub(super) fn offers<'a>(inventory: &'a Inventory, reasons: &mut Reasons) -> Vec<Offer<'a>> {
    let mut gpus: Vec<&Gpu> = inventory.gpus.iter().collect();
    gpus.sort_by_key(|gpu| (gpu.vendor, gpu.index));
    let counted = gpus.len();
    let mut unusable: BTreeMap<(Obstacle, Vendor), Vec<String>> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    let mut offers = Vec::new();
    for gpu in gpus {
        let label = format!("{} GPU {}", gpu.vendor, gpu.index);
        if let Access::Unusable { reason, obstacle } = &gpu.access {
            let reason = one_line(reason);
            unusable.entry((*obstacle, gpu.vendor)).or_default().push(format!("{label} ({reason})"));
            left_out(&label, &reason, reasons);
            continue;
        }
        for (name, instance) in parts(gpu, label, reasons) {
            match files(gpu, instance, &mut taken) {
                Ok(files) => offers.push(Offer { gpu, instance, files }),
                Err(why) => {
                    left_out(&name, &why, reasons);
                    let fix = "run `slurminit detect` to list all GPUs and their device files";
                    reasons.warn(Kind::GpuLeftOut, format!("{name} is not available to jobs"), why, fix);
                }
            }
        }
    }
    // Detection has already reported faults.
    unusable.retain(|(obstacle, _), _| !obstacle.is_fault());
    reasons.findings.extend(unusable.into_iter().map(|(kind, gpus)| not_offered(kind, &gpus, counted)));
    offers
}

fn not_offered((obstacle, vendor): (Obstacle, Vendor), gpus: &[String], counted: usize) -> Finding {
    let (cause, fix) = obstacle.cause_and_fix(vendor);
    let severity = if obstacle == Obstacle::NotGiven { Severity::Warning } else { Severity::Info };
    let what = format!("excluded GPUs (of {counted} that the drivers list): {}", gpus.join("; "));
    Finding::new(Kind::GpuLeftOut, severity, what, cause, fix)
}

/// The GPU itself, or in MIG mode its usable instances, each with a name. Other instances only become decisions: detection has already
/// reported faults, and the operator has excluded the rest.
fn parts<'a>(gpu: &'a Gpu, label: String, reasons: &mut Reasons) -> Vec<(String, Option<&'a MigInstance>)> {
    let Some(instances) = &gpu.mig else { return vec![(label, None)] };
    if instances.is_empty() {
        left_out(&label, "MIG mode without an instance", reasons);
    }
    let mut parts = Vec::new();
    for instance in instances {
        let profile = one_line(instance.profile.as_deref().unwrap_or("of unknown size"));
        let name = format!("{label}'s MIG instance {profile}");
        match &instance.access {
            Access::Usable => parts.push((name, Some(instance))),
            Access::Unusable { reason, .. } => left_out(&name, reason, reasons),
        }
    }
    parts
}

fn left_out(name: &str, why: &str, reasons: &mut Reasons) {
    reasons.decide(format!("{name} is excluded"), one_line(why));
}

/// The files of a line. Slurm ignores a GPU without a file, and then marks the node invalid because a GPU is missing.
fn files(
    gpu: &Gpu,
    instance: Option<&MigInstance>,
    taken: &mut BTreeSet<DevicePath>,
) -> Result<Vec<DevicePath>, String> {
    let valid = |path: &std::path::PathBuf| DevicePath::try_from(Path::new(path));
    let files: Vec<DevicePath> = match instance {
        None if gpu.device_file.as_deref() == Some(Path::new(WSL_DEVICE)) => vec![unshared(WSL_DEVICE, taken)?],
        None => gpu.device_file.iter().map(valid).collect::<Result<_, _>>()?,
        Some(instance) => {
            if !instance.uuid.as_deref().is_some_and(is_cuda_name) {
                return Err("no valid UUID from the driver; CUDA requires it to select an instance".to_owned());
            }
            instance.device_files.iter().map(valid).collect::<Result<_, _>>()?
        }
    };
    // slurmd exits if MultipleFiles has only one file. The instances of a GPU can share all files but the last.
    match files.last() {
        Some(_) if instance.is_some() && files.len() < 2 => {
            Err("only one device file; an instance also needs the device files of its capabilities".to_owned())
        }
        Some(own) if taken.insert(own.clone()) => Ok(files),
        Some(own) => Err(format!(
            "another GPU or MIG instance already has the device file {own}; slurmd exits if gres.conf lists a device file twice"
        )),
        None => Err("no device file, which Slurm requires".to_owned()),
    }
}

/// A path of the device that no other line uses. On WSL2 all GPUs share one device, and slurmd exits only if the same
/// path appears twice (tried with 24.11).
fn unshared(device: &str, taken: &BTreeSet<DevicePath>) -> Result<DevicePath, String> {
    let mut own = DevicePath::try_from(Path::new(device))?;
    while taken.contains(&own) {
        own = own.other_spelling();
    }
    Ok(own)
}

/// The readable names of the devices that a GPU provides: the GPU itself, or in MIG mode its usable instances.
pub(crate) fn display_names(gpu: &Gpu) -> Vec<String> {
    let name = |instance| Offer { gpu, instance, files: Vec::new() }.display_name();
    match &gpu.mig {
        None => vec![name(None)],
        Some(mig) => mig.iter().filter(|instance| instance.access == Access::Usable).map(Some).map(name).collect(),
    }
}

pub(super) fn display_name(gpu: &Gpu) -> String {
    let model = gpu.model.as_deref().map(one_line).filter(|model| !model.is_empty());
    model.unwrap_or_else(|| format!("{} GPU", gpu.vendor))
}

/// Makes hardware names safe for a comment: one line, limited length, no backslash that would continue it, and no
/// characters that hide or reorder text on a terminal.
pub(super) fn one_line(text: &str) -> String {
    let safe = |c: char| if c.is_ascii_graphic() && c != '\\' { c } else { ' ' };
    let text: String = text.chars().map(safe).take(120).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
