//! Observations of a host.

use std::fmt;

use super::host_gpus::HostGpus;
use model::inventory::{Files, Vendor};

/// The observations of a host.
#[derive(Debug)]
pub struct Situation {
    /// The operating system.
    pub platform: Platform,
    /// The Docker engine.
    pub engine: Engine,
    /// Docker compose.
    pub compose: Compose,
    /// One entry per vendor, even if the host has no GPU of that vendor.
    pub gpus: Vec<Box<dyn HostGpus>>,
}

impl Situation {
    /// The GPUs that exist on the host, by vendor.
    pub fn present_gpus(&self) -> impl Iterator<Item = &dyn HostGpus> {
        self.gpus.iter().map(Box::as_ref).filter(|gpus| gpus.is_present())
    }

    /// The GPUs whose driver works, by vendor.
    pub fn ready_gpus(&self) -> impl Iterator<Item = &dyn HostGpus> {
        self.gpus.iter().map(Box::as_ref).filter(|gpus| gpus.is_ready(self))
    }

    /// Whether the engine runs rootless.
    pub fn is_rootless(&self) -> bool {
        self.engine.info().is_some_and(|info| info.is_rootless)
    }
}

/// The operating system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// The kind of the platform.
    pub kind: PlatformKind,
    /// The name of the system: `Debian GNU/Linux 12 (bookworm)`.
    pub name: String,
}

/// The kind of a platform, which determines whether Docker can pass GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlatformKind {
    /// Linux, neither in Windows nor in Docker Desktop's virtual machine.
    Linux,
    /// Linux inside Windows.
    Wsl2,
    /// macOS, outside of any virtual machine.
    MacOs,
    /// The virtual machine of Docker Desktop (macOS and Linux), which has no GPU.
    DesktopVm,
}

/// The Docker engine, according to `docker info`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Neither the docker command nor any of the engine's files exists.
    Missing,
    /// The engine seems to exist, but there is no docker command to query it (as inside the image).
    NoClient,
    /// The user may not connect to the engine's socket.
    PermissionDenied,
    /// The engine does not respond. The text is the error message of `docker info`.
    Stopped(String),
    /// The engine timed out.
    TimedOut,
    /// The engine responded.
    Running(EngineInfo),
}

impl Engine {
    /// The engine's information, if it responded.
    pub fn info(&self) -> Option<&EngineInfo> {
        match self {
            Self::Running(info) => Some(info),
            _ => None,
        }
    }
}

/// The properties that a running engine reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineInfo {
    /// The version of the engine: `27.3.1`.
    pub version: String,
    /// The names of the engine's container runtimes.
    pub runtimes: Vec<String>,
    /// Whether the engine runs rootless.
    pub is_rootless: bool,
    /// Whether the engine is Docker Desktop's.
    pub is_desktop: bool,
    /// The kernel version; with Docker Desktop, that of the virtual machine.
    pub kernel: String,
    /// Whether the container device interface (CDI) is enabled in the engine.
    pub has_cdi: bool,
}

/// Docker compose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compose {
    /// Compose is not installed.
    Missing,
    /// No compose command was found, and no docker command to query the engine.
    NoClient,
    /// Compose is installed.
    Version {
        /// The command that runs compose: `docker compose` or `docker-compose`.
        command: &'static str,
        /// The version of compose.
        version: Version,
    },
}

impl Compose {
    /// The command that runs compose; `docker compose` if compose is not found.
    pub fn command(self) -> &'static str {
        match self {
            Self::Version { command, .. } => command,
            Self::Missing | Self::NoClient => "docker compose",
        }
    }
}

/// A version number: major, minor and patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// The first version number in `text`, such as `v2.26.1-4` or `535.154.05`; a missing patch is 0.
    pub fn find(text: &str) -> Option<Self> {
        text.split(|c: char| c.is_whitespace() || c == ',').find_map(|word| {
            let word = word.trim_start_matches('v');
            let mut parts = word.split(|c: char| !c.is_ascii_digit());
            let mut next_number = || parts.next().unwrap_or_default().parse().ok();
            let (major, minor) = (next_number()?, next_number()?);
            word[..word.len().min(1)]
                .chars()
                .all(|c| c.is_ascii_digit())
                .then(|| Self(major, minor, next_number().unwrap_or(0)))
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// One vendor's GPUs, which are passed to containers by their device files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileGpus {
    /// The vendor.
    pub vendor: Vendor,
    /// How the vendor's device files are passed.
    pub files: &'static Files,
    /// The number of GPUs on the PCI bus.
    pub pci_count: usize,
    /// The device that all GPUs share, if the vendor has one and it exists.
    pub shared: Option<Device>,
    /// The render nodes of the GPUs, sorted by number.
    pub render_nodes: Vec<Device>,
}

impl FileGpus {
    /// Whether a driver has created the device files that every job needs.
    pub fn has_files(&self) -> bool {
        match self.files.shared {
            Some(_) => self.shared.is_some(),
            None => !self.render_nodes.is_empty(),
        }
    }

    /// Whether at least one GPU can be passed to a container.
    pub fn is_complete(&self) -> bool {
        self.has_files() && !self.render_nodes.is_empty()
    }

    /// All device files.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.shared.iter().chain(&self.render_nodes)
    }

    /// The IDs of the groups that own the devices, without root's group (no ordinary user is a member of it).
    pub fn groups(&self) -> Vec<u32> {
        let mut groups: Vec<u32> = self.devices().map(|device| device.group).collect();
        groups.retain(|group| *group != 0);
        groups.sort_unstable();
        groups.dedup();
        groups
    }
}

/// A GPU's device file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The path on the host.
    pub path: String,
    /// The group ID on the host.
    pub group: u32,
    /// Whether all users may read and write the device file.
    pub is_world_accessible: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_version_in_program_output() {
        for (text, expected) in [
            ("Docker Compose version v2.26.1-4", Version(2, 26, 1)),
            ("docker-compose version 1.29.2, build unknown", Version(1, 29, 2)),
            ("2.40\n", Version(2, 40, 0)),
            ("535.154.05", Version(535, 154, 5)),
        ] {
            assert_eq!(Version::find(text), Some(expected), "{text}");
        }
        for text in ["", "none", "v", "version x.y", "12"] {
            assert_eq!(Version::find(text), None, "{text}");
        }
    }
}
