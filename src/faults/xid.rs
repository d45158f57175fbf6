//! The default policy, description and fix of each XID of NVIDIA's driver.
//!
//! Most policies and fixes follow NVIDIA's catalog for Ampere and newer GPUs. Other monitoring tools treat many XIDs differently, so each
//! policy can be overridden in `[faults.xid]` of slurminit.toml.

use super::fault::{Fix, Policy};

pub(super) const REBOOT: Fix = Fix::Text("reboot the host; if the fault recurs, check the card and its slot");
const PROGRAM: Fix = Fix::Text("nothing to do on the node: check the job's program and output");
pub(super) const LINK: Fix = Fix::Text(
    "reset the GPUs at both ends of the NVLink, or reboot the host; if the fault recurs, check the NVLink bridge or switch",
);
const NOTHING: Fix = Fix::Text("nothing to do: this XID alone is not a fault");

/// NVML's number for an error whose XID is unknown to it (nvml.h, `nvmlEventData_t`).
pub const UNKNOWN_XID: u32 = 999;

/// Policy, description and fix of an XID.
pub(super) const fn row(number: u32) -> (Policy, &'static str, Fix) {
    use Fix::{Diagnostics, Reset, Text};
    use Policy::{Count, Drain, Ignore, Warn};
    match number {
        46 => (Drain, "the GPU stopped processing", Reset),
        48 => (Drain, "uncorrectable memory error", Reset),
        62 => (Drain, "micro-controller halted", Reset),
        64 => (Drain, "memory row remapping failed", Reset),
        74 => (Drain, "NVLink error", LINK),
        79 => (Drain, "GPU fell off the bus", REBOOT),
        95 => (Drain, "uncontained memory error", Reset),
        110 => (Drain, "a security fault", Reset),
        119 => (Drain, "GPU system processor (GSP) timeout", Reset),
        120 => (Drain, "GPU system processor (GSP) error", Reset),
        136 => (Drain, "NVLink training failed", Reset),
        140 => (Drain, "unrecovered memory error", Reset),
        143 => (Drain, "GPU initialization failed", Reset),
        151 => (Drain, "key rotation failed", Text("restart the virtual machine")),
        155 | 156 | 158 => (Drain, "", Reset),
        // For the next three rows, another XID or the recovery action reports the cause.
        45 => (Ignore, "clean-up after an earlier error", NOTHING),
        144..=150 => (Warn, "NVLink error", LINK),
        154 => (Count, "the driver's recovery action changed", NOTHING),
        63 => (Warn, "memory row remapping pending until the next reset", Text("reset the GPU when no job needs it")),
        92 => (Warn, "high rate of corrected memory errors", Diagnostics),
        157 => (Warn, "", Diagnostics),
        // A CUDA kernel that never yields raises this XID. If the GPU needs a reset, the driver's recovery action reports that.
        109 => (Warn, "context switch timeout", PROGRAM),
        13 => (Warn, "graphics engine exception", PROGRAM),
        31 => (Warn, "MMU fault (illegal address)", PROGRAM),
        // The instruction `trap` of a CUDA kernel raises only this XID (H100, R580).
        43 => (Warn, "GPU stopped processing for one program", PROGRAM),
        68 => (Warn, "video decoder exception", PROGRAM),
        69 => (Warn, "graphics class error", PROGRAM),
        94 => (Warn, "contained memory error; the program was killed", PROGRAM),
        8 | 11 | 25 | 32 | 39..=41 | 60 | 70..=72 | 75..=77 | 80 | 82..=86 | 88 | 89 | 96..=105 | 126..=135 | 139 => {
            (Warn, "", PROGRAM)
        }
        14 | 37 | 38 | 44 | 66 | 67 | 93 | 106..=108 | 121 | 137 | 141 | 152 | 153 | 160 | 161 => (Count, "", NOTHING),
        54 => (Warn, "auxiliary power not connected", Text("check the power cables of the card")),
        UNKNOWN_XID => {
            (Warn, "NVML's number for an unknown XID", Text("see Xid messages on the host (dmesg | grep -i xid)"))
        }
        _ => (Warn, "", Text("see NVIDIA's XID catalog")),
    }
}

#[cfg(test)]
mod tests {
    use crate::fault::{FaultKind, Faults};

    use super::*;

    /// Lists the XIDs of each combination of policy, description and fix. A changed row needs a source: NVIDIA's catalog, or a measurement.
    #[test]
    fn default_policies_and_fixes_match_nvidia_catalog() {
        let mut rows = std::collections::BTreeMap::<String, Vec<String>>::new();
        for number in (1..200).chain([UNKNOWN_XID]) {
            let kind = FaultKind::Xid(number);
            let (what, fix) = kind.describe();
            let what = what.strip_prefix(&format!("XID {number}")).unwrap_or(&what);
            let policy = Faults::default().policy(kind);
            rows.entry(format!("{policy:?}{what} -> {fix:?}")).or_default().push(number.to_string());
        }
        let rows: Vec<String> = rows.iter().map(|(row, numbers)| format!("{row}\n  {}", numbers.join(" "))).collect();
        insta::assert_snapshot!(rows.join("\n"));
    }
}
