//! The events of the watcher process: one line of JSON each.
//!
//! The watcher runs a vendor's library, so its output is not trusted.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::fault::FaultKind;
use model::inventory::{Condition, Gpu, PciAddress, Readings, Vendor};

/// A GPU's name for as long as the machine runs: its UUID, otherwise its PCI address and device file, otherwise its position in the
/// driver's order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(String);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The identity of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The vendor.
    pub vendor: Vendor,
    /// The position in the driver's order.
    pub index: u32,
    /// The driver's unique name.
    pub uuid: Option<String>,
    /// The PCI address.
    pub pci_address: Option<PciAddress>,
    /// The model; untrusted text.
    pub model: Option<String>,
    /// The device file.
    pub file: Option<String>,
}

impl Identity {
    /// Whether this is the identity of a detected GPU. A detection may have fewer details than an earlier sample.
    pub fn matches(&self, gpu: &Gpu) -> bool {
        let file = gpu.device_file.as_ref().map(|file| file.display().to_string());
        // Partitions of a GPU share its address.
        let is_other_part = || self.file.as_ref().zip(file.as_ref()).is_some_and(|(own, other)| own != other);
        match (self.uuid.as_ref().zip(gpu.uuid.as_ref()), self.pci_address.zip(gpu.pci_address)) {
            (Some((own, other)), _) => own == other,
            (None, Some((own, other))) => own == other && !is_other_part(),
            (None, None) => self.vendor == gpu.vendor && self.file.is_some() && self.file == file,
        }
    }

    /// Whether this is the name of the same GPU before the driver reported its UUID.
    pub fn is_earlier_name_of(&self, other: &Self) -> bool {
        let is_place = match (self.pci_address, other.pci_address) {
            (Some(own), Some(known)) => own == known && (self.file.is_none() || self.file == other.file),
            (None, _) => self.index == other.index && self.file.is_none(),
            (Some(_), None) => false,
        };
        self.vendor == other.vendor && self.uuid.is_none() && is_place
    }

    /// The command on the host that resets the GPU.
    pub fn reset_command(&self) -> String {
        let name = self.pci_address.map_or_else(|| self.index.to_string(), |address| address.to_string());
        (self.vendor.traits().repair.reset)(&name)
    }

    /// The key that identifies the GPU across samples.
    pub fn key(&self) -> Key {
        let file = || self.file.as_ref().map(|file| format!(" {file}")).unwrap_or_default();
        let address = || self.pci_address.map(|address| format!("{address}{}", file()));
        Key(self.uuid.clone().or_else(address).unwrap_or_else(|| format!("{:?} {}", self.vendor, self.index)))
    }
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "line")]
pub enum Line {
    /// A sampling round begins; these GPUs respond.
    Listed {
        /// In the driver's order.
        gpus: Vec<Identity>,
    },
    /// The driver initializes this GPU, which can take seconds. Its UUID is unknown.
    Opening {
        /// The GPU.
        gpu: Identity,
    },
    /// A query for this GPU begins.
    Asking {
        /// The GPU.
        gpu: Key,
    },
    /// The driver responded.
    Seen {
        /// The GPU.
        gpu: Key,
        /// The sample.
        seen: Box<GpuSample>,
    },
    /// The sampling round has ended.
    Done,
    /// The driver reported an error of a GPU.
    Event {
        /// The GPU; `None` if unknown.
        gpu: Option<Key>,
        /// The error number (XID).
        xid: u32,
    },
    /// The driver resets a GPU.
    Reset {
        /// The GPU.
        gpu: Key,
        /// The phase of the reset.
        phase: Phase,
    },
    /// The driver as a whole does not respond.
    Trouble {
        /// The fault of each GPU.
        kind: FaultKind,
        /// The driver's answer, for people.
        what: String,
    },
}

/// A part of a reset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The reset begins. Processes on the GPU are lost.
    Begins {
        /// The driver's text for the cause; untrusted.
        cause: Option<String>,
    },
    /// The reset has ended; the GPU is usable.
    Ends,
}

/// A sample of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSample {
    /// The condition of the GPU.
    pub condition: Condition,
    /// The measurements of the GPU.
    pub readings: Readings,
    /// Why the GPU cannot be used, if so.
    pub trouble: Option<FaultKind>,
}
