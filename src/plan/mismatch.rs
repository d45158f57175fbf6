//! Compares the GPUs that the image was built for with those that are visible. Each combination has its own message.

use config::{Config, GpuType, OnMismatch};
use model::exit_code;
use model::inventory::{Finding, Gpu, Inventory, Kind, Obstacle, Platform, Severity, Traits, Vendor};

use super::Refusal;

/// The vendors of visible GPUs, including GPUs that are still starting, have failed or are excluded. Integrated GPUs that
/// jobs do not get are ignored, because the image was not built for them.
fn visible(inventory: &Inventory) -> Vec<Vendor> {
    let is_visible = |gpu: &&Gpu| {
        gpu.access.obstacle().is_none_or(|obstacle| obstacle.is_present() && obstacle != Obstacle::Integrated)
    };
    let has = |vendor: &Vendor| inventory.gpus.iter().filter(is_visible).any(|gpu| gpu.vendor == *vendor);
    Vendor::ALL.into_iter().filter(has).collect()
}

/// Compares the image's GPU type with the visible GPUs, and rejects a mismatch if `on_mismatch = "fail"`.
pub(super) fn check(config: &Config, inventory: &Inventory) -> Result<Option<Finding>, Refusal> {
    let Some(expected) = config.gpu_type else { return Ok(None) };
    let found = visible(inventory);
    let Some(mut mismatch) = compare(expected, &found) else { return Ok(None) };
    if found.is_empty() {
        mismatch = with_platform_cause(mismatch, expected, inventory.platform);
    }
    // An agent that runs for the memory guard or for directory limits checks GPUs, too.
    if expected == GpuType::None && !config.runs_agent() {
        mismatch.cause.push_str(", and no agent checks the health of the GPUs");
    }
    match config.on_mismatch {
        OnMismatch::Warn => Ok(Some(mismatch)),
        OnMismatch::Fail => {
            let finding = Finding { severity: Severity::Error, ..mismatch };
            Err(Refusal { exit_code: exit_code::MISMATCH, finding })
        }
    }
}

/// Replaces cause and fix by the platform's, if the platform passes GPUs to containers in only one way or not at all.
fn with_platform_cause(finding: Finding, expected: GpuType, platform: Platform) -> Finding {
    let Some(vendor) = expected.vendor() else { return finding };
    let (cause, fix) = match platform {
        Platform::Linux => return finding,
        Platform::DockerDesktop => (
            "Docker Desktop's virtual machine (macOS, Linux, or Windows without WSL2) cannot pass a GPU to a container; \
             a Mac's GPU supports neither CUDA nor ROCm",
            "use Docker Engine on Linux, or Windows with WSL2 and an NVIDIA GPU; to run without GPUs, set GPU_TYPE=none",
        ),
        Platform::Wsl2 => vendor.traits().mismatch.no_gpu_in_wsl.unwrap_or((
            "WSL2 supports only NVIDIA GPUs: AMD's kernel interface (KFD) is missing there, as are Intel's \
             render nodes",
            "use native Linux, or an NVIDIA GPU; to run without GPUs, set GPU_TYPE=none",
        )),
    };
    Finding { cause: cause.to_owned(), fix: fix.to_owned(), ..finding }
}

/// Compares the image's GPU type with the vendors of the visible GPUs; `None` if they match.
fn compare(expected: GpuType, found: &[Vendor]) -> Option<Finding> {
    let own = expected.vendor();
    let others: Vec<&Traits> =
        found.iter().filter(|vendor| Some(**vendor) != own).map(|vendor| vendor.traits()).collect();
    let list = |of: fn(&Traits) -> &'static str, between: &str| {
        others.iter().map(|it| of(it)).collect::<Vec<_>>().join(between)
    };
    let makers = list(|vendor| vendor.maker, " and ");
    let lacks = match others.as_slice() {
        [vendor] => vendor.mismatch.missing_software,
        _ => "the image has no libraries for these GPUs except those that the container runtime mounts",
    };
    let (what, cause, fix) = match (own.map(Vendor::traits), others.first()) {
        (Some(own), None) if found.is_empty() => (
            format!("the image was built for {}, but no usable GPU is visible", own.maker),
            own.mismatch.no_gpu_cause.to_owned(),
            format!(
                "{}; check that `{}` works on the host; to run without GPUs, set GPU_TYPE=none",
                own.mismatch.start, own.mismatch.tool
            ),
        ),
        (_, None) => return None,
        (None, Some(Traits { name, .. })) => (
            format!("the image was built without GPU support, but {makers} GPUs are visible"),
            format!(
                "an image without GPU support was started on a GPU machine; jobs can request the \
                 GPUs, but {lacks}"
            ),
            match others.len() {
                1 => format!(
                    "rebuild with `docker build --build-arg GPU_TYPE={name}`, or set GPU_TYPE={name} if the image contains the required software"
                ),
                _ => format!(
                    "rebuild with `docker build --build-arg GPU_TYPE={}`, and pass only the GPUs of that vendor to the container",
                    list(|vendor| vendor.name, "` or `GPU_TYPE=")
                ),
            },
        ),
        (Some(own), Some(_)) if others.len() < found.len() => (
            format!("the image was built for {}, but {makers} GPUs are also visible", own.maker),
            format!(
                "the container has GPUs of several vendors; {lacks}, so a job that requests any GPU may get one that it \
                 cannot use"
            ),
            format!(
                "{}, or request GPUs by type in jobs (--gres=gpu:TYPE:N)",
                list(|vendor| vendor.mismatch.withhold, "; ")
            ),
        ),
        (Some(own), Some(Traits { name, .. })) => (
            format!("the image was built for {}, but only {makers} GPUs are visible", own.maker),
            format!("the image was started on a machine with {makers} GPUs; jobs can request them, but {lacks}"),
            format!("rebuild with `docker build --build-arg GPU_TYPE={name}`"),
        ),
    };
    Some(Finding::warning(Kind::GpuType, what, cause, fix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::Access;

    #[test]
    fn each_gpu_type_mismatch_has_unique_message() {
        let mut table = String::new();
        let mut messages = std::collections::BTreeSet::new();
        let gpu_types = [GpuType::None, GpuType::Nvidia, GpuType::Amd, GpuType::Intel];
        let machines: [&[Vendor]; 5] =
            [&[], &[Vendor::Nvidia], &[Vendor::Amd], &[Vendor::Intel], &[Vendor::Nvidia, Vendor::Amd]];
        for expected in gpu_types {
            for found in machines {
                let cell = match compare(expected, found) {
                    None => "they agree".to_owned(),
                    Some(Finding { what, cause, fix, .. }) => {
                        assert!(messages.insert(what.clone()), "duplicate message: {what}");
                        format!("{what}\n    cause: {cause}\n    fix: {fix}")
                    }
                };
                table.push_str(&format!("GPU_TYPE={} and {found:?} visible: {cell}\n", expected.as_str()));
            }
        }
        assert_eq!(messages.len(), 16);
        // docker looks up a group's name in the image, which has no group `render`.
        let groups: Vec<&str> = table.split("--group-add ").skip(1).collect();
        assert!(!groups.is_empty() && groups.iter().all(|rest| rest.starts_with("$(stat -c %g /dev/")), "{table}");
        insta::assert_snapshot!(table);
    }

    #[test]
    fn message_for_image_without_gpu_support_states_whether_agent_checks_gpus() {
        let gpu = Gpu { access: Access::Usable, ..Gpu::default() };
        let inventory = Inventory { gpus: vec![gpu], ..Inventory::default() };
        for (toml, says) in [
            ("gpu_type = 'none'\n", true),
            ("gpu_type = 'none'\n[agent]\ninterval = 0\n", true),
            ("gpu_type = 'none'\n[memory]\nguard = true\n", false),
        ] {
            let config = Config::parse(toml, std::path::Path::new("x")).unwrap();
            let mismatch = check(&config, &inventory).unwrap().unwrap();
            assert_eq!(mismatch.cause.contains("no agent"), says, "{toml}: {mismatch}");
        }
    }

    #[test]
    fn names_platform_without_gpus_as_cause() {
        for (platform, expected, text) in [
            (Platform::DockerDesktop, GpuType::Nvidia, "cannot pass a GPU"),
            (Platform::DockerDesktop, GpuType::Amd, "cannot pass a GPU"),
            (Platform::Wsl2, GpuType::Amd, "WSL2 supports only"),
            (Platform::Wsl2, GpuType::Nvidia, "Windows has no NVIDIA driver"),
            (Platform::Linux, GpuType::Amd, "/dev/kfd"),
        ] {
            let config = Config { gpu_type: Some(expected), ..Config::default() };
            let mismatch = check(&config, &Inventory { platform, ..Inventory::default() }).unwrap().unwrap();
            assert!(mismatch.cause.contains(text), "{platform:?}: {}", mismatch.cause);
        }
    }

    /// A slow or failed GPU has a finding of its own, which says why jobs cannot use it.
    #[test]
    fn gpu_that_cannot_be_used_now_is_no_mismatch() {
        let config = Config { gpu_type: Some(GpuType::Nvidia), on_mismatch: OnMismatch::Fail, ..Config::default() };
        let is_refused = |access: Access| {
            let gpu = Gpu { vendor: Vendor::Nvidia, access, ..Gpu::default() };
            check(&config, &Inventory { gpus: vec![gpu], ..Inventory::default() }).is_err()
        };
        assert!(!is_refused(Access::Usable));
        let refused: Vec<Obstacle> =
            Obstacle::ALL.into_iter().filter(|obstacle| is_refused(Access::unusable(*obstacle, ""))).collect();
        let absent = [
            Obstacle::NotGiven,
            Obstacle::Denied,
            Obstacle::Mode,
            Obstacle::NoDevice,
            Obstacle::NoDriver,
            Obstacle::Refused,
            Obstacle::Integrated,
        ];
        assert_eq!(refused, absent);
    }

    #[test]
    fn skips_check_without_gpu_type() {
        assert_eq!(check(&Config::default(), &Inventory::default()), Ok(None));
    }
}
