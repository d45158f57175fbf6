//! From what was seen to verdicts, each with its cause and its repair. PURE.

pub(crate) mod amd;
pub(crate) mod nvidia;

use super::choice::{GpuType, Selection};
use super::gpu_file::Wanted;
use super::passthrough::{self, Failure, Part, Trial};
use super::situation::{Compose, Engine, PlatformKind, Situation, Version};
use crate::inventory::{Finding, Severity};

/// The first compose that knows GPUs (`deploy.resources.reservations.devices`).
const OLDEST_COMPOSE: Version = Version(1, 28, 0);

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// It is as it must be.
    Good(String),
    /// Neither good nor bad.
    Note(String),
    /// It is not as it must be.
    Trouble(Finding),
}

impl Check {
    fn trouble(
        severity: Severity,
        what: impl Into<String>,
        cause: impl Into<String>,
        repair: impl Into<String>,
    ) -> Self {
        Self::Trouble(Finding { severity, what: what.into(), cause: cause.into(), repair: repair.into() })
    }

    fn error(what: impl Into<String>, cause: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::trouble(Severity::Error, what, cause, repair)
    }

    fn warning(what: impl Into<String>, cause: impl Into<String>, repair: impl Into<String>) -> Self {
        Self::trouble(Severity::Warning, what, cause, repair)
    }

    /// Whether it keeps the cluster from what this host could give.
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Trouble(finding) if finding.severity == Severity::Error)
    }
}

/// What a part of the report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the headings")]
pub enum Topic {
    Host,
    Docker,
    Nvidia,
    Amd,
}

impl Topic {
    /// The heading.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Host => "Host",
            Self::Docker => "Docker",
            Self::Nvidia => "NVIDIA",
            Self::Amd => "AMD",
        }
    }

    /// Whether it is of any consequence to somebody who wants GPUs of this type, or those that there are.
    fn concerns(self, gpu_type: Option<GpuType>) -> bool {
        match (self, gpu_type) {
            (_, None) | (Self::Docker, _) => true,
            (Self::Host, Some(gpu_type)) => gpu_type != GpuType::None,
            (Self::Nvidia, Some(gpu_type)) => gpu_type == GpuType::Nvidia,
            (Self::Amd, Some(gpu_type)) => gpu_type == GpuType::Amd,
        }
    }
}

/// A part of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// What it is about.
    pub topic: Topic,
    /// Its lines.
    pub checks: Vec<Check>,
}

/// The trials of both vendors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trials {
    /// NVIDIA's.
    pub nvidia: Trial,
    /// AMD's.
    pub amd: Trial,
}

/// All verdicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assessment {
    /// The report's parts, in order.
    pub sections: Vec<Section>,
    /// Whether containers can be given NVIDIA's GPUs.
    pub nvidia: bool,
    /// Whether containers can be given AMD's GPUs.
    pub amd: bool,
}

impl Assessment {
    /// Whether anything is wrong that a repair would better for somebody who insists on `gpu_type`, or on nothing.
    pub fn has_errors(&self, gpu_type: Option<GpuType>) -> bool {
        let concerning = self.sections.iter().filter(|section| section.topic.concerns(gpu_type));
        concerning.flat_map(|section| &section.checks).any(Check::is_error)
    }

    /// What the container is to be given: what works, or what the user insists on.
    pub fn wanted(&self, seen: &Situation, gpu_type: Option<GpuType>, selection: &Selection) -> Wanted {
        let (nvidia, amd) = match gpu_type {
            None => (self.nvidia, self.amd),
            Some(gpu_type) => (gpu_type == GpuType::Nvidia, gpu_type == GpuType::Amd),
        };
        let found = match (nvidia, amd) {
            (true, _) => GpuType::Nvidia,
            (false, true) => GpuType::Amd,
            (false, false) => GpuType::None,
        };
        Wanted {
            gpu_type: gpu_type.unwrap_or(found),
            nvidia: nvidia.then(|| (passthrough::way(seen), selection.clone())),
            amd: amd.then(|| (seen.amd.clone(), selection.clone())),
        }
    }
}

/// Judges everything.
pub fn assess(seen: &Situation, trials: &Trials) -> Assessment {
    let (nvidia_checks, nvidia) = nvidia::assess(seen, &trials.nvidia);
    let (amd_checks, amd) = amd::assess(seen, &trials.amd);
    let sections = vec![
        Section { topic: Topic::Host, checks: platform(seen) },
        Section { topic: Topic::Docker, checks: vec![engine(&seen.engine), compose(seen.compose)] },
        Section { topic: Topic::Nvidia, checks: nvidia_checks },
        Section { topic: Topic::Amd, checks: amd_checks },
    ];
    Assessment { sections, nvidia, amd }
}

pub(crate) fn platform(seen: &Situation) -> Vec<Check> {
    let name = &seen.platform.name;
    // Without a GPU on the host there is nothing to miss.
    let has_gpus = seen.nvidia.is_present() || seen.amd.kfd.is_some();
    let no_gpu = |what: String| {
        Check::trouble(
            if has_gpus { Severity::Error } else { Severity::Warning },
            what,
            "Docker's virtual machine has no GPU",
            "for GPUs use a Linux host with Docker Engine (on Linux: docker context use default); Slurm itself works here",
        )
    };
    match seen.platform.kind {
        PlatformKind::Linux => vec![Check::Good(name.clone())],
        PlatformKind::MacOs => vec![no_gpu("macOS: containers get no GPU".to_owned())],
        PlatformKind::DesktopVm => {
            vec![no_gpu(format!("{name}; Docker Desktop's virtual machine: containers get no GPU"))]
        }
        PlatformKind::Wsl2 => {
            let mut checks = vec![Check::Good(format!("{name}, in Windows (WSL2)"))];
            if seen.nvidia.has_dxg && !seen.nvidia.has_wsl_library {
                checks.push(Check::warning(
                    "WSL2 has a GPU, and it is none of NVIDIA's with a driver for WSL2",
                    "AMD and Intel GPUs do not work in WSL2's containers; for NVIDIA the Windows driver is missing or too old",
                    "NVIDIA: install the current driver in Windows, then `wsl --update`; AMD: use Linux itself",
                ));
            }
            checks
        }
    }
}

pub(crate) fn engine(engine: &Engine) -> Check {
    match engine {
        Engine::Answers(info) => {
            let rootless = if info.is_rootless { ", rootless" } else { "" };
            let desktop = if info.is_desktop { " of Docker Desktop" } else { "" };
            Check::Good(format!("engine {}{desktop} answers{rootless}", info.version))
        }
        Engine::Missing => Check::error(
            "there is no Docker on this host",
            "neither the docker command nor the engine's socket is there",
            "sudo apt-get install docker.io, or https://docs.docker.com/engine/install/",
        ),
        Engine::NotAsked => Check::Note(
            "there is a Docker, which this container cannot ask: what follows is from the host's files alone"
                .to_owned(),
        ),
        Engine::Refused => Check::error(
            "you may not talk to the Docker engine",
            "its socket, /var/run/docker.sock, belongs to root and the group docker, and you are not in it",
            "sudo usermod -aG docker $USER, then log out and in again; or run this with sudo",
        ),
        Engine::Stopped(words) => Check::error(
            format!("the Docker engine does not answer: {words}"),
            "it is not running, or DOCKER_HOST or the docker context point elsewhere",
            "sudo systemctl start docker (in WSL2 and macOS: start Docker Desktop); journalctl -u docker says why it stopped",
        ),
        Engine::Silent => Check::error(
            "the Docker engine does not answer in time",
            "it hangs, or the host is very busy",
            "sudo systemctl restart docker; journalctl -u docker",
        ),
    }
}

pub(crate) fn compose(compose: Compose) -> Check {
    let install = "sudo apt-get install docker-compose-v2 (Ubuntu) or docker-compose-plugin (Docker's packages), \
                   or https://docs.docker.com/compose/install/linux/";
    match compose {
        Compose::Version { command, version } if version < OLDEST_COMPOSE => Check::error(
            format!("{command} {version} is too old"),
            format!("compose hands GPUs over since {OLDEST_COMPOSE}"),
            install,
        ),
        Compose::Version { command, version } => Check::Good(format!("{command} {version}")),
        Compose::NotAsked => Check::Note("compose cannot be asked from here".to_owned()),
        Compose::Missing => Check::error("there is no compose on this host", "it is a package of its own", install),
    }
}

/// What repairs a failed trial, where that depends on the vendor and the engine.
struct Repairs {
    toolkit: &'static str,
    device: &'static str,
    permission: &'static str,
}

/// The words about a trial that failed.
fn failed_trial(failure: &Failure, is_explained: bool, repairs: &Repairs) -> Check {
    let what = format!("the trial failed, because of {}: {}", failure.part.as_str(), failure.words);
    if is_explained {
        return Check::error(what, "what is said above", "that of above, then run this again");
    }
    let (cause, repair) = match failure.part {
        Part::Engine => (
            "Docker could not run the container",
            "docker run --rm --entrypoint true slurminit:latest shows whether it can without GPUs",
        ),
        Part::Toolkit => ("Docker knows no way to hand the GPUs over", repairs.toolkit),
        Part::Driver => (
            "the host's driver does not work, or was updated without a restart of the host",
            "see that nvidia-smi (or rocm-smi) works on the host; reboot after an update of the driver",
        ),
        Part::Device => ("a device file is missing where the engine runs, or was not handed over", repairs.device),
        Part::Permission => ("the container may not open the GPU's device files", repairs.permission),
    };
    Check::error(what, cause, repair)
}
