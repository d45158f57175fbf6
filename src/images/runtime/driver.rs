//! The GPU driver's files, which the container runtime mounted one by one (NVIDIA's, also through CDI). An image has none, because they
//! belong to the host's kernel module.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::binds::{Binds, OWN};

/// Binds the driver's files. Returns its version, or an empty text, if there are libraries.
pub(super) fn find(binds: &mut Binds) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let files = mounted_files(&mounts, |path| fs::metadata(path).is_ok_and(|metadata| metadata.is_file()));
    add(&files, binds).then(|| version(&files).unwrap_or_default().to_owned())
}

/// The version in the name of CUDA's library: `libcuda.so.550.54.15`.
fn version(files: &[PathBuf]) -> Option<&str> {
    let versions = files.iter().filter_map(|file| file.file_name()?.to_str()?.strip_prefix("libcuda.so."));
    versions.into_iter().find(|version| version.contains('.'))
}

/// The files below /usr and /lib that are mounts of their own (proc_pid_mountinfo(5): the fifth field).
fn mounted_files(mounts: &str, is_file: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let points = points.filter(|point| ["/usr/", "/lib/", "/lib64/"].iter().any(|top| point.starts_with(top)));
    // Escaped characters do not occur in a driver's names.
    points.filter(|point| !point.contains('\\')).map(PathBuf::from).filter(|path| is_file(path)).collect()
}

fn is_library(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.contains(".so") && name.starts_with("lib")
}

fn add(files: &[PathBuf], binds: &mut Binds) -> bool {
    let own = Path::new(OWN);
    let mut directories = BTreeSet::new();
    for file in files {
        let Some((name, parent)) = file.file_name().zip(file.parent()) else { continue };
        if is_library(file) {
            binds.add(file, &own.join("driver").join(name));
            directories.insert(parent);
        } else if parent.ends_with("bin") {
            binds.add(file, &own.join("bin").join(name));
        } else {
            binds.add(file, file);
        }
    }
    // Programs look for libcuda.so.1, which is a link to libcuda.so.VERSION.
    for directory in &directories {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let link = entry.path();
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink()) && is_library(&link);
            if is_link && fs::canonicalize(&link).is_ok_and(|target| files.contains(&target)) {
                binds.add(&link, &own.join("driver").join(entry.file_name()));
            }
        }
    }
    !directories.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_a_runtime_mounted_are_found_with_their_links() {
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
    fn other_mounts_are_not_the_drivers() {
        let line = |point: &str| format!("36 35 98:0 / {point} ro,noatime - ext4 /dev/root rw\n");
        let mounts =
            ["/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/etc/hosts", "/data", "/lib/firmware/x", "/usr/a\\040b"];
        let mounts: String = mounts.map(line).concat();
        let files = mounted_files(&mounts, |_| true);
        assert_eq!(files, [Path::new("/usr/lib/x86_64-linux-gnu/libcuda.so.1"), Path::new("/lib/firmware/x")]);
    }
}
