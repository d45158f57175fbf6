//! The model name of an AMD GPU.

use std::fs;
use std::path::Path;

use super::topology::GpuProperties;
use crate::regular;

/// libdrm's list of `DEVICE, REVISION, NAME`.
const IDS: &str = "usr/share/libdrm/amdgpu.ids";

/// Accelerators whose names may be unavailable in a container: on some machines firmware leaves `product_name` empty,
/// and without a graphics library libdrm's list is missing.
const ACCELERATORS: [(u64, &str); 4] = [
    (0x74a0, "AMD Instinct MI300A"),
    (0x74a1, "AMD Instinct MI300X"),
    (0x74a2, "AMD Instinct MI308X"),
    (0x740f, "AMD Instinct MI210"),
];

/// Looks up model names; holds libdrm's list.
pub(super) struct ModelNames {
    ids: String,
}

impl ModelNames {
    pub(super) fn read(root: &Path) -> Self {
        let bytes = fs::read(root.join(IDS)).unwrap_or_default();
        Self { ids: String::from_utf8_lossy(&bytes).into_owned() }
    }

    /// The name from the card's firmware, otherwise from libdrm's list, otherwise from `ACCELERATORS`.
    pub(super) fn model(&self, root: &Path, gpu: &GpuProperties) -> Option<String> {
        let device = root.join("sys/bus/pci/devices").join(gpu.pci_address.to_string());
        let line = |file: &str| regular::line(&device.join(file));
        let listed = || in_list(&self.ids, gpu.device_id, hexadecimal(&line("revision")?)?);
        let known = || ACCELERATORS.iter().find(|(id, _)| *id == gpu.device_id).map(|(_, name)| (*name).to_owned());
        line("product_name").or_else(listed).or_else(known)
    }
}

/// The name of `device` in `revision`. The revision must match, because revisions are different products.
fn in_list(ids: &str, device: u64, revision: u64) -> Option<String> {
    ids.lines().find_map(|line| {
        let mut fields = line.splitn(3, ',').map(str::trim);
        let found = (hexadecimal(fields.next()?)?, hexadecimal(fields.next()?)?);
        (found == (device, revision)).then(|| fields.next().map(str::to_owned))?.filter(|name| !name.is_empty())
    })
}

/// Parses `0x02`, as in sysfs, or `02`, as in libdrm.
fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# List of AMDGPU IDs\n1.0.0\n740F,\t02,\tAMD Instinct MI210\n740F,\t03,\tAnother, with comma\n";

    #[test]
    fn looks_up_name_by_exact_revision() {
        assert_eq!(in_list(LIST, 0x740f, 2).as_deref(), Some("AMD Instinct MI210"));
        assert_eq!(in_list(LIST, 0x740f, 3).as_deref(), Some("Another, with comma"));
        assert_eq!(in_list(LIST, 0x740f, 4), None);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_list_does_not_panic(text in "(?s).{0,60}", fields in "[0-9a-fx]{0,20},[0-9a-fx ]{0,20},.{0,4}") {
            in_list(&text, 1, 1);
            in_list(&fields, 1, 1);
        }
    }
}
