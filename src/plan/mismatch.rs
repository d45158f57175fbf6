//! What the image was built for against what is visible: every cell of the table has its own words.

use crate::config::{Config, GpuType, OnMismatch};
use crate::exit_code;
use crate::inventory::{Finding, Gpu, Inventory, Obstacle, Platform, Severity, Vendor};

use super::Refusal;

/// Whose GPUs this container can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nobody's.
    None,
    /// NVIDIA's.
    Nvidia,
    /// AMD's.
    Amd,
    /// NVIDIA's and AMD's.
    Both,
}

impl Found {
    fn of(inventory: &Inventory) -> Self {
        // What the operator leaves out is visible all the same.
        let is_visible = |gpu: &&Gpu| gpu.is_usable() || gpu.access.obstacle() == Some(Obstacle::NotChosen);
        let has = |vendor| inventory.gpus.iter().filter(is_visible).any(|gpu| gpu.vendor == vendor);
        match (has(Vendor::Nvidia), has(Vendor::Amd)) {
            (false, false) => Self::None,
            (true, false) => Self::Nvidia,
            (false, true) => Self::Amd,
            (true, true) => Self::Both,
        }
    }
}

/// The image and the GPUs differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What was expected and found, the likely cause, the repair.
    pub finding: Finding,
}

const GIVE_NVIDIA: &str = "docker run --gpus all ... (compose: deploy.resources.reservations.devices with driver nvidia), \
    after `nvidia-ctk runtime configure --runtime=docker` on the host";
const GIVE_AMD: &str = "docker run --device /dev/kfd --device /dev/dri --group-add $(stat -c %g /dev/kfd) \
    --security-opt seccomp=unconfined ...";

/// Compares, and refuses the start where the operator wants that.
pub(super) fn judge(config: &Config, inventory: &Inventory) -> Result<Option<Mismatch>, Refusal> {
    let Some(expected) = config.gpu_type else { return Ok(None) };
    let found = Found::of(inventory);
    let Some(mut mismatch) = compare(expected, found) else { return Ok(None) };
    if found == Found::None {
        mismatch.finding = of_platform(mismatch.finding, expected, inventory.platform);
    }
    match config.on_mismatch {
        OnMismatch::Warn => Ok(Some(mismatch)),
        OnMismatch::Fail => {
            let finding = Finding { severity: Severity::Error, ..mismatch.finding };
            Err(Refusal { exit_code: exit_code::MISMATCH, finding })
        }
    }
}

/// Where a GPU cannot be in a container at all, or only in one way, that is the cause.
fn of_platform(finding: Finding, expected: GpuType, platform: Platform) -> Finding {
    let (cause, repair) = match (platform, expected) {
        (Platform::Linux, _) | (_, GpuType::None) => return finding,
        (Platform::DockerDesktop, _) => (
            "this is Docker Desktop's own virtual machine (macOS, or Windows without WSL2), which passes no GPU on; a Mac's GPU \
             speaks Metal, and neither CUDA nor ROCm",
            "use a machine with Linux, or Windows with WSL2 and an NVIDIA GPU; for a cluster without GPUs set GPU_TYPE=none",
        ),
        (Platform::Wsl2, GpuType::Nvidia) => (
            "the container was started without GPUs, or Windows has no NVIDIA driver that serves WSL2",
            "docker run --gpus all ...; `nvidia-smi` in WSL2 must work: install the current driver in Windows (no Linux driver in \
             WSL2), then `wsl --update`; without GPUs on purpose, set GPU_TYPE=none",
        ),
        (Platform::Wsl2, GpuType::Amd) => (
            "this is WSL2, where AMD's GPUs lack their kernel interface (KFD), so jobs cannot be given one",
            "use Linux itself, or an NVIDIA GPU; for a cluster without GPUs set GPU_TYPE=none",
        ),
    };
    Finding { cause: cause.to_owned(), repair: repair.to_owned(), ..finding }
}

/// The table: three kinds of image against four kinds of machine. `None` where they agree.
pub(super) fn compare(expected: GpuType, found: Found) -> Option<Mismatch> {
    let (what, cause, repair) = match (expected, found) {
        (GpuType::None, Found::None) | (GpuType::Nvidia, Found::Nvidia) | (GpuType::Amd, Found::Amd) => return None,
        (GpuType::None, Found::Nvidia) => (
            "the image was built without GPU support, and NVIDIA GPUs are visible",
            "the container was started on a GPU machine with an image for machines without one; jobs can ask for the \
             GPUs, but nothing of NVIDIA's is in the image beyond what the container runtime brings",
            "rebuild with `docker build --build-arg GPU_TYPE=nvidia`, or set GPU_TYPE=nvidia if the image has all it needs"
                .to_owned(),
        ),
        (GpuType::None, Found::Amd) => (
            "the image was built without GPU support, and AMD GPUs are visible",
            "the container was started on a GPU machine with an image for machines without one; jobs can ask for the \
             GPUs, but the image has no ROCm to use them",
            "rebuild with `docker build --build-arg GPU_TYPE=amd`, or set GPU_TYPE=amd if the image has all it needs"
                .to_owned(),
        ),
        (GpuType::None, Found::Both) => (
            "the image was built without GPU support, and both NVIDIA and AMD GPUs are visible",
            "the container was started on a GPU machine with an image for machines without one; jobs can ask for the \
             GPUs, but the image has no libraries for them beyond what the container runtime brings",
            "rebuild with `docker build --build-arg GPU_TYPE=nvidia` (or amd), and give the container only those GPUs"
                .to_owned(),
        ),
        (GpuType::Nvidia, Found::None) => (
            "the image was built for NVIDIA, and no usable GPU is visible",
            "the container was started without GPUs, the NVIDIA container toolkit is not set up for Docker, or the \
             host's driver is not loaded; jobs that ask for a GPU are refused",
            format!("{GIVE_NVIDIA}; `nvidia-smi` on the host must work; without GPUs on purpose, set GPU_TYPE=none"),
        ),
        (GpuType::Nvidia, Found::Amd) => (
            "the image was built for NVIDIA, and only AMD GPUs are visible",
            "the image was moved to a machine with AMD GPUs; jobs can ask for them, but the image has no ROCm to use them",
            "rebuild with `docker build --build-arg GPU_TYPE=amd`".to_owned(),
        ),
        (GpuType::Nvidia, Found::Both) => (
            "the image was built for NVIDIA, and AMD GPUs are visible too",
            "the machine has both, and the container was given both; the image has no ROCm for the AMD GPUs, so a job \
             that asks for any GPU may get one that it cannot use",
            "do not pass /dev/kfd and /dev/dri to this container, or let jobs ask for --gres=gpu:nvidia:N".to_owned(),
        ),
        (GpuType::Amd, Found::None) => (
            "the image was built for AMD, and no usable GPU is visible",
            "the container was started without /dev/kfd and /dev/dri, its processes are not in the \
             group of these files, or the host's amdgpu driver is not loaded; jobs that ask for a GPU are refused",
            format!("{GIVE_AMD}; `rocm-smi` on the host must work; without GPUs on purpose, set GPU_TYPE=none"),
        ),
        (GpuType::Amd, Found::Nvidia) => (
            "the image was built for AMD, and only NVIDIA GPUs are visible",
            "the image was moved to a machine with NVIDIA GPUs; jobs can ask for them, but the image has nothing of \
             NVIDIA's beyond what the container runtime brings",
            "rebuild with `docker build --build-arg GPU_TYPE=nvidia`".to_owned(),
        ),
        (GpuType::Amd, Found::Both) => (
            "the image was built for AMD, and NVIDIA GPUs are visible too",
            "the machine has both, and the container was given both; the image has nothing of NVIDIA's, so a job that \
             asks for any GPU may get one that it cannot use",
            "start the container without --gpus (NVIDIA_VISIBLE_DEVICES=void), or let jobs ask for --gres=gpu:amd:N"
                .to_owned(),
        ),
    };
    let finding = Finding { severity: Severity::Warning, what: what.to_owned(), cause: cause.to_owned(), repair };
    Some(Mismatch { finding })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_of_the_table_has_its_own_words() {
        let mut table = String::new();
        let mut words = std::collections::BTreeSet::new();
        for expected in [GpuType::None, GpuType::Nvidia, GpuType::Amd] {
            for found in [Found::None, Found::Nvidia, Found::Amd, Found::Both] {
                let cell = match compare(expected, found) {
                    None => "they agree".to_owned(),
                    Some(Mismatch { finding: Finding { what, cause, repair, .. } }) => {
                        assert!(words.insert(what.clone()), "{what} is there twice");
                        format!("{what}\n    cause: {cause}\n    repair: {repair}")
                    }
                };
                table.push_str(&format!("GPU_TYPE={} and {found:?} visible: {cell}\n", expected.as_str()));
            }
        }
        assert_eq!(words.len(), 9);
        // A name would be looked up in the image, which has no group render.
        let groups: Vec<&str> = table.split("--group-add ").skip(1).collect();
        assert!(!groups.is_empty() && groups.iter().all(|rest| rest.starts_with("$(stat -c %g /dev/kfd)")), "{table}");
        insta::assert_snapshot!(table);
    }

    #[test]
    fn where_a_gpu_cannot_be_that_is_the_cause() {
        for (platform, expected, words) in [
            (Platform::DockerDesktop, GpuType::Nvidia, "Metal"),
            (Platform::DockerDesktop, GpuType::Amd, "Metal"),
            (Platform::Wsl2, GpuType::Amd, "this is WSL2"),
            (Platform::Wsl2, GpuType::Nvidia, "Windows has no NVIDIA driver"),
            (Platform::Linux, GpuType::Amd, "/dev/kfd"),
        ] {
            let config = Config { gpu_type: Some(expected), ..Config::default() };
            let mismatch = judge(&config, &Inventory { platform, ..Inventory::default() }).unwrap().unwrap();
            assert!(mismatch.finding.cause.contains(words), "{platform:?}: {}", mismatch.finding.cause);
        }
    }

    #[test]
    fn without_a_word_from_the_image_nothing_is_compared() {
        assert_eq!(judge(&Config::default(), &Inventory::default()), Ok(None));
    }
}
