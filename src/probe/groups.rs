//! Device files that only root and members of a group may open, so that jobs' users need the group.

use std::collections::BTreeMap;
use std::path::Path;

use super::device;
use model::inventory::{Finding, Gpu, Kind, Vendor};

/// Returns a finding if only members of a group may open the device file of one of `gpus`, which are all of this vendor, or the file that
/// they share. A single "permission denied" can make a whole runtime fail, as with ROCr (libhsakmt, topology.c).
pub(super) fn finding(root: &Path, vendor: Vendor, gpus: &[Gpu]) -> Option<Finding> {
    let shared = vendor.traits().files.as_ref().and_then(|files| files.shared).map(Path::new);
    let files = gpus.iter().filter(|gpu| gpu.is_usable()).filter_map(|gpu| gpu.device_file.as_deref());
    let groups: BTreeMap<u32, &Path> = files
        .flat_map(|file| shared.into_iter().chain([file]))
        .filter_map(|file| Some((device::restricting_group(&root.join(file.strip_prefix("/").ok()?))?, file)))
        .collect();
    finding_for_groups(vendor, &groups)
}

pub(super) fn finding_for_groups(vendor: Vendor, groups: &BTreeMap<u32, &Path>) -> Option<Finding> {
    let (_, file) = groups.first_key_value()?;
    let numbers: Vec<String> = groups.keys().map(u32::to_string).collect();
    // The image may already contain a group with this number: 44 is Debian's video.
    let made =
        numbers.iter().map(|number| format!("(getent group {number} || groupadd -g {number} {vendor}-gpu-{number})"));
    let fix = format!(
        "in the image, run: {} && usermod -aG {} USER; or add a udev rule on the host (MODE=\"0666\")",
        made.collect::<Vec<_>>().join(" && "),
        numbers.join(",")
    );
    let groups = match numbers.as_slice() {
        [number] => format!("the group with GID {number}"),
        numbers => format!("the groups with GIDs {}", numbers.join(" and ")),
    };
    let (maker, file) = (vendor.traits().maker, file.display());
    Some(Finding::info(
        Kind::GpuGroups,
        format!("only root and members of {groups} can use {maker} GPUs"),
        format!(
            "the mode of {file} denies other users, and Slurm sets a job's groups from /etc/group, not \
             from docker's --group-add"
        ),
        fix,
    ))
}
