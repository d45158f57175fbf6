//! NVIDIA's GPUs on the host, which NVIDIA's container toolkit passes to containers.

mod assess;
mod look;

pub(super) use look::observe;

/// NVIDIA's hardware and software.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nvidia {
    /// The GPUs that nvidia-smi lists, or else those that detection found.
    pub gpus: Vec<NvidiaGpu>,
    /// The number of GPUs on the PCI bus, with or without a driver.
    pub pci_count: usize,
    /// The driver's version, such as `535.154.05`.
    pub driver: Option<String>,
    /// Whether the nouveau driver is loaded, which does not support CUDA.
    pub has_nouveau: bool,
    /// The result of `nvidia-smi`.
    pub smi: Smi,
    /// The IDs of MIG instances.
    pub mig_ids: Vec<String>,
    /// Whether WSL2's single device for all GPUs, `/dev/dxg`, exists.
    pub has_dxg: bool,
    /// Whether WSL2's library of the Windows driver exists.
    pub has_wsl_library: bool,
    /// NVIDIA's container toolkit.
    pub toolkit: Toolkit,
}

/// An NVIDIA GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvidiaGpu {
    /// The model name; untrusted text.
    pub model: Option<String>,
    /// The UUID: `GPU-...`.
    pub uuid: Option<String>,
}

/// The result of `nvidia-smi -L`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Smi {
    /// The program is missing or not executable, so it does not show whether the driver works.
    #[default]
    Missing,
    /// The program succeeded.
    Works,
    /// The program failed or timed out. The text is the first line of its output, or `timed out`.
    Fails(String),
}

/// NVIDIA's container toolkit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toolkit {
    /// The installed programs of the toolkit.
    pub programs: Vec<&'static str>,
    /// Whether `/etc/docker/daemon.json` names the toolkit's runtime.
    pub is_in_daemon_json: bool,
    /// Whether `no-cgroups` is set, which a rootless engine needs.
    pub has_no_cgroups: bool,
    /// The files with CDI specifications for NVIDIA GPUs.
    pub cdi_specs: Vec<String>,
}
