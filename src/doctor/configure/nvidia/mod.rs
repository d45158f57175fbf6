//! NVIDIA's GPUs on the host, which NVIDIA's container toolkit passes to containers.

mod assess;
mod look;

use super::choice::{GpuId, no_such};
use super::host_gpus::HostGpus;
use super::passthrough::{Trial, Way};
use super::situation::Situation;
pub(super) use look::look;
use model::inventory::{Observations, Vendor};

/// NVIDIA's hardware and software.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nvidia {
    /// The GPUs that the driver reports.
    pub gpus: Vec<NvidiaGpu>,
    /// The number of GPUs on the PCI bus, with or without a driver.
    pub on_pci: usize,
    /// The driver's version, such as `535.154.05`.
    pub driver: Option<String>,
    /// Whether the kernel uses the nouveau driver, which cannot compute.
    pub has_nouveau: bool,
    /// The result of `nvidia-smi`.
    pub smi: Smi,
    /// The IDs of MIG instances.
    pub mig_ids: Vec<String>,
    /// Whether WSL2's single device for all GPUs exists.
    pub has_dxg: bool,
    /// Whether WSL2's library of the Windows driver exists.
    pub has_wsl_library: bool,
    /// NVIDIA's container toolkit.
    pub toolkit: Toolkit,
}

/// An NVIDIA GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvidiaGpu {
    /// The model name, an untrusted text.
    pub model: Option<String>,
    /// The UUID: `GPU-...`.
    pub uuid: Option<String>,
}

/// The result of `nvidia-smi -L`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Smi {
    /// The program is missing, which proves nothing.
    #[default]
    Missing,
    /// It lists GPUs.
    Works,
    /// It fails; the text is the first line of its message.
    Fails(String),
}

/// NVIDIA's container toolkit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toolkit {
    /// The installed programs.
    pub programs: Vec<&'static str>,
    /// Whether `/etc/docker/daemon.json` names its runtime.
    pub is_in_daemon_json: bool,
    /// Whether `no-cgroups` is set, which a rootless engine needs.
    pub leaves_cgroups_alone: bool,
    /// The CDI specifications.
    pub cdi_specs: Vec<String>,
}

impl HostGpus for Nvidia {
    fn vendor(&self) -> Vendor {
        Vendor::Nvidia
    }

    fn is_present(&self) -> bool {
        self.on_pci > 0 || !self.gpus.is_empty() || self.has_wsl_library
    }

    /// WSL2's device alone can mean NVIDIA.
    fn may_be_present(&self) -> bool {
        self.is_present() || self.has_dxg
    }

    fn can_be_meant(&self) -> bool {
        self.is_present()
    }

    fn can_be_tried(&self) -> bool {
        !self.gpus.is_empty()
    }

    fn is_ready(&self, seen: &Situation) -> bool {
        self.is_present() && !self.hardware(seen).iter().any(Observations::has_failed)
    }

    fn check(&self, id: &GpuId) -> Result<(), String> {
        let uuids: Vec<&str> = self.gpus.iter().filter_map(|gpu| gpu.uuid.as_deref()).collect();
        let knows = match id.index() {
            Some(index) => index < self.gpus.len(),
            None if id.as_str().starts_with("GPU-") => uuids.len() < self.gpus.len() || uuids.contains(&id.as_str()),
            None => self.mig_ids.is_empty() || self.mig_ids.iter().any(|mig| mig == id.as_str()),
        };
        // Without a driver nothing is known; the user may be preparing for another host.
        if knows || self.gpus.is_empty() { Ok(()) } else { Err(no_such(id, self.gpus.len())) }
    }

    fn way(&self, seen: &Situation) -> Way {
        way(&self.toolkit, seen)
    }

    fn hardware(&self, seen: &Situation) -> Vec<Observations> {
        assess::driver(self, seen)
    }

    fn passes(&self, seen: &Situation, trial: &Trial) -> Vec<Observations> {
        assess::passes(self, seen, trial)
    }

    fn tried(&self, seen: &Situation, trial: &Trial) -> Observations {
        assess::tried(self, seen, trial)
    }

    fn assess(&self, seen: &Situation, trial: &Trial) -> (Vec<Observations>, bool) {
        assess::assess(self, seen, trial)
    }

    fn lacks_in_wsl(&self) -> Option<Observations> {
        (self.has_dxg && !self.has_wsl_library).then(|| {
            Observations::warn(
                "WSL2 has a GPU, and it is none of NVIDIA's with a driver for WSL2",
                "AMD and Intel GPUs do not work in WSL2's containers; for NVIDIA the Windows driver is missing or too old",
                "NVIDIA: install the current driver in Windows, then `wsl --update`; AMD: use Linux itself",
            )
        })
    }
}

/// The method that works on this host: NVIDIA's runtime if Docker has it, because every version of compose supports it.
fn way(toolkit: &Toolkit, seen: &Situation) -> Way {
    let (has_runtime, has_cdi) = match seen.engine.info() {
        Some(info) => (info.runtimes.iter().any(|name| name == "nvidia"), info.has_cdi),
        // Docker cannot be asked, so its files decide.
        None => (toolkit.is_in_daemon_json, toolkit.programs.is_empty()),
    };
    if has_cdi && !has_runtime && !toolkit.cdi_specs.is_empty() { Way::Cdi } else { Way::Gpus }
}
