//! What each fault means for the node, and its words.
//!
//! NVIDIA's actions for XIDs are those of its catalogue for Ampere and newer. The tools of others disagree on many of them, so
//! every entry can be overridden: `[faults]` of slurminit.toml.

use super::fault::{FaultKind, Policy};

const RESET: &str = "reset the GPU (nvidia-smi --gpu-reset -i GPU on the host), or reboot the host; see dmesg there";
const REBOOT: &str = "reboot the host; if it comes again, have the card and its slot looked at";
const PROGRAM: &str = "nothing for the node: look at the job's program, and at the job's output";
const HARDWARE: &str = "run NVIDIA's field diagnostics; if they fail, have the card replaced";
const LINK: &str =
    "reset the GPUs that the link joins, or reboot the host; if it comes again, look at the bridge or the switch";
const NOTHING: &str = "nothing";

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

/// What a fault is, and what to do.
pub fn words(kind: FaultKind) -> (String, &'static str) {
    let (what, repair) = match kind {
        FaultKind::Xid(number) => {
            let (_, what, repair) = xid(number);
            let colon = if what.is_empty() { "" } else { ", " };
            return (format!("XID {number}{colon}{what}"), repair);
        }
        FaultKind::RecoveryAction(action) => return (recovery(action), RESET),
        FaultKind::Lost => ("the driver has lost it: it fell off the bus, or needs a reset", REBOOT),
        FaultKind::Silent => ("the driver does not answer for it: it hangs, or is being reset", RESET),
        FaultKind::DeviceDenied => (
            "this container may no longer open its device file (NVML's \"Unknown Error\"): the host's systemd or runtime rewrote \
             the container's device rules",
            "create the container anew (docker compose up -d --force-recreate); for good, see `slurminit doctor`",
        ),
        FaultKind::RowRemapFailed => ("no spare row of its memory is left", "have the card replaced"),
        FaultKind::EccUncorrected => ("its memory had errors that could not be corrected", HARDWARE),
        FaultKind::Heat => ("its clocks are low because of heat", "look at the fans, the air and the dust"),
        FaultKind::PowerBrake => {
            ("its clocks are low because of the machine's power supply", "look at the power supply and its cables")
        }
        FaultKind::NvlinkDown => ("NVLinks are down that were up", LINK),
        FaultKind::Leftover => (
            "no job has it, and its memory is in use",
            "end the process that has it (`slurminit doctor` names it, or nvidia-smi on the host), or let it ask Slurm for the GPU",
        ),
        FaultKind::Reset => (
            "the driver resets it, and what runs on it is lost",
            "nothing for the node: look at the job's output, and for amdgpu messages on the host (dmesg | grep -i amdgpu)",
        ),
        FaultKind::ResetUnfinished => (
            "the driver began to reset it, and has not said that it can be used again",
            "look for amdgpu messages on the host (dmesg | grep -i amdgpu); reset it there (amd-smi reset -G), else reboot the host",
        ),
    };
    (what.to_owned(), repair)
}

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
fn recovery(action: u32) -> String {
    let what = match action {
        1 => "is to be reset",
        2 => "waits for a reboot of the host",
        3 => "is to be freed of peer-to-peer traffic",
        4 => "is to be freed of work and reset",
        5 => "waits for a repair of its IMEX domain",
        6 => "waits for a reset of its bus",
        7 => "waits for a reboot of the system",
        _ => "is to be repaired",
    };
    format!("the driver says that it {what} (recovery action {action})")
}

/// Policy, words and repair of an XID.
const fn xid(number: u32) -> (Policy, &'static str, &'static str) {
    use Policy::{Count, Drain, Ignore, Warn};
    match number {
        46 => (Drain, "the GPU stopped processing", RESET),
        48 => (Drain, "an error of its memory that could not be corrected", RESET),
        62 => (Drain, "its micro-controller halted", RESET),
        64 => (Drain, "a broken row of its memory could not be replaced", RESET),
        74 => (Drain, "an error of NVLink", LINK),
        79 => (Drain, "it has fallen off the bus", REBOOT),
        95 => (Drain, "an error of its memory that was not contained", RESET),
        109 => (Drain, "a context switch did not end", RESET),
        110 => (Drain, "a security fault", RESET),
        119 => (Drain, "its system processor (GSP) does not answer", RESET),
        120 => (Drain, "an error of its system processor (GSP)", RESET),
        136 => (Drain, "the training of an NVLink failed", RESET),
        140 => (Drain, "an error of its memory that the GPU did not recover from", RESET),
        143 => (Drain, "it could not be set up", RESET),
        151 => (Drain, "a rotation of keys failed", "restart the virtual machine"),
        155 | 156 | 158 => (Drain, "", RESET),
        // An error that another XID names, or that the recovery action tells.
        45 => (Ignore, "the clean-up after an earlier error", NOTHING),
        144..=150 => (Warn, "an error of NVLink", LINK),
        154 => (Count, "the driver's recovery action changed", NOTHING),
        63 => (Warn, "a broken row of its memory is replaced at the next reset", "reset the GPU when no job needs it"),
        92 => (Warn, "many errors of its memory, all corrected", HARDWARE),
        157 => (Warn, "", HARDWARE),
        13 => (Warn, "an exception of the graphics engine", PROGRAM),
        31 => (Warn, "a fault of its memory management: an illegal address", PROGRAM),
        43 => (Count, "the GPU stopped processing for a program", PROGRAM),
        68 => (Warn, "an exception of the video decoder", PROGRAM),
        69 => (Warn, "an error of a graphics class", PROGRAM),
        94 => (Warn, "an error of its memory that was contained: it ended the program", PROGRAM),
        8 | 11 | 25 | 32 | 39..=41 | 60 | 70..=72 | 75..=77 | 80 | 82..=86 | 88 | 89 | 96..=105 | 126..=135 | 139 => {
            (Warn, "", PROGRAM)
        }
        14 | 37 | 38 | 44 | 66 | 67 | 93 | 106..=108 | 121 | 137 | 141 | 152 | 153 | 160 | 161 => (Count, "", NOTHING),
        54 => (Warn, "its auxiliary power is not connected", "look at the power cables of the card"),
        _ => (Warn, "", "look it up in NVIDIA's catalogue of XIDs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_xid_of_the_catalogue_has_nvidias_action() {
        let resets = [46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158, 79, 151, 48, 74];
        let of_programs =
            [8, 11, 13, 25, 31, 32, 39, 41, 60, 68, 69, 72, 77, 80, 86, 88, 89, 94, 96, 105, 126, 135, 139];
        for number in 0..200 {
            let policy = default(FaultKind::Xid(number));
            assert_eq!(policy == Policy::Drain, resets.contains(&number), "{number}");
            if of_programs.contains(&number) {
                assert!(words(FaultKind::Xid(number)).1.contains("program"), "{number}");
            }
        }
        assert_eq!(words(FaultKind::Xid(79)).0, "XID 79, it has fallen off the bus");
        assert_eq!(words(FaultKind::Xid(171)).0, "XID 171");
        assert!(words(FaultKind::RecoveryAction(2)).0.contains("reboot"));
    }
}
