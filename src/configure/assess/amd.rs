//! AMD: hardware, compute device, render nodes, groups, trial.

use super::{Check, Repairs, failed_trial};
use crate::configure::passthrough::Trial;
use crate::configure::situation::{Amd, PlatformKind, Situation};

const GROUPS: &str = "sudo groupadd --force --system render; a udev rule gives it the files: \
    KERNEL==\"kfd\", GROUP=\"render\", MODE=\"0660\" and SUBSYSTEM==\"drm\", KERNEL==\"renderD*\", GROUP=\"render\", MODE=\"0660\" \
    in /etc/udev/rules.d/70-amdgpu.rules; then sudo udevadm control --reload && sudo udevadm trigger, and run this again";
const ROOTLESS: &str = "put the user of the engine into the groups of /dev/kfd and /dev/dri/renderD* \
    (sudo usermod -aG video,render $USER), log out and in again; or use an engine that runs as root";

const REPAIRS: Repairs = Repairs {
    toolkit: "docker build the image again with --build-arg GPU_TYPE=amd",
    device: "see that Docker's engine runs on this host and not elsewhere (docker context ls); sudo modprobe amdgpu",
    permission: ROOTLESS,
};

/// The lines of the report, and whether containers can be given the GPUs.
pub(super) fn assess(seen: &Situation, trial: &Trial) -> (Vec<Check>, bool) {
    let amd = &seen.amd;
    if !amd.is_present() {
        return (vec![Check::Note("no AMD GPU".to_owned())], false);
    }
    if matches!(seen.platform.kind, PlatformKind::MacOs | PlatformKind::DesktopVm) {
        return (vec![Check::Note("Docker Desktop's virtual machine cannot reach it".to_owned())], false);
    }
    let mut checks = vec![hardware(amd)];
    if amd.kfd.is_none() || amd.render_nodes.is_empty() {
        return (checks, false);
    }
    checks.extend(groups(amd));
    if let Trial::NotTried(_) = trial {
        checks.extend(rootless(seen));
    }
    checks.push(tried(trial));
    let is_usable = !checks.iter().any(Check::is_error);
    (checks, is_usable)
}

/// The hardware and its driver.
pub(crate) fn hardware(amd: &Amd) -> Check {
    if amd.kfd.is_none() || amd.render_nodes.is_empty() {
        return incomplete(amd);
    }
    Check::Good(format!("/dev/kfd and {}", nodes(amd)))
}

/// What the trial showed.
pub(crate) fn tried(trial: &Trial) -> Check {
    match trial {
        Trial::Works(count) => Check::Good(format!("a container can use {count} of them (tried with the image)")),
        Trial::Fails(failure) => failed_trial(failure, false, &REPAIRS),
        Trial::NotTried(why) => Check::Note(format!("not tried with a container: {why}")),
    }
}

/// No error: nearly every AMD processor has a GPU of the kind that ROCm does not support.
fn incomplete(amd: &Amd) -> Check {
    let missing = if amd.kfd.is_none() { "/dev/kfd is not there" } else { "/dev/dri has no render node of it" };
    Check::warning(
        format!("there is an AMD GPU, and {missing}: it is not used"),
        "the amdgpu driver is not loaded or is without KFD, or this GPU (most integrated ones) cannot compute",
        "for a GPU that ROCm supports: sudo modprobe amdgpu, or install the driver as \
         https://rocm.docs.amd.com/projects/install-on-linux/en/latest/ says; rocm-smi then lists it",
    )
}

fn nodes(amd: &Amd) -> String {
    let names: Vec<&str> = amd.render_nodes.iter().map(|node| node.path.as_str()).collect();
    names.join(", ")
}

/// The groups of its files.
pub(crate) fn groups(amd: &Amd) -> Option<Check> {
    let devices = || amd.kfd.iter().chain(&amd.render_nodes);
    let closed: Vec<&str> = devices().filter(|it| it.group == 0 && !it.is_for_all).map(|it| it.path.as_str()).collect();
    if !closed.is_empty() {
        return Some(Check::warning(
            format!("only root may use {}: jobs of other users cannot", closed.join(", ")),
            "these files belong to the group root, so there is no group that the container could be given",
            GROUPS,
        ));
    }
    let numbers: Vec<String> = amd.groups().iter().map(ToString::to_string).collect();
    (!numbers.is_empty()).then(|| Check::Good(format!("their groups on this host: {}", numbers.join(", "))))
}

fn rootless(seen: &Situation) -> Option<Check> {
    let is_rootless = seen.engine.info().is_some_and(|info| info.is_rootless);
    is_rootless.then(|| {
        Check::warning(
            "a rootless Docker may not be able to open the GPU's files",
            "groups of the host mean nothing inside it",
            ROOTLESS,
        )
    })
}
