//! The container's request to NVIDIA's runtime, which may explain missing GPUs.
//!
//! The variables prove neither that there are GPUs nor that there are none. With CDI (and in Kubernetes) the runtime sets
//! `NVIDIA_VISIBLE_DEVICES=void` while it adds GPUs, and NVIDIA's base images set `all` on every machine (container
//! toolkit documentation, "GPU Enumeration").

use model::inventory::{Access, Finding, Gpu, Kind};

/// NVIDIA_VISIBLE_DEVICES and NVIDIA_DRIVER_CAPABILITIES of the container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// `NVIDIA_VISIBLE_DEVICES`.
    pub devices: Option<String>,
    /// `NVIDIA_DRIVER_CAPABILITIES`.
    pub capabilities: Option<String>,
}

impl Request {
    /// The variables of this process.
    pub fn from_environment() -> Self {
        let variable = |name| std::env::var_os(name).map(|value| value.to_string_lossy().trim().to_owned());
        Self { devices: variable("NVIDIA_VISIBLE_DEVICES"), capabilities: variable("NVIDIA_DRIVER_CAPABILITIES") }
    }

    /// Whether NVIDIA's library was requested; `None` if the variable is unset or empty, so that the runtime's default applies.
    pub(super) fn utility(&self) -> Option<bool> {
        let capabilities = self.capabilities.as_deref().filter(|text| !text.is_empty())?;
        Some(capabilities.split(',').any(|capability| matches!(capability.trim(), "utility" | "all")))
    }

    /// Why requested GPUs are missing, or why there are none.
    pub(super) fn finding(&self, gpus: &[Gpu]) -> Option<Finding> {
        let requested = self.devices.as_deref().filter(|text| !text.is_empty())?;
        let usable = gpus.iter().filter(|gpu| gpu.is_usable()).count();
        let shown = shown(requested);
        match requested {
            "void" | "none" if gpus.is_empty() => Some(Finding::info(
                Kind::GpuNotGiven,
                format!("NVIDIA_VISIBLE_DEVICES={shown} requests no NVIDIA GPU, and none is available"),
                "the container was started without NVIDIA GPUs, deliberately, or because its image requests none",
                "no action if intended; otherwise use `docker run --gpus all`, or in Kubernetes the limit nvidia.com/gpu: 1",
            )),
            "void" | "none" => None,
            // A path is a directory in which each requested GPU is a mounted file (container toolkit, devices as volume mounts).
            _ if requested.starts_with('/') => None,
            _ if gpus.is_empty() => Some(Finding::info(
                Kind::GpuNotGiven,
                format!("NVIDIA_VISIBLE_DEVICES={shown} requests NVIDIA GPUs, but none is available"),
                "only NVIDIA's container runtime uses this variable, which many images set; probably another runtime started the container",
                "use `docker run --gpus all`, or in Kubernetes the limit nvidia.com/gpu: 1; if no GPUs are intended, set NVIDIA_VISIBLE_DEVICES=void",
            )),
            "all" => None,
            _ => missing(requested, gpus, usable).map(|what| {
                Finding::warning(
                    Kind::GpuNotGiven,
                    format!("NVIDIA_VISIBLE_DEVICES={shown}: {what}"),
                    "the machine does not have all of these GPUs, or this container cannot use some of them",
                    "run `nvidia-smi -L` on the host to list the GPUs, correct NVIDIA_VISIBLE_DEVICES, then re-create the container",
                )
            }),
        }
    }
}

/// A description of the requested GPUs that this container cannot use; `None` if none is known to be missing.
fn missing(requested: &str, gpus: &[Gpu], usable: usize) -> Option<String> {
    // CDI's spelling: nvidia.com/gpu=0.
    let name = |item: &str| item.trim().rsplit('=').next().unwrap_or_default().to_owned();
    let mut items: Vec<String> = requested.split(',').map(name).filter(|item| !item.is_empty()).collect();
    items.sort();
    items.dedup();
    if items.iter().any(|item| item == "all") {
        return None;
    }
    let (uuids, numbers): (Vec<&String>, Vec<&String>) =
        items.iter().partition(|item| item.starts_with("GPU-") || item.starts_with("MIG-"));
    let absent: Vec<String> = uuids.iter().filter(|uuid| !is_available(uuid, gpus)).map(|uuid| shown(uuid)).collect();
    if !absent.is_empty() {
        return Some(format!("{} not usable in this container", absent.join(", ")));
    }
    // The driver numbers GPUs from 0 inside the container, so only the count can be compared. `0:1` is a MIG instance.
    let instances = gpus.iter().filter_map(|gpu| gpu.mig.as_ref()).flatten();
    let instances = instances.filter(|instance| instance.access == Access::Usable).count();
    let (requested_count, available) = (numbers.len() + uuids.len(), usable.max(instances));
    let is_short = !numbers.is_empty() && available < requested_count;
    is_short.then(|| format!("only {available} of {requested_count} requested GPUs usable in this container"))
}

/// Whether a usable GPU, or an instance of one, has this UUID, or a UUID with this prefix. A device whose UUID is unknown counts as a match.
fn is_available(uuid: &str, gpus: &[Gpu]) -> bool {
    let matches = |own: &Option<String>| own.as_deref().is_none_or(|own| own.starts_with(uuid));
    gpus.iter().filter(|gpu| gpu.access == Access::Usable).any(|gpu| {
        let mut instances = gpu.mig.iter().flatten().filter(|instance| instance.access == Access::Usable);
        match uuid.starts_with("MIG-") {
            // The older form, MIG-GPU-UUID/GI/CI, is not compared and counts as a match.
            true => instances.any(|instance| matches(&instance.uuid)) || uuid.contains('/'),
            false => matches(&gpu.uuid),
        }
    })
}

/// The first 120 characters of the text, escaped.
fn shown(text: &str) -> String {
    text.chars().take(120).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vendor::nvidia::proc::unknown_gpu;
    use model::inventory::MigInstance;

    fn request(devices: &str) -> Request {
        Request { devices: Some(devices.to_owned()), capabilities: None }
    }

    /// Two GPUs; the second is in MIG mode.
    fn gpus() -> Vec<Gpu> {
        let instance = MigInstance {
            profile: None,
            uuid: Some("MIG-7".to_owned()),
            gpu_instance: None,
            compute_instance: None,
            memory_mib: None,
            device_files: Vec::new(),
            access: Access::Usable,
        };
        let first = Gpu { uuid: Some("GPU-aaaa".to_owned()), ..unknown_gpu(0) };
        vec![first, Gpu { uuid: Some("GPU-bbbb".to_owned()), mig: Some(vec![instance]), ..unknown_gpu(1) }]
    }

    fn finding(devices: &str, gpus: &[Gpu]) -> String {
        request(devices).finding(gpus).map(|finding| finding.what).unwrap_or_default()
    }

    #[test]
    fn satisfied_request_has_no_finding() {
        for devices in
            ["", "all", "void", "none", "0", "0,1", "GPU-aaaa", "GPU-a,MIG-7", "GPU-bbbb", "nvidia.com/gpu=all"]
        {
            assert_eq!(finding(devices, &gpus()), "", "{devices}");
        }
        assert_eq!(Request::default().finding(&[]), None);
        assert_eq!(finding("/var/run/nvidia-container-devices", &[]), "");
        assert_eq!(finding("GPU-cccc", &[unknown_gpu(0)]), "", "the GPU has no known UUID");
    }

    #[test]
    fn reports_reason_for_missing_gpus() {
        for (devices, gpus, expected) in [
            ("void", vec![], "requests no NVIDIA GPU"),
            ("none", vec![], "requests no NVIDIA GPU"),
            ("all", vec![], "requests NVIDIA GPUs, but none is available"),
            ("0", vec![], "requests NVIDIA GPUs, but none is available"),
            ("GPU-cccc,GPU-aaaa", gpus(), ": GPU-cccc not usable in this container"),
            ("MIG-8", gpus(), ": MIG-8 not usable in this container"),
            ("0,1,5", gpus(), "only 2 of 3 requested GPUs usable in this container"),
            ("nvidia.com/gpu=GPU-cccc", gpus(), ": GPU-cccc not"),
        ] {
            assert!(finding(devices, &gpus).contains(expected), "{devices}: {}", finding(devices, &gpus));
        }
    }

    #[test]
    fn capability_utility_mounts_library() {
        let utility = |text: &str| Request { devices: None, capabilities: Some(text.to_owned()) }.utility();
        assert_eq!(["compute", "compute,utility", "all", ""].map(utility), [Some(false), Some(true), Some(true), None]);
    }

    proptest::proptest! {
        #[test]
        fn finding_has_no_control_characters(value in "(?s).{0,200}") {
            for gpus in [vec![], gpus()] {
                let finding = finding(value.trim(), &gpus);
                proptest::prop_assert!(!finding.contains(char::is_control), "{finding:?}");
            }
        }
    }
}
