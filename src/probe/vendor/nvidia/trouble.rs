//! A finding for each way in which NVML can fail: cause and fix.

use super::NvmlProbeError;
use super::nvml::NvmlFailure;
use super::request::Request;
use model::inventory::{Finding, Kind, Severity};
use sys::sandbox::SandboxError;

/// The finding about a failure of NVML, with the consequence and the fix. `gpus` is the number of GPUs found without NVML; `is_stuck` means
/// that the probe of the kernel's files and the device files failed or timed out, too.
pub(super) fn finding(why: &NvmlProbeError, request: &Request, gpus: usize, is_stuck: bool) -> Finding {
    let consequence = match gpus {
        _ if is_stuck => "the probe of /proc and the device files failed, too, so no NVIDIA GPU is used",
        0 => "no NVIDIA GPU is visible without it",
        _ => "the GPUs are listed from /proc and /dev, without memory size, compute capability and NVLinks",
    };
    let (cause, fix) = match (why, request.utility()) {
        (NvmlProbeError::Nvml(NvmlFailure::LibraryMissing(_)), Some(false)) => NO_UTILITY,
        (NvmlProbeError::Nvml(NvmlFailure::LibraryMissing(_)), Some(true)) => NO_RUNTIME,
        (NvmlProbeError::Nvml(failure), _) => explain_nvml_failure(failure),
        (NvmlProbeError::Sandbox(why), _) => explain_sandbox_error(why),
    };
    let severity = if is_stuck { Severity::Error } else { Severity::Warning };
    let what = format!("NVIDIA's management library (NVML) failed: {why}; {consequence}");
    Finding::new(kind(why), severity, what, cause, fix)
}

fn kind(why: &NvmlProbeError) -> Kind {
    let NvmlProbeError::Nvml(failure) = why else { return Kind::DriverFails };
    match failure {
        NvmlFailure::LibraryMissing(_) | NvmlFailure::LibraryBroken(_) => Kind::NvmlLibrary,
        NvmlFailure::VersionMismatch => Kind::NvmlVersions,
        NvmlFailure::DriverNotLoaded => Kind::DriverNotLoaded,
        NvmlFailure::UnknownError { .. } | NvmlFailure::NoPermission { .. } => Kind::NvmlRefuses,
        NvmlFailure::Failed { .. } | NvmlFailure::ImpossibleCount(_) => Kind::DriverFails,
    }
}

fn explain_nvml_failure(failure: &NvmlFailure) -> (&'static str, &'static str) {
    match failure {
        NvmlFailure::LibraryMissing(_) => (
            "the NVIDIA container runtime mounts libnvidia-ml.so.1 only with the driver capability \"utility\"",
            "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility and the NVIDIA runtime (--gpus all)",
        ),
        NvmlFailure::LibraryBroken(_) => (
            "the file is damaged, empty (in a committed image) or for another architecture, or needs a library that is missing in this container",
            "install the library that the message names, or remove copies of libnvidia-ml.so.1 from the image",
        ),
        NvmlFailure::VersionMismatch => (
            "the host's driver was updated and the old kernel module is still loaded, or the image contains its own library",
            "reload the NVIDIA kernel module or reboot the host, then re-create the container; or remove libnvidia-ml.so.1 from the image",
        ),
        NvmlFailure::DriverNotLoaded => (
            "no NVIDIA driver is loaded on the host, or this container has the library but no device",
            "run nvidia-smi on the host; if it works there, start the container with --gpus all",
        ),
        NvmlFailure::UnknownError { .. } => (
            "probably the container's device rules were rewritten (systemctl daemon-reload on the host)",
            "re-create the container (docker compose up --force-recreate); a restart is not enough",
        ),
        NvmlFailure::NoPermission { .. } => (
            "probably the container cannot open /dev/nvidiactl",
            "start the container with --gpus all; do not pass single device files",
        ),
        NvmlFailure::Failed { .. } => (
            "the driver reports a fault",
            "run nvidia-smi on the host and check NVRM messages there (dmesg | grep -i nvrm)",
        ),
        NvmlFailure::ImpossibleCount(_) => FOREIGN_LIBRARY,
    }
}

fn explain_sandbox_error(why: &SandboxError) -> (&'static str, &'static str) {
    match why {
        SandboxError::TimedOut(_) => (
            "the driver hangs: a GPU failed or is being reset, or persistence mode is off and the driver is initializing many GPUs",
            "check NVRM and Xid messages on the host (dmesg); enable nvidia-persistenced, or reboot the host",
        ),
        SandboxError::Crashed(_) => (
            "the library and the kernel driver do not match, or the library is damaged",
            "run nvidia-smi on the host; if it crashes, re-install the driver there; otherwise remove copies of libnvidia-ml.so.1 from the image",
        ),
        SandboxError::Exited(_) | SandboxError::Malformed(_) => FOREIGN_LIBRARY,
        SandboxError::NotStarted(_) | SandboxError::Unreadable(_) => SandboxError::NO_PROCESS,
    }
}

const NO_UTILITY: (&str, &str) = (
    "NVIDIA_DRIVER_CAPABILITIES does not contain \"utility\", so the NVIDIA container runtime does not mount libnvidia-ml.so.1",
    "create the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
);

const NO_RUNTIME: (&str, &str) = (
    "only the NVIDIA container runtime uses NVIDIA_DRIVER_CAPABILITIES, and probably another runtime started the container",
    "start the container with the NVIDIA runtime (docker run --gpus all) and without --device /dev/nvidiaN",
);

const FOREIGN_LIBRARY: (&str, &str) = (
    "the library is damaged or not NVIDIA's",
    "remove copies of libnvidia-ml.so.1 from the image, and check SLURMINIT_NVML_LIBRARY",
);

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(failure: NvmlFailure, capabilities: Option<&str>) -> Finding {
        let request = Request { capabilities: capabilities.map(str::to_owned), ..Request::default() };
        finding(&NvmlProbeError::Nvml(failure), &request, 2, false)
    }

    #[test]
    fn consequence_depends_on_what_is_left_without_nvml() {
        let why = NvmlProbeError::Sandbox(SandboxError::Exited(1));
        let what = |gpus, is_stuck| {
            let finding = finding(&why, &Request::default(), gpus, is_stuck);
            assert_eq!(finding.kind, Kind::DriverFails);
            (finding.severity, finding.what)
        };
        for (gpus, is_stuck, severity, text) in [
            (0, false, Severity::Warning, "no NVIDIA GPU is visible"),
            (2, false, Severity::Warning, "listed from /proc"),
            (2, true, Severity::Error, "failed, too"),
            (0, true, Severity::Error, "failed, too"),
        ] {
            let actual = what(gpus, is_stuck);
            assert!(actual.0 == severity && actual.1.contains(text), "{gpus} {is_stuck}: {actual:?}");
        }
    }

    #[test]
    fn missing_library_is_explained_by_requested_capabilities() {
        let fix = |capabilities| failed(NvmlFailure::LibraryMissing("x".to_owned()), capabilities).fix;
        let (none, without, with) = (fix(None), fix(Some("compute")), fix(Some("compute,utility")));
        assert!(
            without.contains("NVIDIA_DRIVER_CAPABILITIES") && with.contains("without --device"),
            "{without}; {with}"
        );
        assert!(none != without && none != with);
    }

    #[test]
    fn kind_follows_failure_of_nvml() {
        let call = || "nvmlInit_v2()".to_owned();
        for (failure, kind) in [
            (NvmlFailure::LibraryBroken("x".to_owned()), Kind::NvmlLibrary),
            (NvmlFailure::LibraryMissing("x".to_owned()), Kind::NvmlLibrary),
            (NvmlFailure::VersionMismatch, Kind::NvmlVersions),
            (NvmlFailure::DriverNotLoaded, Kind::DriverNotLoaded),
            (NvmlFailure::UnknownError { call: call() }, Kind::NvmlRefuses),
            (NvmlFailure::NoPermission { call: call(), error: "x".to_owned() }, Kind::NvmlRefuses),
            (NvmlFailure::Failed { call: call(), error: "x".to_owned() }, Kind::DriverFails),
            (NvmlFailure::ImpossibleCount(9999), Kind::DriverFails),
        ] {
            assert_eq!(failed(failure, None).kind, kind);
        }
    }
}
