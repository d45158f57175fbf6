//! Whether the CUDA release and the C library of an image fit the driver that the container runtime mounted.
//!
//! NVIDIA's container runtime refuses to start a container whose image requires a newer driver. A job only gets a warning, because a package for
//! forward compatibility in the image may help, and because not every program of an image uses the GPU.

use std::fs;
use std::path::Path;

use model::cuda;

/// The loaders of glibc. The driver's libraries need one of them.
const GLIBC: [&str; 6] = [
    "lib64/ld-linux-x86-64.so.2",
    "usr/lib64/ld-linux-x86-64.so.2",
    "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    "lib/ld-linux-aarch64.so.1",
    "usr/lib/ld-linux-aarch64.so.1",
    "usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1",
];

/// The warnings about the image at `root` with these variables, each to be printed after the image's name. `driver` is the version of the driver
/// (`550.54.15`; empty if unknown), `cuda` the CUDA release that it supports (`12.4`).
pub(super) fn warnings(root: &Path, environment: &[String], driver: &str, cuda: Option<&str>) -> Vec<String> {
    let glibc = (has_musl(root) && !has_glibc(root)).then(|| {
        "has no glibc, which the GPU driver's libraries need; use a Debian, Ubuntu or Red Hat image".to_owned()
    });
    cuda.and_then(|cuda| missing_cuda(environment, driver, cuda)).into_iter().chain(glibc).collect()
}

fn has_glibc(root: &Path) -> bool {
    GLIBC.iter().any(|path| fs::symlink_metadata(root.join(path)).is_ok())
}

fn has_musl(root: &Path) -> bool {
    let names = fs::read_dir(root.join("lib")).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.into_iter().any(|name| name.as_encoded_bytes().starts_with(b"ld-musl-"))
}

fn missing_cuda(environment: &[String], driver: &str, supported: &str) -> Option<String> {
    let variable = |name: &str| environment.iter().find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    if variable("NVIDIA_DISABLE_REQUIRE").is_some_and(|value| !value.is_empty()) {
        return None;
    }
    let required = match variable("NVIDIA_REQUIRE_CUDA") {
        Some(requirement) => cuda::unmet_condition(requirement, Some(supported), Some(driver))?.to_string(),
        None => {
            let major = |release| cuda::numbers(release)?.first().copied();
            // Within a major release, older drivers can run newer programs.
            let (required, newest) = (major(variable("CUDA_VERSION")?)?, major(supported)?);
            (required > newest).then(|| format!("CUDA {required}"))?
        }
    };
    let driver: String = driver.chars().filter(|c| c.is_ascii_digit() || *c == '.').take(20).collect();
    let driver = if driver.is_empty() { "a driver that".to_owned() } else { format!("driver {driver}, which") };
    Some(format!(
        "needs {required}, but this machine has {driver} supports CUDA up to {supported}: update the driver, or use another image"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(variables: &[&str], cuda: &str) -> Option<String> {
        let environment: Vec<String> = variables.iter().map(|variable| (*variable).to_owned()).collect();
        missing_cuda(&environment, "550.54.15", cuda)
    }

    #[test]
    fn warns_of_old_driver_with_required_version() {
        let required = "NVIDIA_REQUIRE_CUDA=cuda>=12.9 brand=tesla,driver>=535,driver<536";
        let text = warning(&["PATH=/bin", required], "12.4").unwrap();
        for fact in ["12.9", "550.54.15", "12.4"] {
            assert!(text.contains(fact), "{text}");
        }
        assert!(warning(&["CUDA_VERSION=13.0.1"], "12.9").unwrap().contains("CUDA 13,"));
        for (variables, cuda) in [
            (&[required][..], "12.9"),
            (&[required, "NVIDIA_DISABLE_REQUIRE=1"], "12.4"),
            (&["CUDA_VERSION=12.8.1"], "12.0"),
            (&["CUDA_VERSION=13.0"], "unknown"),
            (&[], "11.4"),
        ] {
            assert_eq!(warning(variables, cuda), None, "{variables:?} {cuda}");
        }
    }

    #[test]
    fn warns_of_driver_of_unknown_version() {
        let text = missing_cuda(&["CUDA_VERSION=13.0.1".to_owned()], "", "12.9").unwrap();
        assert!(text.contains("this machine has a driver that supports CUDA up to 12.9:"), "{text}");
    }

    #[test]
    fn warns_of_musl_image_without_glibc() {
        let directory = crate::tests::scratch();
        let root = directory.path();
        assert_eq!(warnings(root, &[], "550.54", None).len(), 0);
        fs::create_dir_all(root.join("lib")).unwrap();
        fs::write(root.join("lib/ld-musl-x86_64.so.1"), "").unwrap();
        assert_eq!(warnings(root, &[], "550.54", None).len(), 1);
        fs::create_dir_all(root.join("lib64")).unwrap();
        std::os::unix::fs::symlink("/nowhere", root.join("lib64/ld-linux-x86-64.so.2")).unwrap();
        assert_eq!(warnings(root, &[], "550.54", None).len(), 0);
    }
}
