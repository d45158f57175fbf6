//! CUDA in the container, and what the host's driver supports.

use crate::facts::StartFacts;
use model::cuda::{newest_major, oldest_driver};
use model::inventory::{Driver, Gpu, Observations};

fn has_usable_gpu(start: &StartFacts<'_>) -> bool {
    start.inventory.read().cuda_gpus().any(Gpu::is_usable)
}

pub(super) fn cuda_libraries(start: &StartFacts<'_>) -> Observations {
    if !has_usable_gpu(start) {
        return Observations::note("no usable NVIDIA GPU in this container");
    }
    if start.environment.is_demo {
        return Observations::note("simulated GPUs do not support CUDA");
    }
    let cuda = &start.cheap.cuda;
    let capabilities = start.environment.driver_capabilities.as_deref();
    let current = capabilities.map_or_else(|| "is not set".to_owned(), |current| format!("is {current}"));
    let library = cuda.driver_library.is_none().then(|| {
        let found = format!("libcuda.so.1 not found in this container (NVIDIA_DRIVER_CAPABILITIES {current})");
        Observations::usual_warning(format!("{found}: CUDA programs find no GPU"))
    });
    let smi = (!cuda.has_smi).then(|| {
        Observations::usual_hint(format!(
            "nvidia-smi not found in this container (NVIDIA_DRIVER_CAPABILITIES {current})"
        ))
    });
    Observations::all(library.into_iter().chain(smi), || {
        Observations::ok(format!("{} and nvidia-smi found", cuda.driver_library.as_deref().unwrap_or_default()))
    })
}

pub(super) fn cuda_version(start: &StartFacts<'_>) -> Observations {
    let image_cuda = start.environment.cuda_version.as_deref().or(start.cheap.cuda.toolkit.as_deref());
    let Some(image_cuda) = image_cuda else {
        return Observations::note("no CUDA toolkit found in the container; CUDA jobs need their own");
    };
    compare_cuda(start.inventory.read().cuda_driver(), image_cuda)
}

/// The newest CUDA release that the driver reports, or that the driver's version supports according to NVIDIA's release notes.
pub(super) fn newest_cuda(driver: &Driver) -> Option<String> {
    let by_version =
        || newest_major(driver.version.as_deref()?).filter(|major| *major > 0).map(|major| major.to_string());
    driver.cuda_version.clone().or_else(by_version)
}

/// Observes which CUDA release the driver supports, for a container without CUDA; `None` if the driver reports neither a CUDA release
/// nor a known version.
pub(crate) fn supported_cuda(driver: &Driver) -> Option<Observations> {
    let version = driver.version.as_deref().unwrap_or("of unknown version");
    match newest_cuda(driver) {
        Some(newest) => Some(Observations::ok(format!("driver {version} supports CUDA up to {newest}"))),
        None if newest_major(version).is_some() => Some(Observations::warn(
            format!("driver {version} is too old for CUDA 11"),
            format!(
                "CUDA 11 needs driver {}, CUDA 12 needs {}, CUDA 13 needs {}",
                oldest_driver(11),
                oldest_driver(12),
                oldest_driver(13)
            ),
            "install a newer driver on the host",
        )),
        None => None,
    }
}

/// Compares the driver with the container's CUDA.
pub(crate) fn compare_cuda(driver: Option<&Driver>, image_cuda: &str) -> Observations {
    let supported = driver.and_then(|driver| Some((newest_cuda(driver)?, driver.version.as_deref())));
    let Some((newest, version)) = supported else {
        return Observations::note(format!("CUDA {image_cuda} in the container; no driver reports a CUDA version"));
    };
    let version = version.unwrap_or("of unknown version");
    let major = |release: &str| release.split('.').next()?.trim().parse::<u32>().ok();
    let (Some(required_major), Some(supported_major)) = (major(image_cuda), major(&newest)) else {
        return Observations::note(format!("CUDA {image_cuda} in the container, driver supports CUDA {newest}"));
    };
    if required_major <= supported_major {
        return Observations::ok(format!(
            "CUDA {image_cuda} in the container, driver {version} supports CUDA up to {newest}"
        ));
    }
    Observations::fail(
        format!("CUDA {image_cuda} in the container, driver {version} supports CUDA up to {newest}"),
        format!("CUDA {required_major} requires driver {} or newer", oldest_driver(required_major)),
        format!("install a newer driver on the host, or use an image with CUDA {supported_major}"),
    )
}

pub(super) fn visible_devices(start: &StartFacts<'_>) -> Observations {
    let Some(list) = start.environment.cuda_visible_devices.as_deref() else {
        return Observations::ok(
            "CUDA_VISIBLE_DEVICES is not set outside of jobs; Slurm sets it in jobs with NVIDIA GPUs",
        );
    };
    let gpus = start.inventory.read().cuda_gpus().filter(|gpu| gpu.is_usable()).count();
    let missing: Vec<&str> =
        list.split(',').map(str::trim).filter(|id| id.parse::<usize>().is_ok_and(|id| id >= gpus)).collect();
    if missing.is_empty() {
        return Observations::note(format!(
            "CUDA_VISIBLE_DEVICES={list} in the container's environment applies outside of jobs"
        ));
    }
    Observations::usual_warning(format!(
        "CUDA_VISIBLE_DEVICES={list} in the container's environment, but there {}",
        gpu_range(gpus)
    ))
}

fn gpu_range(gpus: usize) -> String {
    match gpus {
        0 => "is no usable NVIDIA GPU".to_owned(),
        1 => "is only GPU 0".to_owned(),
        gpus => format!("are only GPUs 0 to {}", gpus - 1),
    }
}
