//! What there is of AMD: the bus, the compute device, the render nodes and their groups.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::{gpus_on_pci, names, read};
use crate::configure::situation::{Amd, Device};

const VENDOR: &str = "0x1002";

pub(super) fn look(root: &Path) -> Amd {
    // An integrated GPU of another maker is renderD128 on many machines.
    let is_amds = |name: &String| read(root, &format!("sys/class/drm/{name}/device/vendor")).trim() == VENDOR;
    let minor = |name: &String| name.strip_prefix("renderD").and_then(|minor| minor.parse::<u32>().ok());
    let mut nodes: Vec<(u32, String)> = names(root, "dev/dri")
        .into_iter()
        .filter(is_amds)
        .filter_map(|name| Some((minor(&name)?, format!("/dev/dri/{name}"))))
        .collect();
    nodes.sort();
    Amd {
        on_pci: gpus_on_pci(root, VENDOR),
        kfd: device(root, "/dev/kfd"),
        render_nodes: nodes.into_iter().filter_map(|(_, path)| device(root, &path)).collect(),
    }
}

/// The file itself is never opened: that can wake a GPU.
fn device(root: &Path, path: &str) -> Option<Device> {
    let metadata = fs::metadata(root.join(path.trim_start_matches('/'))).ok()?;
    let is_for_all = metadata.mode() & 0o006 == 0o006;
    Some(Device { path: path.to_owned(), group: metadata.gid(), is_for_all })
}
