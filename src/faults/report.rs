//! The report on the GPUs: `gpus.json` in the run directory, which `slurminit agent` replaces whenever its contents change.
//!
//! Everyone may read it; only root writes it. Times are seconds since 1970.

use model::queued_job::OwnedJob;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::fault::{FaultKind, Policy};
use super::sample::Identity;
use super::usage::{JobUse, UserUse};
use model::inventory::{Condition, Readings};
use model::process_id::ProcessId;

/// The name of the report in the run directory.
pub const FILE: &str = "gpus.json";

/// The contents of the report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The process that writes the report. If the process has exited, the report is outdated.
    #[serde(flatten)]
    pub process: ProcessId,
    /// The time of the last sample; 0 before the first.
    pub at: u64,
    /// The sampling interval in ms.
    pub interval_ms: u64,
    /// Every GPU that this container has, or has had since its start, in the driver's order.
    pub gpus: Vec<GpuReport>,
    /// The most recent faults, the latest one last.
    pub recent: Vec<ReportedFault>,
    /// How GPUs affect the node's state: `drained because of GPU 3, until all GPU jobs on the node have ended: 17`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The stage of the agent's work on the node, for programs that read the report.
    #[serde(default)]
    pub node_stage: NodeStage,
    /// The GPU use of each user's jobs, as far as slurmctld has confirmed it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub users: BTreeMap<String, UserUse>,
    /// The jobs that have GPUs of this node, and the most recent ones that had some in the last day; empty if Slurm's PrivateData hides jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub job_uses: Vec<JobUse>,
}

/// The stage of the agent's work on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeStage {
    /// No work is pending: all faulty GPUs are already excluded.
    #[default]
    Open,
    /// A recovered GPU waits until it can be offered again.
    Returning,
    /// The node is drained until its GPU count can change.
    Draining,
    /// A reload is changing the GPU count.
    Reloading,
}

/// The report about one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuReport {
    /// The identity of the GPU.
    #[serde(flatten)]
    pub identity: Identity,
    /// Slurm's indices of the GPU, from 0: empty if it is unavailable to jobs, several for MIG instances.
    pub offered: Vec<usize>,
    /// The jobs on the GPU or a part of it.
    pub jobs: Vec<OwnedJob>,
    /// When the GPU last changed between free and in use by jobs; before the first change, when it was first listed (0 if unknown).
    pub since: u64,
    /// The condition in the last sample.
    pub condition: Condition,
    /// The measurements in the last sample.
    pub readings: Readings,
    /// The mean utilization in each part of the last hour, in percent, the most recent part first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_hour: Vec<Option<u32>>,
    /// The current faults.
    pub faults: Vec<OpenFault>,
    /// The count and last time of each fault since the start of the container.
    #[serde(with = "counts")]
    pub counts: BTreeMap<FaultKind, Count>,
    /// Whether the GPU's uncorrectable errors occurred before its last reset or repair, so that they are no fault.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_repaired: bool,
    /// Whether the configuration excludes the GPU from jobs: it was faulty, released, or not yet initialized by the driver.
    pub is_out: bool,
    /// The state of a GPU that an administrator released for work on the host; `None` if not released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<Release>,
}

/// The release of a GPU for work on the host: NVIDIA's tools refuse to reset a GPU that a process has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Release {
    /// The GPU is still offered to jobs, or slurminit still has its device file open.
    Pending,
    /// The host's tools can reset the GPU: it is not offered to jobs, and slurminit has closed it, unless the vendor's tools accept an open GPU.
    Done,
    /// The GPU was returned by `slurminit gpu return`, and will be checked.
    Returning,
}

/// A current fault of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFault {
    /// The kind of the fault.
    pub kind: FaultKind,
    /// The policy that applies to the fault.
    pub policy: Policy,
    /// The time at which the fault began, in seconds since 1970.
    pub since: u64,
    /// The description of the fault.
    pub what: String,
    /// The fix.
    pub fix: String,
}

/// How many times a fault has occurred, and when it last did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// The number of faults of this kind.
    pub count: u64,
    /// The time of the last fault of this kind.
    pub last: u64,
}

/// A fault that was reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedFault {
    /// The time of the report, in seconds since 1970.
    pub at: u64,
    /// The GPU's position in the driver's order.
    pub gpu: u32,
    /// The kind of the fault.
    pub kind: FaultKind,
    /// The policy that applied to the fault.
    pub policy: Policy,
    /// The jobs on the GPU at that time.
    pub jobs: Vec<OwnedJob>,
    /// The log line about the fault.
    pub line: String,
}

/// Serializes a map with non-text keys as a list of pairs.
mod counts {
    use std::collections::BTreeMap;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::{Count, FaultKind};

    pub(super) fn serialize<S: Serializer>(map: &BTreeMap<FaultKind, Count>, to: S) -> Result<S::Ok, S::Error> {
        map.iter().collect::<Vec<_>>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<FaultKind, Count>, D::Error> {
        Vec::<(FaultKind, Count)>::deserialize(from).map(|pairs| pairs.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_through_file() {
        let fault = OpenFault {
            kind: FaultKind::Xid(79),
            policy: Policy::Drain,
            since: 1,
            what: "fell off the bus".to_owned(),
            fix: "reboot the host".to_owned(),
        };
        let gpu = GpuReport {
            faults: vec![fault],
            counts: [(FaultKind::Xid(79), Count { count: 2, last: 3 })].into(),
            identity: Identity { pci_address: "00000000:10:00.0".parse().ok(), ..Identity::default() },
            ..GpuReport::default()
        };
        let report = Report { process: ProcessId { pid: 7, start_ticks: 9 }, gpus: vec![gpu], ..Report::default() };
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
