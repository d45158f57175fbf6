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
    /// One line for a person: `2 NVIDIA H200, 8 CPUs, 14374 MiB`.
    pub summary: String,
    /// The GPUs that jobs can be given, one line each for a person.
    pub gpus: Vec<String>,
    /// The files whose content changed at this start.
    pub changed: Vec<PathBuf>,
    /// Everything that the operator should know, worst first.
    pub findings: Vec<Finding>,
}
