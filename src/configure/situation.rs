//! What was seen on a host. PURE.

use std::fmt;

/// Everything that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Situation {
    /// The operating system.
    pub platform: Platform,
    /// The Docker engine.
    pub engine: Engine,
    /// Compose.
    pub compose: Compose,
    /// What there is of NVIDIA.
    pub nvidia: Nvidia,
    /// What there is of AMD.
    pub amd: Amd,
}

/// The operating system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// What decides about GPUs.
    pub kind: PlatformKind,
    /// Its own name: `Debian GNU/Linux 12 (bookworm)`.
    pub name: String,
}

/// Which of the support table's platforms it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlatformKind {
    /// Linux on its own.
    Linux,
    /// Linux inside Windows.
    Wsl2,
    /// macOS itself.
    MacOs,
    /// The virtual machine of Docker Desktop (macOS, and Docker Desktop for Linux): it has no GPU.
    DesktopVm,
}

/// The Docker engine, as `docker info` tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Neither the command nor the engine's socket is there.
    Missing,
    /// It seems to be there, and there is no docker command here to ask it with (inside the image).
    NotAsked,
    /// The user may not talk to it.
    Refused,
    /// It does not run. Its client's words.
    Stopped(String),
    /// No answer within the deadline.
    Silent,
    /// It answers.
    Answers(EngineInfo),
}

impl Engine {
    /// What it told, if it did.
    pub fn info(&self) -> Option<&EngineInfo> {
        match self {
            Self::Answers(info) => Some(info),
            _ => None,
        }
    }
}

/// What a running engine tells about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineInfo {
    /// `27.3.1`.
    pub version: String,
    /// The names of its runtimes.
    pub runtimes: Vec<String>,
    /// Whether it runs without root's rights.
    pub is_rootless: bool,
    /// Whether it is Docker Desktop's.
    pub is_desktop: bool,
    /// Its kernel, which is the virtual machine's under Docker Desktop.
    pub kernel: String,
    /// Whether it hands out devices by the container device interface (CDI).
    pub has_cdi: bool,
}

/// Compose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compose {
    /// There is none.
    Missing,
    /// There is no docker command here to ask.
    NotAsked,
    /// Its version.
    Version {
        /// How it is called.
        command: &'static str,
        /// Major, minor, patch.
        version: Version,
    },
}

impl Compose {
    /// How it is called here, or will be.
    pub fn command(self) -> &'static str {
        match self {
            Self::Version { command, .. } => command,
            Self::Missing | Self::NotAsked => "docker compose",
        }
    }
}

/// Three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// The first version in `text`: `v2.26.1-4` and `535.154.05` are versions; a missing patch is 0.
    pub fn find(text: &str) -> Option<Self> {
        text.split(|c: char| c.is_whitespace() || c == ',').find_map(|word| {
            let word = word.trim_start_matches('v');
            let mut parts = word.split(|c: char| !c.is_ascii_digit());
            let mut number = || parts.next().unwrap_or_default().parse().ok();
            let (major, minor) = (number()?, number()?);
            word[..word.len().min(1)]
                .chars()
                .all(|c| c.is_ascii_digit())
                .then(|| Self(major, minor, number().unwrap_or(0)))
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// What there is of NVIDIA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nvidia {
    /// The GPUs that the driver counts.
    pub gpus: Vec<NvidiaGpu>,
    /// The GPUs on the PCI bus, also without a driver.
    pub on_pci: usize,
    /// The driver's version, such as `535.154.05`.
    pub driver: Option<String>,
    /// Whether the kernel uses its own driver, nouveau, which cannot compute.
    pub has_nouveau: bool,
    /// What `nvidia-smi` says.
    pub smi: Smi,
    /// The ids of the instances of GPUs in MIG mode.
    pub mig_ids: Vec<String>,
    /// WSL2's one device for all GPUs.
    pub has_dxg: bool,
    /// WSL2's library of the Windows driver.
    pub has_wsl_library: bool,
    /// What hands GPUs to containers.
    pub toolkit: Toolkit,
}

impl Nvidia {
    /// Whether there is anything of NVIDIA to speak of.
    pub fn is_present(&self) -> bool {
        self.on_pci > 0 || !self.gpus.is_empty() || self.has_wsl_library
    }
}

/// A GPU of NVIDIA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvidiaGpu {
    /// Its model; hostile text.
    pub model: Option<String>,
    /// `GPU-...`.
    pub uuid: Option<String>,
}

/// What `nvidia-smi -L` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Smi {
    /// There is none here; nothing follows from that.
    #[default]
    Missing,
    /// It lists GPUs.
    Works,
    /// Its first line of complaint.
    Fails(String),
}

/// NVIDIA's container toolkit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toolkit {
    /// Its programs that are installed.
    pub programs: Vec<&'static str>,
    /// Whether `/etc/docker/daemon.json` names its runtime.
    pub is_in_daemon_json: bool,
    /// Whether it was told to leave cgroups alone, which a rootless engine needs.
    pub leaves_cgroups_alone: bool,
    /// Its CDI specifications.
    pub cdi_specs: Vec<String>,
}

/// What there is of AMD.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amd {
    /// The GPUs on the PCI bus, also integrated ones.
    pub on_pci: usize,
    /// `/dev/kfd`, AMD's compute device.
    pub kfd: Option<Device>,
    /// The render nodes of AMD's GPUs, in order.
    pub render_nodes: Vec<Device>,
}

impl Amd {
    /// Whether there is anything of AMD to speak of.
    pub fn is_present(&self) -> bool {
        self.on_pci > 0 || self.kfd.is_some()
    }

    /// The groups, by number, that own the devices; without root's, which gives nothing to anybody.
    pub fn groups(&self) -> Vec<u32> {
        let mut groups: Vec<u32> = self.kfd.iter().chain(&self.render_nodes).map(|device| device.group).collect();
        groups.retain(|group| *group != 0);
        groups.sort_unstable();
        groups.dedup();
        groups
    }
}

/// A device file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name on the host.
    pub path: String,
    /// The number of its group on the host.
    pub group: u32,
    /// Whether everybody may use it.
    pub is_for_all: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (text, want) in [
            ("Docker Compose version v2.26.1-4", Version(2, 26, 1)),
            ("docker-compose version 1.29.2, build unknown", Version(1, 29, 2)),
            ("2.40\n", Version(2, 40, 0)),
            ("535.154.05", Version(535, 154, 5)),
        ] {
            assert_eq!(Version::find(text), Some(want), "{text}");
        }
        for text in ["", "none", "v", "version x.y", "12"] {
            assert_eq!(Version::find(text), None, "{text}");
        }
    }
}
