//! What the preparation child (`slurminit prepare`) tells PID 1, one JSON object a line on its standard output.
//!
//! PURE. Detection, planning, rendering and installing all happen in that child: a driver that hangs or a disk that
//! stalls costs the child its deadline, and PID 1 nothing.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::inventory::Finding;

/// One line of the preparation's standard output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum PrepareEvent {
    /// The munge key is in place: munged may start while detection goes on.
    MungeKeyReady,
    /// The GPUs, CPUs and memory are known.
    Detected,
    /// The files are installed: the daemons may start.
    Done(Prepared),
    /// The cluster must not start.
    Failed {
        /// The container's exit code, one of [`crate::exit_code`].
        exit_code: u8,
        /// What, why, and the repair.
        finding: Finding,
    },
}

/// What the daemons need to take the files that a preparation installed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Apply {
    /// Nothing: they run with these already, or read them anew at each use.
    #[default]
    Nothing,
    /// `scontrol reconfigure`.
    Reconfigure,
    /// A restart of slurmctld and slurmd.
    Restart,
}

/// A GPU or MIG instance that jobs can be given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedGpu {
    /// Its device file; the last of them for a MIG instance.
    pub file: String,
    /// The model, or the GPU's model and the profile of a MIG instance.
    pub model: String,
    /// Its place on the PCI bus, if it is known.
    pub pci_address: Option<String>,
    /// All that is known of it, in one line for a person.
    pub line: String,
}

/// What a finished preparation decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// The name of this node in slurm.conf.
    pub node_name: String,
    /// The node's GRES as slurm.conf has it (`gpu:nvidia:2`), empty without GPUs.
    pub gres: String,
    /// Whether the controller finds jobs that a former start saved.
    #[serde(default)]
    pub saved_jobs: bool,
    /// Whether this Slurm's daemons know `--systemd` (23.11): at `scontrol reconfigure` they hand over to a new process.
    #[serde(default)]
    pub hands_over: bool,
    /// Whether the Epilog that slurmd runs is slurminit's own, which never fails: Slurm takes one that ends with slurmd for a failure.
    #[serde(default)]
    pub own_epilog: bool,
    /// One line for a person: `2 NVIDIA H200, 8 CPUs, 14374 MiB`.
    pub summary: String,
    /// The GPUs that jobs can be given, in the order in which Slurm counts them.
    pub gpus: Vec<OfferedGpu>,
    /// The files whose content changed at this start.
    pub changed: Vec<PathBuf>,
    /// Everything that the operator should know, worst first.
    pub findings: Vec<Finding>,
    /// At a reload: what the daemons need to take the files.
    #[serde(default)]
    pub apply: Apply,
    /// At a reload: what is new, one item each for a person.
    #[serde(default)]
    pub news: Vec<String>,
    /// At a reload: the tables of slurminit.toml that changed and count only at the next start of the container.
    #[serde(default)]
    pub deferred: Vec<String>,
}
