//! Turns observations into verdicts, each with cause and fix.

mod files;

use std::collections::{BTreeMap, BTreeSet};

use super::choice::{GpuType, Selection};
use super::gpu_file::ContainerGpus;
use super::passthrough::{Component, Failure, Trial};
use super::situation::{Compose, Engine, PlatformKind, Situation, Version};
use model::inventory::{Observations, Vendor, Verdict};

/// The first version of Docker Compose with GPU support (`deploy.resources.reservations.devices`).
const OLDEST_COMPOSE: Version = Version(1, 28, 0);

/// The subject of a section of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the headings document the variants")]
pub enum Topic {
    Host,
    Docker,
    Gpus(Vendor),
    NoGpu,
}

impl Topic {
    /// The section's heading.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Host => "Host",
            Self::Docker => "Docker",
            Self::Gpus(vendor) => vendor.traits().maker,
            Self::NoGpu => "GPUs",
        }
    }

    /// Whether the topic applies to the requested GPU type; `None` requests no type.
    fn concerns(self, gpu_type: Option<GpuType>) -> bool {
        match (self, gpu_type) {
            (_, None) | (Self::Docker | Self::NoGpu, _) => true,
            (Self::Host, Some(gpu_type)) => gpu_type != GpuType::None,
            (Self::Gpus(vendor), Some(gpu_type)) => gpu_type.vendor() == Some(vendor),
        }
    }
}

/// A section of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The subject of this section.
    pub topic: Topic,
    /// The verdicts, in the order of the report.
    pub lines: Vec<Observations>,
}

/// The trial result of each vendor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trials(pub BTreeMap<Vendor, Trial>);

impl Trials {
    /// The trial of this vendor.
    pub fn of(&self, vendor: Vendor) -> &Trial {
        self.0.get(&vendor).unwrap_or(&Trial::Skipped("not requested"))
    }
}

/// The verdicts about a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assessment {
    /// The sections of the report, in order.
    pub sections: Vec<Section>,
    /// The vendors whose GPUs can be passed to containers.
    pub usable: BTreeSet<Vendor>,
}

impl Assessment {
    /// Whether a check failed that applies to the requested GPU type; `None` requests no type.
    pub fn has_errors(&self, gpu_type: Option<GpuType>) -> bool {
        let concerning = self.sections.iter().filter(|section| section.topic.concerns(gpu_type));
        concerning.flat_map(|section| &section.lines).any(Observations::has_failed)
    }

    /// The GPUs to pass to the container: those of the requested type, usable or not; otherwise all usable ones.
    pub fn container_gpus(
        &self,
        situation: &Situation,
        gpu_type: Option<GpuType>,
        selection: &Selection,
    ) -> ContainerGpus {
        let is_requested = |vendor: Vendor| match gpu_type {
            None => self.usable.contains(&vendor),
            Some(gpu_type) => gpu_type.vendor() == Some(vendor),
        };
        let first = Vendor::ALL.into_iter().find(|vendor| is_requested(*vendor));
        let default_type = first.map_or(GpuType::None, GpuType::from);
        let vendors = situation.gpus.iter().filter(|gpus| is_requested(gpus.vendor()));
        ContainerGpus {
            gpu_type: gpu_type.unwrap_or(default_type),
            pass_methods: vendors.map(|gpus| (gpus.vendor(), gpus.pass_method(situation))).collect(),
            selection: selection.clone(),
        }
    }
}

/// Runs all checks of the host.
pub fn assess(situation: &Situation, trials: &Trials) -> Assessment {
    let mut sections = vec![
        Section { topic: Topic::Host, lines: platform(situation) },
        Section { topic: Topic::Docker, lines: vec![engine(&situation.engine), compose(situation.compose)] },
    ];
    let mut usable = BTreeSet::new();
    for gpus in situation.present_gpus() {
        let vendor = gpus.vendor();
        let (checks, is_usable) = gpus.assess(situation, trials.of(vendor));
        sections.push(Section { topic: Topic::Gpus(vendor), lines: checks });
        if is_usable {
            usable.insert(vendor);
        }
    }
    if situation.present_gpus().next().is_none() {
        sections
            .push(Section { topic: Topic::NoGpu, lines: vec![Observations::note("no GPU for containers".to_owned())] });
    }
    Assessment { sections, usable }
}

/// The platform, and whether Docker can pass GPUs on it.
pub fn platform(situation: &Situation) -> Vec<Observations> {
    let name = &situation.platform.name;
    // Without a GPU on the host, the platform is not a fault.
    let has_gpus = situation.gpus.iter().any(|gpus| gpus.is_default_choice());
    let verdict = if has_gpus { Verdict::Fail } else { Verdict::Warn };
    let no_gpu = |what: String| {
        let cause = "Docker's virtual machine has no GPU";
        let fix = "for GPUs use a Linux host with Docker Engine (on Linux: docker context use default); Slurm works without GPUs";
        Observations::with_fix(verdict, what, cause, fix)
    };
    match situation.platform.kind {
        PlatformKind::Linux => vec![Observations::ok(name.clone())],
        PlatformKind::MacOs => vec![no_gpu("macOS: no GPUs in containers".to_owned())],
        PlatformKind::DesktopVm => {
            vec![no_gpu(format!("no GPUs in containers of Docker Desktop's virtual machine (system: {name})"))]
        }
        PlatformKind::Wsl2 => {
            let mut checks = vec![Observations::ok(format!("{name}, in Windows (WSL2)"))];
            checks.extend(situation.gpus.iter().filter_map(|gpus| gpus.missing_in_wsl()));
            checks
        }
    }
}

/// Checks the Docker engine.
pub fn engine(engine: &Engine) -> Observations {
    match engine {
        Engine::Running(info) => {
            let rootless = if info.is_rootless { ", rootless" } else { "" };
            let desktop = if info.is_desktop { " of Docker Desktop" } else { "" };
            Observations::ok(format!("engine {}{desktop} is running{rootless}", info.version))
        }
        Engine::Missing => Observations::fail(
            "no Docker on this host",
            "neither the docker command nor the engine's socket exists",
            "sudo apt-get install docker.io, or see https://docs.docker.com/engine/install/",
        ),
        Engine::NoClient => {
            Observations::note("docker command not found; the results below are based on the host's files".to_owned())
        }
        Engine::PermissionDenied => Observations::fail(
            "no permission to open the Docker engine's socket",
            "only root and the members of the group docker can open the socket",
            "sudo usermod -aG docker $USER, then log out and in again; or run this with sudo",
        ),
        Engine::Stopped(message) => Observations::fail(
            format!("the Docker engine does not respond: {message}"),
            "the engine is not running, or DOCKER_HOST or the docker context points elsewhere",
            "sudo systemctl start docker (on WSL2 and macOS: start Docker Desktop); see journalctl -u docker and docker context ls",
        ),
        Engine::TimedOut => Observations::fail(
            "the Docker engine timed out",
            "the engine hangs, or the host is overloaded",
            "sudo systemctl restart docker; see journalctl -u docker",
        ),
    }
}

/// Checks Docker Compose.
pub fn compose(compose: Compose) -> Observations {
    let install =
        "sudo apt-get install docker-compose-v2 (Ubuntu), or see https://docs.docker.com/compose/install/linux/";
    match compose {
        Compose::Version { command, version } if version < OLDEST_COMPOSE => Observations::fail(
            format!("{command} {version} is too old"),
            format!("GPU support requires compose {OLDEST_COMPOSE} or newer"),
            install,
        ),
        Compose::Version { command, version } => Observations::ok(format!("{command} {version}")),
        Compose::NoClient => Observations::note("compose command not found".to_owned()),
        Compose::Missing => Observations::fail(
            "no Docker Compose on this host",
            "Docker Compose is a separate package, and is not installed",
            install,
        ),
    }
}

/// The fixes for a failed trial that depend on the vendor and the engine.
#[derive(Debug)]
#[expect(missing_docs, reason = "each is the fix of a component at fault, or the program that shows the driver")]
pub struct Fixes {
    pub tool: &'static str,
    pub toolkit: String,
    pub device: &'static str,
    pub permission: &'static str,
}

/// The report's line about a failed trial.
pub(super) fn failed_trial(failure: &Failure, is_explained: bool, fixes: &Fixes) -> Observations {
    let what = format!("trial failed ({}): {}", failure.component.as_str(), failure.message);
    if is_explained {
        return Observations::fail(
            what,
            "the failed check above",
            "apply the fix of the failed check above, then run this again",
        );
    }
    let of_driver = format!(
        "check that {} works on the host; update the driver if it is too old; reboot after an update",
        fixes.tool
    );
    let (cause, fix) = match failure.component {
        Component::Engine => (
            "Docker could not run the container, or the image contains no working slurminit of this version",
            "test Docker without GPUs: docker run --rm --entrypoint true IMAGE (default: slurminit:latest); if this works, rebuild the image",
        ),
        Component::Toolkit => ("Docker cannot pass GPUs to containers", fixes.toolkit.as_str()),
        Component::Driver => (
            "the host's driver does not work, is too old for the image, or was updated without a reboot",
            of_driver.as_str(),
        ),
        Component::Device => {
            ("a device file is missing on the engine's host, or was not passed to the container", fixes.device)
        }
        Component::Permission => ("the container cannot open the GPU's device files", fixes.permission),
    };
    Observations::fail(what, cause, fix)
}
