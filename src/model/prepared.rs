//! The input of the preparation child (`slurminit prepare`) from PID 1, and its messages to PID 1: one JSON object per line on its standard
//! output.
//!
//! Detection, planning, rendering and installing all happen in that child. If a driver hangs or a disk
//! stalls, the child misses its deadline, but PID 1 is not affected.

pub mod announced;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::inventory::{Finding, Identity, PciAddress, Vendor};

/// A line of the preparation's standard output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
#[expect(clippy::large_enum_variant, reason = "there are a few of them in each start")]
pub enum PrepareEvent {
    /// The munge key is in place: munged may start before detection ends.
    MungeKeyReady,
    /// The GPUs, CPUs and memory are known.
    Detected,
    /// The files are installed: the daemons may start, or apply them after a reload.
    Done(Prepared),
    /// The start or reload is refused, or the configuration has caused a daemon's death.
    Failed {
        /// The container's exit code if the container exits, one of [`crate::exit_code`].
        exit_code: u8,
        /// What is wrong, why, and the fix.
        finding: Finding,
    },
}

/// The input of the preparation, as JSON on standard input (every user can read a command line).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PrepareInput {
    /// Checksums of the configuration that PID 1 uses (`config::StartOnlyTables` as text), for a start or reload.
    pub held: Option<String>,
    /// The time until PID 1 kills the preparation.
    pub time_limit: Option<Duration>,
    /// The last log lines of the daemon whose death is to be explained; empty at a start or reload.
    pub last_lines: String,
}

/// How the daemons apply newly installed files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Apply {
    /// No action: the daemons already use the files, or read them at each use.
    #[default]
    Nothing,
    /// `scontrol reconfigure`, or SIGHUP to slurmd in a container without slurmctld.
    Reconfigure,
    /// A restart of slurmctld and slurmd.
    Restart,
}

/// A GPU or MIG instance that jobs can get.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedGpu {
    /// The vendor.
    pub vendor: Vendor,
    /// The driver's index of the GPU; for a MIG instance, of the GPU that contains it.
    pub index: u32,
    /// The device file; for a MIG instance, the last of its device files. `no file` if there is none.
    pub file: String,
    /// The model, or the GPU's model and the profile of a MIG instance.
    pub model: String,
    /// The memory of the GPU or MIG instance in MiB, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// The PCI address of the whole GPU, if known.
    pub pci_address: Option<PciAddress>,
    /// The driver's unique name of the MIG instance: `MIG-1c1d...`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// All known facts in one readable line.
    pub line: String,
}

impl From<&OfferedGpu> for Identity {
    fn from(gpu: &OfferedGpu) -> Self {
        let (index, pci_address) = (gpu.index, gpu.pci_address);
        Self { vendor: gpu.vendor, index, pci_address, file: Some(gpu.file.clone()), ..Self::default() }
    }
}

/// The result of a finished preparation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Prepared {
    /// The node's name, or the list of simulated nodes; empty in a container without a node.
    pub node_name: String,
    /// The number of simulated nodes in `node_name`; 0 if the nodes are not simulated.
    #[serde(skip_serializing_if = "is_zero")]
    pub simulated_nodes: usize,
    /// The parameters with which the node registers (`slurmd -Z --conf`), if it is not in slurm.conf.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic_node: Option<String>,
    /// The node name in the user's slurm.conf to pass with `slurmd -N`, if slurmd cannot derive it from the host name. `None` if the operator
    /// configures slurmd's command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configured_node_name: Option<String>,
    /// The spool directory of each slurmd of this container.
    pub spool_directories: Vec<PathBuf>,
    /// The user that slurmctld runs as, if the operator's files name one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slurm_user: Option<String>,
    /// Whether the accounting daemons run here, and the configuration contains accounts, users or QOS for the database.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_associations: bool,
    /// The node's GRES in slurm.conf or in its registration (`gpu:nvidia:2`); may be empty.
    pub gres: String,
    /// Whether an earlier slurmctld saved state that may contain jobs.
    pub saved_jobs: bool,
    /// Whether the controller's state directory is missing or contains no saved state, so that nothing can be lost.
    pub new_state: bool,
    /// Whether Slurm is configured without cgroups.
    pub without_cgroups: bool,
    /// Whether slurmd runs slurminit's own Epilog, without a hook whose failure drains the node. Such an Epilog never fails by itself. If
    /// it is killed together with slurmd, Slurm mistakes that for a failure.
    pub own_epilog: bool,
    /// Whether slurm.conf, gres.conf or cgroup.conf is the user's own.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_own_files: bool,
    /// One readable line: `2 NVIDIA H200, 8 CPUs, 14374 MiB`.
    pub summary: String,
    /// The GPUs that jobs can get, in Slurm's order.
    pub gpus: Vec<OfferedGpu>,
    /// The GPUs that the driver was still initializing. They are added once the driver is done.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub awaited: Vec<Identity>,
    /// The files whose content changed at this start or reload.
    pub changed: Vec<PathBuf>,
    /// All findings, worst first.
    pub findings: Vec<Finding>,
    /// After a reload: how the daemons apply the files.
    pub apply: Apply,
    /// After a reload: what changed, one readable item each.
    pub news: Vec<String>,
    /// After a reload: changed tables of slurminit.toml that take effect only at the container's next start.
    pub deferred: Vec<String>,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Prepared {
    /// The node's name in this start. It can differ from the configured name: the user's slurm.conf may contain another name, or the node
    /// has the name of its container. `None` without a node.
    pub fn name_of_node(&self) -> Option<&str> {
        Some(self.node_name.as_str()).filter(|name| !name.is_empty())
    }

    /// Whether slurmctld runs as root, according to the operator's files.
    pub fn has_slurmctld_of_root(&self) -> bool {
        self.slurm_user.as_deref() == Some("root")
    }
}
