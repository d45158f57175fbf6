//! The machine file, which describes the simulated GPUs.

use std::collections::BTreeMap;
use std::path::Path;

use nvml_wrapper_sys::bindings::NVML_NVLINK_MAX_LINKS;
use serde::Deserialize;

use crate::condition::Condition;
use crate::fault::{At, Fault};

/// The parsed file. The accessors fill in defaults.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Machine {
    driver: Option<String>,
    cuda: Option<String>,
    gpus: Option<usize>,
    gpu: Vec<Gpu>,
    pub(crate) fault: Vec<Fault>,
    pub(crate) xid: Vec<Xid>,
}

/// One `[[xid]]` table: an error that the driver reports.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Xid {
    /// Index of the GPU.
    pub(crate) gpu: u32,
    pub(crate) code: u64,
}

impl Machine {
    /// Reads the file. A missing file is a driver without GPUs.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).map_err(|error| format!("{}: {error}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut machine: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        match machine.gpus {
            Some(_) if !machine.gpu.is_empty() => return Err("`gpus` and `[[gpu]]` exclude each other".to_owned()),
            Some(count) => machine.gpu.resize_with(count, Gpu::default),
            None => {}
        }
        for (index, gpu) in machine.gpu.iter_mut().enumerate() {
            gpu.index = index as u32;
            if let Mig::Instances(instances) = &mut gpu.mig {
                for (position, instance) in (0..).zip(instances) {
                    instance.index = (gpu.index, position);
                }
            }
            gpu.check().map_err(|error| format!("gpu {index}: {error}"))?;
        }
        Ok(machine)
    }

    pub(crate) fn driver(&self) -> &str {
        self.driver.as_deref().unwrap_or("590.48.01")
    }

    /// CUDA version in NVML's encoding: 13010 is 13.1.
    pub(crate) fn cuda(&self) -> i32 {
        let (major, minor) = self.cuda.as_deref().unwrap_or("13.1").split_once('.').unwrap_or(("0", "0"));
        major.parse().unwrap_or(0) * 1000 + minor.parse().unwrap_or(0) * 10
    }

    pub(crate) fn count(&self) -> u32 {
        self.gpu.len() as u32
    }

    pub(crate) fn gpu(&self, index: u32) -> Option<&Gpu> {
        self.gpu.get(index as usize)
    }

    pub(crate) fn gpus(&self) -> &[Gpu] {
        &self.gpu
    }
}

/// One `[[gpu]]` table.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Gpu {
    #[serde(skip)]
    pub(crate) index: u32,
    name: Option<Text>,
    uuid: Option<Text>,
    minor: Option<u32>,
    pci: Option<String>,
    memory_mib: Option<u64>,
    compute: Option<(i32, i32)>,
    cpus: Option<String>,
    pub(crate) numa: Option<u32>,
    links: Option<BTreeMap<String, u32>>,
    switch_links: u32,
    pub(crate) mig: Mig,
    pub(crate) persistence: bool,
    pub(crate) condition: Condition,
    pub(crate) denied: bool,
    /// Calls that this model or driver does not support.
    pub(crate) unsupported: Vec<At>,
    /// IDs of unsupported fields.
    pub(crate) lacks_fields: Vec<u32>,
    /// Duration of the first use in a process without persistence mode.
    pub(crate) init_ms: u64,
    /// Memory reserved by the driver.
    pub(crate) reserved_mib: u64,
}

/// A text, or bytes that are not valid UTF-8.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Text {
    Text(String),
    Bytes(Vec<u8>),
}

impl Text {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.clone().into_bytes(),
            Self::Bytes(bytes) => bytes.clone(),
        }
    }
}

/// The GPU's MIG mode, or its instances.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Mig {
    Mode(MigMode),
    Instances(Vec<Instance>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MigMode {
    /// The model cannot be partitioned.
    Unsupported,
    Disabled,
    Enabled,
}

impl Default for Mig {
    fn default() -> Self {
        Self::Mode(MigMode::Disabled)
    }
}

impl Mig {
    pub(crate) fn mode(&self) -> MigMode {
        match self {
            Self::Mode(mode) => *mode,
            Self::Instances(_) => MigMode::Enabled,
        }
    }

    pub(crate) fn instances(&self) -> &[Instance] {
        match self {
            Self::Mode(_) => &[],
            Self::Instances(instances) => instances,
        }
    }

    /// The instance in an NVML slot; slots can be empty.
    pub(crate) fn instance(&self, slot: u32) -> Option<&Instance> {
        self.instances().iter().find(|instance| instance.slot() == slot)
    }
}

/// One `[[gpu.mig]]` table.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Instance {
    /// Index of the GPU, and position among its instances.
    #[serde(skip)]
    index: (u32, u32),
    profile: Option<String>,
    pub(crate) gi: u32,
    pub(crate) ci: u32,
    slot: Option<u32>,
    uuid: Option<Text>,
    memory_mib: Option<u64>,
    pub(crate) used_mib: u64,
    /// Utilization of multiprocessors and tensor cores, in percent; absent: no GPM.
    pub(crate) busy: Option<(f64, f64)>,
}

impl Instance {
    pub(crate) fn profile(&self) -> &str {
        self.profile.as_deref().unwrap_or("1g.18gb")
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot.unwrap_or(self.index.1)
    }

    pub(crate) fn uuid(&self) -> Vec<u8> {
        let (gpu, instance) = self.index;
        let default = || format!("MIG-fa4e0000-0000-0000-{instance:04x}-{gpu:012x}").into_bytes();
        self.uuid.as_ref().map_or_else(default, Text::bytes)
    }

    pub(crate) fn memory_mib(&self) -> u64 {
        self.memory_mib.unwrap_or(16_384)
    }

    /// Slices of the compute instance and of the GPU instance: `1c.3g.71gb` has 1 of 3.
    pub(crate) fn slices(&self) -> (u32, u32) {
        let slices = |unit: char| {
            let part = self.profile().split('.').find_map(|part| part.strip_suffix(unit))?;
            part.parse::<u32>().ok()
        };
        let gpu = slices('g').unwrap_or(1);
        (slices('c').unwrap_or(gpu), gpu)
    }
}

/// Remote end of an NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkEnd {
    Gpu(u32),
    Switch,
    /// The lane exists but is inactive.
    Down,
}

impl Gpu {
    fn check(&self) -> Result<(), String> {
        self.pci().ok_or("pci: expected domain:bus:device.function")?;
        self.cpus().ok_or("cpus: expected a list such as 0-15,32")?;
        for peer in self.links.iter().flat_map(BTreeMap::keys) {
            peer.parse::<u32>().map_err(|_| format!("links: `{peer}` is not an index"))?;
        }
        match self.active_links().len() {
            count if count > NVML_NVLINK_MAX_LINKS as usize => {
                Err(format!("links: {count}, NVML supports {NVML_NVLINK_MAX_LINKS}"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn name(&self) -> Vec<u8> {
        self.name.as_ref().map_or_else(|| b"NVIDIA H200".to_vec(), Text::bytes)
    }

    pub(crate) fn uuid(&self) -> Vec<u8> {
        let default = || format!("GPU-fa4e0000-0000-0000-0000-{:012x}", self.index).into_bytes();
        self.uuid.as_ref().map_or_else(default, Text::bytes)
    }

    /// Whether the first use in a process initializes the GPU.
    pub(crate) fn is_cold(&self) -> bool {
        !self.persistence && self.init_ms > 0
    }

    pub(crate) fn minor(&self) -> u32 {
        self.minor.unwrap_or(self.index)
    }

    /// PCI domain, bus and device; `None` if invalid. The function of a GPU is always 0.
    pub(crate) fn pci(&self) -> Option<(u32, u32, u32)> {
        let Some(text) = &self.pci else { return Some((0, 0x10 + self.index, 0)) };
        let mut parts = text.strip_suffix(".0")?.split(':').map(|part| u32::from_str_radix(part, 16).ok());
        let (domain, bus, device) = (parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some((domain, bus, device))
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_mib.unwrap_or(143_771) << 20
    }

    pub(crate) fn compute(&self) -> (i32, i32) {
        self.compute.unwrap_or((9, 0))
    }

    /// Local CPUs; `None` if the list is invalid.
    pub(crate) fn cpus(&self) -> Option<Vec<u32>> {
        let Some(list) = &self.cpus else { return Some((0..machine_cpus()).collect()) };
        let mut cpus = Vec::new();
        for range in list.split(',').filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            cpus.extend(first.trim().parse().ok()?..=last.trim().parse::<u32>().ok()?);
        }
        Some(cpus)
    }

    /// Whether the model has NVLink.
    pub(crate) fn has_nvlink(&self) -> bool {
        self.links.is_some() || self.switch_links > 0
    }

    /// Remote end of a lane.
    pub(crate) fn link_end(&self, lane: u32) -> LinkEnd {
        self.active_links().get(lane as usize).copied().unwrap_or(LinkEnd::Down)
    }

    fn active_links(&self) -> Vec<LinkEnd> {
        let peers = self.links.iter().flatten().filter_map(|(peer, count)| Some((peer.parse().ok()?, *count)));
        let to_peers = peers.flat_map(|(peer, count)| (0..count).map(move |_| LinkEnd::Gpu(peer)));
        to_peers.chain((0..self.switch_links).map(|_| LinkEnd::Switch)).collect()
    }
}

fn machine_cpus() -> u32 {
    // SAFETY: sysconf only reads; it has no precondition.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    u32::try_from(count).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_creates_distinct_gpus() {
        let machine = Machine::parse("gpus = 2").unwrap();
        let (first, second) = (machine.gpu(0).unwrap(), machine.gpu(1).unwrap());
        assert_eq!(machine.count(), 2);
        assert_ne!(first.uuid(), second.uuid());
        assert_ne!(first.pci(), second.pci());
        assert_eq!(second.minor(), 1);
        assert_eq!(machine.cuda(), 13010);
    }

    #[test]
    fn links_occupy_first_lanes() {
        let machine = Machine::parse("[[gpu]]\nlinks = { '1' = 2, '3' = 1 }\nswitch_links = 1").unwrap();
        let ends: Vec<_> = (0..5).map(|lane| machine.gpu(0).unwrap().link_end(lane)).collect();
        let gpu = LinkEnd::Gpu;
        assert_eq!(ends, [gpu(1), gpu(1), gpu(3), LinkEnd::Switch, LinkEnd::Down]);
    }

    #[test]
    fn rejects_invalid_file() {
        for (text, word) in [
            ("gpus = 1\n[[gpu]]\n", "exclude"),
            ("[[gpu]]\npci = '17:00.0'", "pci"),
            ("[[gpu]]\ncpus = 'all'", "cpus"),
            ("[[gpu]]\nlinks = { '1' = 19 }", "links"),
            ("[[gpu]]\nlinks = { peer = 1 }", "links"),
            ("[[gpu]]\nnmae = 'x'", "nmae"),
            ("[[fault]]\nat = 'init'\nkind = 'sulk'", "sulk"),
        ] {
            let error = Machine::parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn accepts_name_as_bytes() {
        let machine = Machine::parse("[[gpu]]\nname = [78, 10, 255]").unwrap();
        assert_eq!(machine.gpu(0).unwrap().name(), [78, 10, 255]);
    }
}
