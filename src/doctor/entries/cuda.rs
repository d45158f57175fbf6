//! CUDA in the container, and what the host's driver supports.

use crate::facts::Start;
use model::inventory::{Driver, Gpu, Observations};

fn nvidia(start: &Start<'_>) -> bool {
    start.inventory.cuda_gpus().any(Gpu::is_usable)
}

pub(super) fn cuda_libraries(start: &Start<'_>) -> Observations {
    if !nvidia(start) {
        return Observations::note("no NVIDIA GPU here");
    }
    if start.environment.is_demo {
        return Observations::note("simulated GPUs do not support CUDA");
    }
    let cuda = &start.cheap.cuda;
    let capabilities = start.environment.driver_capabilities.as_deref();
    let now = capabilities.map_or_else(|| "is not set".to_owned(), |now| format!("is {now}"));
    let repair = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...";
    let library = cuda.driver_library.is_none().then(|| {
        Observations::warn(
            "libcuda.so.1 not found in this container: CUDA programs find no GPU",
            format!(
                "the NVIDIA runtime mounts the library with the driver capability \"compute\" (NVIDIA_DRIVER_CAPABILITIES {now})"
            ),
            repair,
        )
    });
    let smi = (!cuda.has_smi).then(|| {
        Observations::hint(
            "nvidia-smi not found in this container",
            format!(
                "the NVIDIA runtime mounts the library with the driver capability \"utility\" (NVIDIA_DRIVER_CAPABILITIES {now})"
            ),
            repair,
        )
    });
    Observations::all(library.into_iter().chain(smi), || {
        Observations::ok(format!("{} and nvidia-smi found", cuda.driver_library.as_deref().unwrap_or_default()))
    })
}

/// The first driver release that each CUDA release needs.
fn oldest_driver(major: u32) -> &'static str {
    match major {
        ..=11 => "470.57.02",
        12 => "525.60.13",
        _ => "580",
    }
}

pub(super) fn cuda_version(start: &Start<'_>) -> Observations {
    let of_image = start.environment.cuda_version.as_deref().or(start.cheap.cuda.toolkit.as_deref());
    let Some(of_image) = of_image else {
        return Observations::note("no CUDA toolkit in the container; jobs use their own");
    };
    cuda_of(start.inventory.cuda_driver(), of_image)
}

/// The newest CUDA that the driver reports, or that its version supports according to NVIDIA's release notes.
pub(super) fn newest_cuda(driver: &Driver) -> Option<String> {
    let numbers = |text: &str| text.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>();
    let by_version = || {
        let version = numbers(driver.version.as_deref()?)?;
        let runs = |major: &u32| numbers(oldest_driver(*major)).is_some_and(|oldest| version >= oldest);
        [13, 12, 11].into_iter().find(runs).map(|major| major.to_string())
    };
    driver.cuda_version.clone().or_else(by_version)
}

/// The driver alone, when nothing in the container needs CUDA; `None` if it reports no version.
pub(crate) fn driver_alone(driver: &Driver) -> Option<Observations> {
    let version = driver.version.as_deref().unwrap_or("of unknown version");
    let is_version = version.split('.').all(|part| part.parse::<u32>().is_ok());
    match newest_cuda(driver) {
        Some(most) => Some(Observations::ok(format!("driver {version} supports CUDA up to {most}"))),
        None if is_version => Some(Observations::warn(
            format!("driver {version} is too old for CUDA 11"),
            format!(
                "CUDA 11 needs {}, CUDA 12 {}, CUDA 13 {}",
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
pub(crate) fn cuda_of(driver: Option<&Driver>, of_image: &str) -> Observations {
    let runs = driver.and_then(|driver| Some((newest_cuda(driver)?, driver.version.as_deref())));
    let Some((most, version)) = runs else {
        return Observations::note(format!(
            "CUDA {of_image} in the container; the driver does not report its CUDA version"
        ));
    };
    let version = version.unwrap_or("of unknown version");
    let (Some(wanted), Some(can)) = (major(of_image), major(&most)) else {
        return Observations::note(format!("CUDA {of_image} in the container, driver supports CUDA {most}"));
    };
    if wanted <= can {
        return Observations::ok(format!(
            "CUDA {of_image} in the container, driver {version} supports CUDA up to {most}"
        ));
    }
    Observations::fail(
        format!("CUDA {of_image} in the container, driver {version} supports CUDA up to {most}"),
        format!("CUDA {wanted} requires driver {} or newer", oldest_driver(wanted)),
        format!("install a newer driver on the host, or use an image with CUDA {can}"),
    )
}

fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.trim().parse().ok()
}

pub(super) fn visible_devices(start: &Start<'_>) -> Observations {
    let Some(list) = start.environment.cuda_visible_devices.as_deref() else {
        return Observations::ok("CUDA_VISIBLE_DEVICES is not set outside of jobs; Slurm sets it in each");
    };
    let gpus = start.inventory.cuda_gpus().filter(|gpu| gpu.is_usable()).count();
    let missing: Vec<&str> =
        list.split(',').map(str::trim).filter(|id| id.parse::<usize>().is_ok_and(|id| id >= gpus)).collect();
    let repair = "remove CUDA_VISIBLE_DEVICES from the container's environment; request GPUs with --gres=gpu:1 and use cuda:0 in jobs";
    if missing.is_empty() {
        return Observations::note(format!(
            "CUDA_VISIBLE_DEVICES={list} in the container's environment applies outside of jobs"
        ));
    }
    Observations::warn(
        format!("CUDA_VISIBLE_DEVICES={list} in the container's environment, but there {}", there_are(gpus)),
        "GPUs are numbered from 0 in every container, regardless of their host numbers",
        repair,
    )
}

fn there_are(gpus: usize) -> String {
    match gpus {
        0 => "is no NVIDIA GPU".to_owned(),
        1 => "is only GPU 0".to_owned(),
        gpus => format!("are GPUs 0 to {}", gpus - 1),
    }
}
