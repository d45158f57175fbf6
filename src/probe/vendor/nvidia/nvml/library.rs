//! Finds and loads NVIDIA's management library, and explains why it cannot be loaded.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use nvml_wrapper::Nvml;

use super::NvmlFailure;
use crate::device_files;

/// The file name that the dynamic loader searches for.
const NAME: &str = "libnvidia-ml.so.1";

/// Directories that the dynamic loader of the image might not search: those of WSL2, GKE (Container-Optimized OS), NixOS,
/// NVIDIA's driver container and Debian's alternatives; also the host's paths, which CDI keeps although another distribution's
/// loader does not search them.
const DIRECTORIES: [&str; 11] = [
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
    "run/opengl-driver/lib",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "run/nvidia/driver/usr/lib/x86_64-linux-gnu",
];

/// Loads and initialises the library. If one of NVIDIA's device files is open only to the watchers' group, the process gives up root first.
pub(crate) fn load(root: &Path, library: Option<&Path>) -> Result<Nvml, NvmlFailure> {
    device_files::give_up_root_if_closed(root);
    match library {
        Some(path) => init(path.as_os_str()),
        // The default library would describe this machine, not the one under `root`.
        None if root != Path::new("/") => {
            Err(NvmlFailure::LibraryMissing("not searched for, because the root directory is not /".into()))
        }
        // `docker commit` and `docker export` leave an empty file where the runtime mounted the library.
        None => init(OsStr::new(NAME)).or_else(|failure| match failure {
            NvmlFailure::LibraryMissing(_) | NvmlFailure::LibraryBroken(_) => {
                find_outside_loader_path(root).map_or(Err(failure), |path| init(path.as_os_str()))
            }
            _ => Err(failure),
        }),
    }
}

/// The first non-empty library in [`DIRECTORIES`].
fn find_outside_loader_path(root: &Path) -> Option<PathBuf> {
    let has_content = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|file| file.len() > 0);
    DIRECTORIES.iter().map(|directory| root.join(directory).join(NAME)).find(has_content)
}

fn init(path: &OsStr) -> Result<Nvml, NvmlFailure> {
    Nvml::builder().lib_path(path).init().map_err(|error| NvmlFailure::new("nvmlInit", error))
}

/// The failure for the loader's error. glibc's text begins with the file that could not be opened: a file other than NVIDIA's
/// library is a dependency (elf/dl-load.c, `_dl_signal_error`).
pub(super) fn load_failure(error: String) -> NvmlFailure {
    let names_library = error.split(':').next().is_some_and(|file| file.contains("libnvidia-ml"));
    match error.contains("No such file") {
        true if names_library => NvmlFailure::LibraryMissing(error),
        _ => NvmlFailure::LibraryBroken(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_directories_of_gke_nixos_and_other_distributions() {
        for directory in ["usr/local/nvidia/lib64", "run/opengl-driver/lib", "usr/lib64", "usr/lib/wsl/lib"] {
            let root = tempfile::tempdir().unwrap();
            assert_eq!(find_outside_loader_path(root.path()), None);
            let path = root.path().join(directory).join(NAME);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            assert_eq!(find_outside_loader_path(root.path()), None, "an empty file");
            std::fs::write(&path, "ELF").unwrap();
            assert_eq!(find_outside_loader_path(root.path()), Some(path));
        }
    }

    #[test]
    fn distinguishes_missing_library_from_missing_dependency() {
        let error = |file: &str| format!("{file}: cannot open shared object file: No such file or directory");
        assert!(matches!(load_failure(error(NAME)), NvmlFailure::LibraryMissing(_)));
        let path = "/usr/local/nvidia/lib64/libnvidia-ml.so.1";
        assert!(matches!(load_failure(error(path)), NvmlFailure::LibraryMissing(_)));
        assert!(matches!(load_failure(error("libnvidia-ptxjitcompiler.so.1")), NvmlFailure::LibraryBroken(_)));
        assert!(matches!(load_failure("libnvidia-ml.so.1: file too short".to_owned()), NvmlFailure::LibraryBroken(_)));
    }
}
