//! GPUs that are seen and cannot be offered, each with the reason.

use std::fs;
use std::path::Path;

use super::regular;
use crate::inventory::{Finding, Gpu, Severity, WSL_DEVICE};

const INTEL: &str = "0x8086";

/// Looks for them in sysfs; opens no device. `gpus` are those that a driver counts.
pub fn findings(root: &Path, gpus: &[Gpu]) -> Vec<Finding> {
    wsl(root, gpus).into_iter().chain(intel(root)).collect()
}

/// In WSL2 a device without NVIDIA's library is that of another maker, or of a Windows without NVIDIA's driver.
fn wsl(root: &Path, gpus: &[Gpu]) -> Option<Finding> {
    let has_device = root.join(WSL_DEVICE.trim_start_matches('/')).exists();
    (has_device && gpus.is_empty()).then(|| Finding {
        severity: Severity::Warning,
        what: "WSL2's GPU device is in this container, and no NVIDIA GPU answers".to_owned(),
        cause: "in WSL2 jobs can be given NVIDIA's GPUs only: AMD's lack their kernel interface (KFD) there, Intel's their render nodes"
            .to_owned(),
        repair: "NVIDIA: install the current driver in Windows, then `wsl --update` and `docker run --gpus all`; AMD and Intel: \
                 use Linux itself"
            .to_owned(),
    })
}

/// Intel's render nodes that this container has.
fn intel(root: &Path) -> Option<Finding> {
    let entries = fs::read_dir(root.join("sys/class/drm")).into_iter().flatten().flatten();
    let node = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let minor = name.strip_prefix("renderD")?.parse::<u16>().ok()?;
        let vendor = regular::text(&entry.path().join("device/vendor")).ok()?;
        let is_here = vendor.trim() == INTEL && root.join("dev/dri").join(&name).exists();
        is_here.then_some(minor)
    };
    let mut minors: Vec<u16> = entries.filter_map(node).collect();
    minors.sort_unstable();
    let files: Vec<String> = minors.iter().map(|minor| format!("/dev/dri/renderD{minor}")).collect();
    let first = files.first()?;
    Some(Finding {
        severity: Severity::Info,
        what: format!("{} of Intel's (driver i915 or xe) are not offered to jobs: {}", count(files.len()), files.join(", ")),
        cause: "which number Intel's runtime gives a GPU depends on how it splits it into stacks (ZE_FLAT_DEVICE_HIERARCHY), and \
                Slurm's AutoDetect=oneapi needs a Slurm built with Level Zero, which Debian's is not"
            .to_owned(),
        repair: format!(
            "nothing, if it only drives a display; else offer it by a gres.conf of your own (USER_CUSTOMIZED) with \
             Name=gpu Type=intel File={first} Flags=intel_gpu_env"
        ),
    })
}

fn count(number: usize) -> String {
    if number == 1 { "1 GPU".to_owned() } else { format!("{number} GPUs") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::nvidia_proc::nameless_gpu;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn intels_gpu_is_named_where_its_render_node_is() {
        let root = root(&[
            ("sys/class/drm/renderD128/device/vendor", "0x8086\n"),
            ("sys/class/drm/renderD129/device/vendor", "0x1002\n"),
            ("sys/class/drm/renderD130/device/vendor", "0x8086\n"),
            ("sys/class/drm/card0/device/vendor", "0x8086\n"),
            ("dev/dri/renderD128", ""),
            ("dev/dri/renderD129", ""),
        ]);
        let found = findings(root.path(), &[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].what.starts_with("1 GPU of Intel's") && found[0].what.ends_with(": /dev/dri/renderD128"),
            "{found:?}"
        );
        assert!(found[0].cause.contains("oneapi") && found[0].repair.contains("intel_gpu_env"), "{found:?}");
    }

    #[test]
    fn a_device_of_wsl2_without_nvidia_is_said_and_with_nvidia_is_not() {
        let root = root(&[("dev/dxg", "")]);
        let found = findings(root.path(), &[]);
        assert!(found[0].cause.contains("NVIDIA's GPUs only"), "{found:?}");
        assert_eq!(findings(root.path(), &[nameless_gpu(0)]), []);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]
        #[test]
        fn no_content_panics(text in "(?s).{0,32}", name in "renderD[0-9x+]{0,9}") {
            let vendor = format!("sys/class/drm/{name}/device/vendor");
            let root = root(&[(&vendor, &text), (&format!("dev/dri/{name}"), "")]);
            findings(root.path(), &[]);
        }
    }
}
