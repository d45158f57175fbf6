//! The default policy, description and repair of each fault.
//!
//! NVIDIA's actions for XIDs are those of its catalogue for Ampere and newer. The tools of others disagree on many of them, so
//! every entry can be overridden: `[faults]` of slurminit.toml.

use super::fault::{FaultKind, Policy};

const RESET: &str =
    "`slurminit gpu release N`, nvidia-smi --gpu-reset -i GPU on the host, `slurminit gpu return N`; or reboot";
const REBOOT: &str = "reboot the host; if the fault recurs, check the card and its slot";
const PROGRAM: &str = "no action on the node: check the job's program and output";
const HARDWARE: &str = "run NVIDIA's field diagnostics; if they fail, replace the card";
const LINK: &str =
    "reset the GPUs that the link joins, or reboot the host; if the fault recurs, check the bridge or the switch";
const NOTHING: &str = "nothing";

/// NVML's number for an error without one (nvml.h, `nvmlEventData_t`).
pub const UNKNOWN_XID: u32 = 999;

/// The policy of a fault that `[faults]` does not name.
pub const fn default(kind: FaultKind) -> Policy {
    match kind {
        FaultKind::Xid(number) => xid(number).0,
        FaultKind::RecoveryAction(_)
        | FaultKind::Lost
        | FaultKind::Silent
        | FaultKind::DeviceDenied
        | FaultKind::RowRemapFailed
        | FaultKind::ResetUnfinished => Policy::Drain,
        FaultKind::EccUncorrected
        | FaultKind::Heat
        | FaultKind::PowerBrake
        | FaultKind::NvlinkDown
        | FaultKind::Leftover
        | FaultKind::Reset => Policy::Warn,
    }
}

/// The description and repair of a fault.
pub fn describe(kind: FaultKind) -> (String, &'static str) {
    let (what, repair) = match kind {
        FaultKind::Xid(number) => {
            let (_, what, repair) = xid(number);
            let colon = if what.is_empty() { "" } else { ", " };
            return (format!("XID {number}{colon}{what}"), repair);
        }
        FaultKind::RecoveryAction(action) => return (recovery(action), RESET),
        FaultKind::Lost => ("the GPU is lost: it fell off the bus, or needs a reset", REBOOT),
        FaultKind::Silent => ("the driver does not respond for this GPU: it hangs, or is being reset", RESET),
        FaultKind::DeviceDenied => (
            "the container can no longer open the device file: the host rewrote its device rules (NVML: \"Unknown Error\")",
            "re-create the container (docker compose up -d --force-recreate); for a permanent fix see `slurminit doctor`",
        ),
        FaultKind::RowRemapFailed => ("no spare memory row left (row remapping failed)", "replace the card"),
        FaultKind::EccUncorrected => ("uncorrectable ECC errors", HARDWARE),
        FaultKind::Heat => ("clocks throttled by temperature", "check fans, air flow and dust"),
        FaultKind::PowerBrake => {
            ("clocks throttled by the power supply (power brake)", "check the power supply and its cables")
        }
        FaultKind::NvlinkDown => ("NVLinks went down", LINK),
        FaultKind::Leftover => (
            "GPU memory in use without a job",
            "end the process (`slurminit doctor` or nvidia-smi on the host shows it), or run it as a Slurm job",
        ),
        FaultKind::Reset => (
            "the driver is resetting the GPU; its processes are lost",
            "no action on the node: check the job's output, and amdgpu messages on the host (dmesg | grep -i amdgpu)",
        ),
        FaultKind::ResetUnfinished => (
            "the driver started a reset that did not finish",
            "check amdgpu messages on the host (dmesg | grep -i amdgpu); reset the GPU there (amd-smi reset -G), else reboot the host",
        ),
    };
    (what.to_owned(), repair)
}

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
fn recovery(action: u32) -> String {
    let what = match action {
        1 => "is to be reset",
        2 => "needs a reboot of the host",
        3 => "must be drained of peer-to-peer traffic",
        4 => "must be drained and reset",
        5 => "needs a repair of its IMEX domain",
        6 => "needs a bus reset",
        7 => "needs a reboot of the system",
        _ => "is to be repaired",
    };
    format!("the driver reports that the GPU {what} (recovery action {action})")
}

/// Policy, description and repair of an XID.
const fn xid(number: u32) -> (Policy, &'static str, &'static str) {
    use Policy::{Count, Drain, Ignore, Warn};
    match number {
        46 => (Drain, "the GPU stopped processing", RESET),
        48 => (Drain, "uncorrectable memory error", RESET),
        62 => (Drain, "micro-controller halted", RESET),
        64 => (Drain, "memory row remapping failed", RESET),
        74 => (Drain, "NVLink error", LINK),
        79 => (Drain, "GPU fell off the bus", REBOOT),
        95 => (Drain, "uncontained memory error", RESET),
        110 => (Drain, "a security fault", RESET),
        119 => (Drain, "GPU system processor (GSP) timeout", RESET),
        120 => (Drain, "GPU system processor (GSP) error", RESET),
        136 => (Drain, "NVLink training failed", RESET),
        140 => (Drain, "unrecovered memory error", RESET),
        143 => (Drain, "GPU initialization failed", RESET),
        151 => (Drain, "key rotation failed", "restart the virtual machine"),
        155 | 156 | 158 => (Drain, "", RESET),
        // Reported by another XID or by the recovery action.
        45 => (Ignore, "clean-up after an earlier error", NOTHING),
        144..=150 => (Warn, "NVLink error", LINK),
        154 => (Count, "the driver's recovery action changed", NOTHING),
        63 => (Warn, "memory row remapping pending until the next reset", "reset the GPU when no job needs it"),
        92 => (Warn, "high rate of corrected memory errors", HARDWARE),
        157 => (Warn, "", HARDWARE),
        // A CUDA kernel that never yields raises this XID. If the GPU needs a reset, the driver's recovery action reports that.
        109 => (Warn, "context switch timeout", PROGRAM),
        13 => (Warn, "graphics engine exception", PROGRAM),
        31 => (Warn, "MMU fault (illegal address)", PROGRAM),
        // A kernel's `trap` raises only this one (seen on an H100 with R580).
        43 => (Warn, "GPU stopped processing for one program", PROGRAM),
        68 => (Warn, "video decoder exception", PROGRAM),
        69 => (Warn, "graphics class error", PROGRAM),
        94 => (Warn, "contained memory error; the program was killed", PROGRAM),
        8 | 11 | 25 | 32 | 39..=41 | 60 | 70..=72 | 75..=77 | 80 | 82..=86 | 88 | 89 | 96..=105 | 126..=135 | 139 => {
            (Warn, "", PROGRAM)
        }
        14 | 37 | 38 | 44 | 66 | 67 | 93 | 106..=108 | 121 | 137 | 141 | 152 | 153 | 160 | 161 => (Count, "", NOTHING),
        54 => (Warn, "auxiliary power not connected", "check the power cables of the card"),
        UNKNOWN_XID => {
            (Warn, "the driver has no text for this XID", "see Xid messages on the host (dmesg | grep -i xid)")
        }
        _ => (Warn, "", "see NVIDIA's XID catalog"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_xid_policies_match_nvidia_catalog() {
        let draining = [46, 62, 64, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158, 79, 151, 48, 74];
        let program_errors =
            [8, 11, 13, 25, 31, 32, 39, 41, 60, 68, 69, 72, 77, 80, 86, 88, 89, 94, 96, 105, 109, 126, 135, 139];
        for number in 0..200 {
            let policy = default(FaultKind::Xid(number));
            assert_eq!(policy == Policy::Drain, draining.contains(&number), "{number}");
            if program_errors.contains(&number) {
                assert!(describe(FaultKind::Xid(number)).1.contains("program"), "{number}");
            }
        }
        assert_eq!(describe(FaultKind::Xid(79)).0, "XID 79, GPU fell off the bus");
        assert_eq!(describe(FaultKind::Xid(171)).0, "XID 171");
        assert_eq!(default(FaultKind::Xid(UNKNOWN_XID)), Policy::Warn);
        assert!(describe(FaultKind::RecoveryAction(2)).0.contains("reboot"));
    }
}
