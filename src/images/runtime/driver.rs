//! The GPU driver's files. The container runtime mounts them one by one (NVIDIA's runtime, with or without CDI), or as a directory (GKE's
//! device plugin: /usr/local/nvidia). An image does not contain them, because they must match the host's kernel module.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::binds::{Binds, SLURMINIT_DIRECTORY};

/// Binds the driver's files. Returns the driver's version, or an empty text if it is unknown; `None` if there are no libraries.
pub(super) fn find(binds: &mut Binds) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let files = mounted_files(&mounts);
    add(&files, binds).then(|| version(&files).unwrap_or_default().to_owned())
}

/// The version in the name of CUDA's library: `libcuda.so.550.54.15`.
fn version(files: &[PathBuf]) -> Option<&str> {
    let versions = files.iter().filter_map(|file| file.file_name()?.to_str()?.strip_prefix("libcuda.so."));
    versions.into_iter().find(|version| version.contains('.'))
}

/// The files that are mounted one by one below /usr, /lib and /lib64, and the driver's files in directories that are mounted there
/// (proc_pid_mountinfo(5): the fifth field).
fn mounted_files(mounts: &str) -> Vec<PathBuf> {
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let points = points.filter(|point| ["/usr/", "/lib/", "/lib64/"].iter().any(|top| point.starts_with(top)));
    // The names of a driver's files contain no characters that mountinfo escapes.
    let points = points.filter(|point| !point.contains('\\')).map(PathBuf::from);
    points.flat_map(|point| if is_file(&point) { vec![point] } else { files_of_directory(&point) }).collect()
}

fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// The driver's libraries and programs below a mounted directory; none if it does not contain libcuda.so.1. Other files, such as a C library, would
/// replace those of the image.
fn files_of_directory(directory: &Path) -> Vec<PathBuf> {
    let libraries = ["", "lib64", "lib"].map(|name| directory.join(name));
    let Some(libraries) = libraries.iter().find(|place| place.join("libcuda.so.1").exists()) else { return Vec::new() };
    let files = |place: &Path| {
        let entries = fs::read_dir(place).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| is_file(path)).collect::<Vec<_>>()
    };
    let is_driver_file = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libcuda") || name.starts_with("libnv") || name.contains("nvidia")
    };
    files(libraries).into_iter().chain(files(&directory.join("bin"))).filter(is_driver_file).collect()
}

fn is_library(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.contains(".so") && name.starts_with("lib")
}

fn add(files: &[PathBuf], binds: &mut Binds) -> bool {
    let directory = Path::new(SLURMINIT_DIRECTORY);
    let mut library_directories = BTreeSet::new();
    for file in files {
        let Some((name, parent)) = file.file_name().zip(file.parent()) else { continue };
        if is_library(file) {
            binds.add(file, &directory.join("driver").join(name));
            library_directories.insert(parent);
        } else if parent.ends_with("bin") {
            binds.add(file, &directory.join("bin").join(name));
        } else {
            binds.add(file, file);
        }
    }
    // Programs look for libcuda.so.1, which is a link to libcuda.so.VERSION.
    for library_directory in &library_directories {
        for entry in fs::read_dir(library_directory).into_iter().flatten().flatten() {
            let link = entry.path();
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink()) && is_library(&link);
            if is_link && fs::canonicalize(&link).is_ok_and(|target| files.contains(&target)) {
                binds.add(&link, &directory.join("driver").join(entry.file_name()));
            }
        }
    }
    !library_directories.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binds_mounted_driver_files_and_their_links() {
        let directory = crate::tests::scratch();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("bin")).unwrap();
        for name in ["libcuda.so.550.54", "libother.so.1", "bin/nvidia-smi"] {
            fs::write(at(name), "").unwrap();
        }
        std::os::unix::fs::symlink("libcuda.so.550.54", at("libcuda.so.1")).unwrap();
        let mut binds = Binds::default();
        assert!(add(&[at("libcuda.so.550.54"), at("bin/nvidia-smi")], &mut binds));
        let inside: Vec<_> = binds.0.iter().map(|bind| bind.to.to_str().unwrap()).collect();
        let expected =
            ["/.slurminit/driver/libcuda.so.550.54", "/.slurminit/bin/nvidia-smi", "/.slurminit/driver/libcuda.so.1"];
        assert_eq!(inside, expected);
        assert!(!add(&[], &mut binds));
        assert_eq!(version(&[at("libother.so.1"), at("libcuda.so.1"), at("libcuda.so.550.54")]), Some("550.54"));
    }

    #[test]
    fn finds_libraries_and_programs_in_driver_directory() {
        let directory = crate::tests::scratch();
        let at = |name: &str| directory.path().join(name);
        for name in ["lib64", "bin", "lib64/vdpau"] {
            fs::create_dir(at(name)).unwrap();
        }
        for name in ["lib64/libcuda.so.580.159", "lib64/libc.so.6", "lib64/README", "bin/nvidia-smi", "VERSION"] {
            fs::write(at(name), "").unwrap();
        }
        assert_eq!(files_of_directory(directory.path()), Vec::<PathBuf>::new(), "a mounted directory without libcuda");
        std::os::unix::fs::symlink("libcuda.so.580.159", at("lib64/libcuda.so.1")).unwrap();
        let files = files_of_directory(directory.path());
        assert_eq!(files, [at("lib64/libcuda.so.580.159"), at("bin/nvidia-smi")]);
        let mut binds = Binds::default();
        assert!(add(&files, &mut binds));
        let inside: Vec<_> = binds.0.iter().map(|bind| bind.to.to_str().unwrap()).collect();
        let expected =
            ["/.slurminit/driver/libcuda.so.580.159", "/.slurminit/bin/nvidia-smi", "/.slurminit/driver/libcuda.so.1"];
        assert_eq!(inside, expected);
        assert_eq!(version(&files), Some("580.159"));
    }

    #[test]
    fn ignores_mounts_that_are_not_driver_files() {
        let line = |point: &Path| format!("36 35 98:0 / {} ro,noatime - ext4 /dev/root rw\n", point.display());
        // A file below /usr that exists on every test machine.
        let file = fs::canonicalize("/usr/bin/env").unwrap();
        let others = ["/usr", "/usr/share", "/etc/hosts", "/data", "/usr/a\\040b"].map(PathBuf::from);
        let mounts: String = others.iter().chain([&file]).map(|point| line(point)).collect();
        assert_eq!(mounted_files(&mounts), [file]);
    }
}
