//! The GPU of an NVIDIA Jetson. It is integrated and driven by nvgpu. It has no `/dev/nvidiaN`, and NVML reports little about it.

use std::fs;
use std::path::Path;

use super::{nvml, proc};
use crate::device;
use model::inventory::Gpu;

/// The file that CUDA opens first (nvgpu's uapi header, nvgpu-ctrl.h): JetPack 6 and newer, then the older name.
const CONTROL: [&str; 2] = ["dev/nvgpu/igpu0/ctrl", "dev/nvhost-ctrl-gpu"];

/// Processors by their device-tree name, with the compute capability of the GPU (developer.nvidia.com/cuda-gpus).
const PROCESSORS: [(&str, &str); 4] =
    [("tegra210", "5.3"), ("tegra186", "6.2"), ("tegra194", "7.2"), ("tegra234", "8.7")];

/// Whether this is a Jetson. Opens no device.
pub(super) fn is_jetson(root: &Path) -> bool {
    control(root).is_some()
}

/// The Jetson's GPU; `None` on another machine. Opens the device file as a job would, so call it only inside the sandbox.
pub(super) fn probe(root: &Path) -> Option<Gpu> {
    let file = control(root)?;
    // Docker hides the device tree (/sys/firmware) from most containers.
    let text = |name: &str| fs::read_to_string(root.join("proc/device-tree").join(name)).ok();
    let compatible = text("compatible").unwrap_or_default();
    let compute =
        PROCESSORS.iter().find(|(name, _)| compatible.contains(name)).map(|(_, compute)| (*compute).to_owned());
    Some(Gpu {
        device_file: Some(Path::new("/").join(file)),
        model: text("model").and_then(|text| nvml::name(text.trim_end_matches('\0'))),
        compute,
        access: device::access(&root.join(file)),
        ..proc::unknown_gpu(0)
    })
}

fn control(root: &Path) -> Option<&'static str> {
    CONTROL.into_iter().find(|file| root.join(file).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]
        #[test]
        fn arbitrary_device_tree_does_not_panic(text in "(?s).{0,200}") {
            let root = tempfile::tempdir().unwrap();
            proptest::prop_assert!(!is_jetson(root.path()));
            for file in ["proc/device-tree/model", "proc/device-tree/compatible", CONTROL[0]] {
                fs::create_dir_all(root.path().join(file).parent().unwrap()).unwrap();
                fs::write(root.path().join(file), &text).unwrap();
            }
            proptest::prop_assert!(is_jetson(root.path()));
            let gpu = probe(root.path()).unwrap();
            proptest::prop_assert!(!gpu.is_usable(), "a regular file is not a device");
        }
    }
}
