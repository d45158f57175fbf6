//! GPU vendors. Everything that differs between them is in one table per vendor.

mod amd;
mod intel;
mod nvidia;

use std::fmt;

use serde::{Deserialize, Serialize};

/// The vendor of a GPU, which determines the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Vendor {
    /// NVIDIA: NVML and `/dev/nvidiaN`.
    #[default]
    Nvidia,
    /// AMD: KFD and `/dev/dri/renderDN`.
    Amd,
    /// Intel: the drivers xe and i915, and `/dev/dri/renderDN`.
    Intel,
}

impl Vendor {
    /// All vendors, in the order of gres.conf's lines.
    pub const ALL: [Self; 3] = [Self::Nvidia, Self::Amd, Self::Intel];

    /// The vendor of simulated GPUs. Slurm sets this vendor's variable (CUDA_VISIBLE_DEVICES) for their jobs.
    pub const SIMULATED: Self = Self::Nvidia;

    /// Everything that differs between vendors.
    pub const fn traits(self) -> &'static Traits {
        match self {
            Self::Nvidia => &nvidia::TRAITS,
            Self::Amd => &amd::TRAITS,
            Self::Intel => &intel::TRAITS,
        }
    }

    /// The name in `GPU_TYPE`, GRES types and logs.
    pub const fn as_str(self) -> &'static str {
        self.traits().name
    }
}

/// The source of the facts about a vendor's GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The NVIDIA management library.
    Nvml,
    /// `/proc/driver/nvidia/gpus` and the device files. NVLinks, memory size and compute capability are then unknown.
    NvidiaProc,
    /// A Jetson's device file. Model and memory size are unknown if the container hides the device tree.
    Nvgpu,
    /// The AMD kernel driver's topology in sysfs.
    Kfd,
    /// The render nodes of the kernel's Direct Rendering Manager, in sysfs.
    Drm,
}

impl Source {
    /// The source as text, for a table.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Nvml => "NVML",
            Self::NvidiaProc => "/proc and /dev",
            Self::Nvgpu => "nvgpu (Jetson)",
            Self::Kfd => "KFD",
            Self::Drm => "sysfs (DRM)",
        }
    }
}

/// The GPU type that an image was built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuType {
    /// NVIDIA GPUs.
    Nvidia,
    /// AMD GPUs.
    Amd,
    /// Intel GPUs.
    Intel,
    /// No GPU.
    None,
}

impl GpuType {
    /// All GPU types.
    pub const ALL: [Self; 4] = [Self::Nvidia, Self::Amd, Self::Intel, Self::None];

    /// The vendor; `None` for an image without GPU support.
    pub const fn vendor(self) -> Option<Vendor> {
        match self {
            Self::Nvidia => Some(Vendor::Nvidia),
            Self::Amd => Some(Vendor::Amd),
            Self::Intel => Some(Vendor::Intel),
            Self::None => None,
        }
    }

    /// The word in `GPU_TYPE`.
    pub const fn as_str(self) -> &'static str {
        match self.vendor() {
            Some(vendor) => vendor.as_str(),
            None => "none",
        }
    }
}

impl From<Vendor> for GpuType {
    fn from(vendor: Vendor) -> Self {
        match vendor {
            Vendor::Nvidia => Self::Nvidia,
            Vendor::Amd => Self::Amd,
            Vendor::Intel => Self::Intel,
        }
    }
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Everything that differs between vendors.
#[derive(Debug)]
pub struct Traits {
    /// The name in `GPU_TYPE`, GRES types and logs: `nvidia`.
    pub name: &'static str,
    /// The vendor's own spelling: `NVIDIA`.
    pub maker: &'static str,
    /// The PCI vendor ID, as in sysfs.
    pub pci_vendor: &'static str,
    /// Prefixes of the GPUs' PCI classes: display controllers, and processing accelerators such as the MI300.
    pub pci_classes: &'static [&'static str],
    /// The name of the driver or interface that detection queries.
    pub interface: &'static str,
    /// The kernel drivers whose GPUs jobs can use.
    pub drivers: &'static [&'static str],
    /// Whether jobs get an integrated GPU that `[gpu] only` does not name, if there is no discrete GPU.
    pub offers_integrated: bool,
    /// Whether programs use CUDA on these GPUs.
    pub has_cuda: bool,
    /// The resource names of Kubernetes device plugins for these GPUs.
    pub kubernetes: &'static [&'static str],
    /// The options of `docker run` for a container with all GPUs.
    pub docker_options: &'static str,
    /// Values in Slurm's files.
    pub slurm: Slurm,
    /// How the vendor's runtime identifies GPUs.
    pub runtime: Runtime,
    /// How GPUs are passed to a container by their device files; `None` if a container runtime passes them, as with NVIDIA.
    pub files: Option<Files>,
    /// Messages if the image and the GPUs do not match.
    pub mismatch: MismatchWords,
    /// Causes and fixes if a GPU cannot be used.
    pub obstacles: ObstacleWords,
    /// The tools that fix a GPU on the host.
    pub fix: FixTools,
}

/// Values in Slurm's files.
#[derive(Debug)]
pub struct Slurm {
    /// The flag in gres.conf that makes Slurm set the runtime's variable.
    pub flag: &'static str,
    /// The `AutoDetect` value, which is also the plugin's name after `gpu_`.
    pub auto_detect: &'static str,
    /// Whether the plugin and detection use the same model names. Slurm keeps a `Type` only if it is part of the
    /// plugin's model name.
    pub plugin_names_models: bool,
    /// The source that the plugin needs, and the cause and fix if this source is not available.
    pub plugin_source: Option<(Source, &'static str, &'static str)>,
    /// Two reasons not to use the plugin: the first if GPUs share a PCI address, the second if the runtime does not number GPUs in
    /// bus order.
    pub plugin_order: Option<(&'static str, &'static str)>,
    /// The prefix of the `Feature` for a compute capability.
    pub compute_prefix: &'static str,
    /// Whether the driver branch determines which programs run, and is therefore a `Feature`.
    pub driver_is_feature: bool,
}

/// How the vendor's runtime identifies GPUs.
#[derive(Debug)]
pub struct Runtime {
    /// The variable that selects a program's GPUs.
    pub variable: &'static str,
    /// Whether the runtime identifies a GPU by its number among those that can be opened, in driver order, rather than
    /// by UUID.
    pub selects_by_number: bool,
    /// How the runtime identifies GPUs, as a sentence for the script that sets the variable.
    pub selection_rule: &'static str,
    /// Whether the runtime ignores a GPU whose device file the user may not open (EACCES). NVML counts such GPUs but
    /// refuses to open them (nvmlDeviceGetHandleByIndex: NVML_ERROR_NO_PERMISSION); libhsakmt stops at the first such
    /// GPU (topology.c).
    pub ignores_closed_files: bool,
    /// Further variables that must be set for the runtime's numbers to be right.
    pub settings: &'static [(&'static str, &'static str)],
    /// Whether the settings may be left out if all GPUs are of one model.
    pub equal_models_in_bus_order: bool,
}

/// GPUs that are passed by their device files; each has a render node in `/dev/dri`.
#[derive(Debug, PartialEq, Eq)]
pub struct Files {
    /// The device file that all GPUs share.
    pub shared: Option<&'static str>,
    /// An option for `--security-opt` that the runtime needs, and why.
    pub security: Option<(&'static str, &'static str)>,
    /// Cause and fix if a GPU's device files are missing from the host.
    pub incomplete: (&'static str, &'static str),
    /// The fix if only root can open the files, so that no group can be passed to a container.
    pub groups: &'static str,
    /// The fix if Docker cannot find the files.
    pub missing: &'static str,
    /// The fix if a rootless engine may not open the files.
    pub rootless: &'static str,
}

/// Messages if the image and the GPUs do not match.
#[derive(Debug)]
pub struct MismatchWords {
    /// How to start a container with the GPUs.
    pub start: &'static str,
    /// The program on the host that lists the GPUs.
    pub tool: &'static str,
    /// The likely cause if a container of an image for these GPUs detects none.
    pub no_gpu_cause: &'static str,
    /// A clause about the software for these GPUs that is missing from the image.
    pub missing_software: &'static str,
    /// How to start a container without these GPUs.
    pub withhold: &'static str,
    /// Cause and fix on WSL2; `None` if jobs cannot use these GPUs there.
    pub no_gpu_in_wsl: Option<(&'static str, &'static str)>,
}

/// The vendor's tools on the host that fix a GPU.
#[derive(Debug)]
pub struct FixTools {
    /// The command that resets the GPU with this PCI address or number.
    pub reset: fn(&str) -> String,
    /// Work other than a reset that needs a GPU without jobs, as the end of a sentence; may be empty.
    pub other_work: &'static str,
    /// The program that shows the processes on a GPU.
    pub processes: &'static str,
    /// The vendor's hardware diagnostics.
    pub diagnostics: &'static str,
    /// Whether the tools refuse a GPU that any process has open.
    pub needs_closed_gpu: bool,
}

/// Causes and fixes if a GPU cannot be used.
#[derive(Debug)]
pub struct ObstacleWords {
    /// The fix if the GPU was not passed to the container.
    pub not_given: &'static str,
    /// Cause and fix if the device rules deny access.
    pub denied: (&'static str, &'static str),
    /// The fix if the driver is not loaded.
    pub no_driver: &'static str,
    /// The fix if the GPU fell off the bus.
    pub lost: &'static str,
    /// The fix if the driver hangs.
    pub hang: &'static str,
}
