//! Identifies GPUs across samples, containers and drivers.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Gpu, PciAddress, Vendor};

/// Identifies a GPU until the machine restarts: by its UUID, otherwise by its PCI address and device file, otherwise by its position in the
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

impl From<&Gpu> for Identity {
    fn from(gpu: &Gpu) -> Self {
        Self {
            vendor: gpu.vendor,
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            pci_address: gpu.pci_address,
            model: gpu.model.clone(),
            file: gpu.device_file.as_ref().map(|file| file.display().to_string()),
        }
    }
}

/// `GPU 3 (/dev/nvidia3)`: the driver's index and the device file, or the PCI address.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.file.clone().or_else(|| self.pci_address.map(|address| address.to_string()));
        write!(f, "GPU {}{}", self.index, place.map(|place| format!(" ({place})")).unwrap_or_default())
    }
}

/// The path without the number at its end: `/dev/dri/renderD` for `/dev/dri/renderD128`.
pub fn file_kind(file: &str) -> &str {
    file.trim_end_matches(|last: char| last.is_ascii_digit())
}

impl Identity {
    /// Whether both are the same GPU, or one is an instance of the other. Compares the first of UUID, PCI address, device file
    /// and index that both have. The index comes last, because it changes when the driver loses a GPU.
    pub fn is_same_gpu(&self, other: &Self) -> bool {
        let files = self.file.as_deref().zip(other.file.as_deref());
        // Partitions of a GPU share its address, but not its device file. A MIG instance is not such a partition: the name of its device file has
        // another form.
        let is_other_part = || files.is_some_and(|(own, other)| own != other && file_kind(own) == file_kind(other));
        let same = match (self.uuid.as_ref().zip(other.uuid.as_ref()), self.pci_address.zip(other.pci_address), files) {
            (Some((own, other)), ..) => own == other,
            (None, Some((own, other)), _) => own == other && !is_other_part(),
            (None, None, Some((own, other))) => own == other,
            (None, None, None) => self.index == other.index,
        };
        self.vendor == other.vendor && same
    }

    /// The command on the host that resets the GPU.
    pub fn reset_command(&self) -> String {
        let name = self.pci_address.map_or_else(|| self.index.to_string(), |address| address.to_string());
        (self.vendor.traits().fix.reset)(&name)
    }

    /// The key that identifies the GPU across samples.
    pub fn key(&self) -> Key {
        let file = || self.file.as_ref().map(|file| format!(" {file}")).unwrap_or_default();
        let address = || self.pci_address.map(|address| format!("{address}{}", file()));
        Key(self.uuid.clone().or_else(address).unwrap_or_else(|| format!("{:?} {}", self.vendor, self.index)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(uuid: &str, address: &str, file: &str, index: u32) -> Identity {
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let pci_address = address.parse().ok();
        Identity { index, uuid: text(uuid), pci_address, file: text(file), ..Identity::default() }
    }

    #[test]
    fn compares_first_detail_that_both_have() {
        let (slot, other) = ("0000:10:00.0", "0000:11:00.0");
        for (one, two, same) in [
            (gpu("a", slot, "/dev/nvidia0", 0), gpu("a", other, "/dev/nvidia1", 1), true),
            (gpu("a", slot, "/dev/nvidia0", 0), gpu("b", slot, "/dev/nvidia0", 0), false),
            (gpu("a", slot, "", 0), gpu("", slot, "/dev/nvidia3", 3), true),
            (gpu("", slot, "", 0), gpu("b", other, "", 0), false),
            // Two partitions of a GPU; a MIG instance and its GPU.
            (gpu("", slot, "/dev/dri/renderD128", 0), gpu("", slot, "/dev/dri/renderD129", 1), false),
            (gpu("a", slot, "/dev/nvidia0", 0), gpu("", slot, "/dev/nvidia-caps/nvidia-cap12", 0), true),
            (gpu("a", "", "/dev/nvidia1", 0), gpu("", slot, "/dev/nvidia1", 1), true),
            (gpu("", "", "/dev/nvidia1", 0), gpu("", "", "/dev/nvidia0", 0), false),
            (gpu("", "", "", 1), gpu("b", slot, "/dev/nvidia1", 1), true),
            (gpu("", "", "", 0), gpu("b", slot, "/dev/nvidia1", 1), false),
        ] {
            assert_eq!((one.is_same_gpu(&two), two.is_same_gpu(&one)), (same, same), "{one:?} {two:?}");
        }
        let amd = Identity { vendor: Vendor::Amd, ..gpu("", "", "", 0) };
        assert!(!amd.is_same_gpu(&gpu("", "", "", 0)));
    }

    #[test]
    fn names_gpu_by_file_or_else_by_address() {
        let name = |address: &str, file: &str| gpu("a", address, file, 3).to_string();
        assert_eq!(name("0000:10:00.0", "/dev/nvidia5"), "GPU 3 (/dev/nvidia5)");
        assert_eq!((name("0000:10:00.0", ""), name("", "")), ("GPU 3 (0000:10:00.0)".to_owned(), "GPU 3".to_owned()));
        let key = |uuid: &str, address: &str, file: &str| gpu(uuid, address, file, 3).key().to_string();
        assert_eq!(key("GPU-1", "0000:10:00.0", "/dev/x"), "GPU-1");
        assert_eq!(key("", "0000:10:00.0", "/dev/x"), "0000:10:00.0 /dev/x");
        assert_eq!((key("", "0000:10:00.0", ""), key("", "", "")), ("0000:10:00.0".to_owned(), "Nvidia 3".to_owned()));
    }
}
