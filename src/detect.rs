//! Finds out what this container can really use: GPUs, CPUs, memory, cgroup, Slurm.
//!
//! EDGE. Everything is read through a root directory. Each vendor's probe runs in a child of its own with a deadline, so
//! a driver that hangs, crashes or lies ends in a verdict ([`sandbox`]).

pub mod amd_kfd;
pub mod cgroup;
pub mod cpu;
pub mod device;
pub mod memory;
pub mod nvidia_proc;
pub mod nvml;
pub mod sandbox;
pub mod slurm;

use std::path::PathBuf;
use std::time::Duration;

use crate::inventory::Inventory;

/// What detection is given.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where `/proc`, `/sys`, `/dev`, `/usr` are looked for.
    pub root: PathBuf,
    /// How long everything together may take.
    pub deadline: Duration,
    /// The NVIDIA management library; `None` looks in the usual places.
    pub nvml_library: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { root: "/".into(), deadline: Duration::from_secs(10), nvml_library: None }
    }
}

/// Finds out everything, within the deadline.
pub fn detect(_options: &Options) -> Inventory {
    Inventory::default()
}
