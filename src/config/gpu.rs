//! How GPUs are detected and offered to jobs.

use std::time::Duration;

use serde::Deserialize;

use super::{ComputeCapability, GpuSelector, Shards, Sharing};
use faults::usage::IdlePolicy;
use model::value;

/// How GPUs are detected and offered to jobs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuSettings {
    /// The source of the GRES type name.
    pub type_name: TypeName,
    /// The source of the device list: slurminit or Slurm.
    pub gres: GresMode,
    /// How `CUDA_VISIBLE_DEVICES` identifies the GPUs of a job.
    pub cuda_devices: CudaDevices,
    /// How long a driver may take to report its GPUs; at most a third of the preparation's timeout is used.
    #[serde(deserialize_with = "value::seconds")]
    pub detect_timeout: Duration,
    /// The minimum compute capability of NVIDIA GPUs; GPUs below it are only reported. `None` means no minimum.
    pub min_compute: Option<ComputeCapability>,
    /// The minimum memory of GPUs and MIG instances, in MiB; those below it are only reported. `None` means no minimum.
    pub min_memory_mib: Option<u64>,
    /// The GPUs that jobs may use; empty means all, except some integrated GPUs.
    pub only: Vec<GpuSelector>,
    /// The GPUs that jobs may not use.
    pub except: Vec<GpuSelector>,
    /// The number of shards per whole GPU; `None` disables shards.
    pub shards: Option<Shards>,
    /// Whether jobs may share NVIDIA GPUs by percentage, through NVIDIA's MPS.
    pub mps: bool,
    /// Whether only the job's user can open a GPU's device file, if no cgroup restricts jobs to their GPUs. `None` means
    /// `true` with several `[[user]]` tables or `[users] from`, otherwise `false`.
    pub isolate: Option<bool>,
    /// The policy for jobs that do not use their GPUs.
    pub idle: IdlePolicy,
}

impl GpuSettings {
    /// How jobs can share GPUs, if they can.
    pub fn sharing(&self) -> Option<Sharing> {
        self.shards.map(Sharing::Shards).or_else(|| self.mps.then_some(Sharing::Mps))
    }
}

impl Default for GpuSettings {
    fn default() -> Self {
        Self {
            type_name: TypeName::default(),
            gres: GresMode::default(),
            cuda_devices: CudaDevices::default(),
            detect_timeout: Duration::from_secs(10),
            min_compute: None,
            min_memory_mib: None,
            only: Vec::new(),
            except: Vec::new(),
            shards: None,
            mps: false,
            isolate: None,
            idle: IdlePolicy::default(),
        }
    }
}

/// The source of a GPU's GRES type name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TypeName {
    /// The vendor's name: `gpu:nvidia:2`.
    #[default]
    Vendor,
    /// `gpu:nvidia_h200:2`, the name that Slurm's own plugin uses.
    Model,
    /// `gpu:gpu0:1,gpu:gpu1:1`: jobs can request a particular GPU.
    Index,
}

/// What determines the devices in gres.conf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GresMode {
    /// slurminit, which lists each GPU that it offers to jobs.
    #[default]
    Explicit,
    /// Slurm's own plugin (`AutoDetect=nvml`, `rsmi` or `oneapi`), or slurminit if the plugin is not installed or would fail.
    Autodetect,
}

/// How `CUDA_VISIBLE_DEVICES` identifies the GPUs of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CudaDevices {
    /// By CUDA's number if it is known, else by UUID.
    #[default]
    Number,
    /// By UUID.
    Uuid,
}
