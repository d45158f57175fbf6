//! The names of NVIDIA's GPUs in the map of jobs to GPUs. dcgm-exporter uses DCGM's numbers, which are in bus order.

use std::fs;
use std::path::Path;

use super::proc;
use model::inventory::{MIG_MINORS, MigMinors};

/// The beginning of the path of a MIG instance's device file, which is its capability file.
const CAPABILITY: &str = "/dev/nvidia-caps/nvidia-cap";

/// The name of a device in the map: `3` for GPU 3, or `3.9` for its GPU instance 9.
pub(super) fn name(root: &Path, device: &str) -> Option<String> {
    let number = |text: &str| text.parse::<u32>().ok();
    if let Some(capability) = device.strip_prefix(CAPABILITY) {
        let minors = fs::read_to_string(root.join(MIG_MINORS)).map(|text| MigMinors::parse(&text)).ok()?;
        let (minor, instance) = minors.instance(number(capability)?)?;
        return Some(format!("{}.{instance}", host_number(root, minor)));
    }
    device.strip_prefix("/dev/nvidia").and_then(number).map(|minor| host_number(root, minor).to_string())
}

/// The GPU's number on the host. Minors follow the order in which the driver found the GPUs, which can differ from the bus order. If
/// the container's /proc does not list all GPUs, the order is unknown, and the minor is the better guess.
fn host_number(root: &Path, minor: u32) -> u32 {
    let all = proc::minors(root);
    let is_complete = (0..).zip(&all).all(|(number, _): (u32, _)| all.iter().any(|(_, minor)| *minor == Some(number)));
    let number = (0..).zip(&all).find(|(_, (_, own))| *own == Some(minor)).map(|(number, _)| number);
    number.filter(|_| is_complete).unwrap_or(minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        crate::tests::tree(files)
    }

    #[test]
    fn gpu_number_is_bus_position_not_minor() {
        let gpu = |address: &str, minor: u32| {
            (format!("proc/driver/nvidia/gpus/{address}/information"), format!("Device Minor: {minor}\n"))
        };
        let all = [gpu("0000:07:00.0", 2), gpu("0000:0a:00.0", 3), gpu("0000:47:00.0", 0), gpu("0000:4d:00.0", 1)];
        let mut files: Vec<(&str, &str)> = all.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        files.push((MIG_MINORS, "gpu2/gi9/access 84\ngpu2/gi9/ci0/access 85\ngpu2/gi9/ci1/access 86\n"));
        let root = tree(&files);
        let name_of = |device: &str| name(root.path(), device);
        for (minor, number) in [(2, "0"), (3, "1"), (0, "2"), (1, "3")] {
            assert_eq!(name_of(&format!("/dev/nvidia{minor}")).as_deref(), Some(number));
        }
        for capability in ["85", "86"] {
            assert_eq!(name_of(&format!("{CAPABILITY}{capability}")).as_deref(), Some("0.9"));
        }
        for other in ["/dev/nvidia-caps/nvidia-cap1", CAPABILITY, "/dev/nvidiactl", "/dev/dri/renderD128"] {
            assert_eq!(name_of(other), None, "{other}");
        }
        // Only some GPUs of the host, and none.
        let partial = tree(&files[1..3]);
        assert_eq!(name(partial.path(), "/dev/nvidia3").as_deref(), Some("3"));
        assert_eq!(name(tree(&[]).path(), "/dev/nvidia5").as_deref(), Some("5"));
    }
}
