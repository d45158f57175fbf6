//! The address of a device on the PCI bus.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A PCI address, `domain:bus:device.function`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    /// The PCI domain, which exceeds 16 bits in some virtual machines.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device, 0-31.
    pub device: u8,
    /// Function, 0-7.
    pub function: u8,
}

impl PciAddress {
    /// Whether the device is on the root bus, as Intel's integrated GPUs are, rather than in a slot behind a bridge.
    pub const fn is_on_root_bus(&self) -> bool {
        self.domain == 0 && self.bus == 0
    }
}

impl fmt::Display for PciAddress {
    /// The address in sysfs's format: `0000:17:00.0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl FromStr for PciAddress {
    type Err = String;

    /// Accepts sysfs's spelling and NVML's (eight domain digits, upper case).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (rest, function) = text.trim().rsplit_once('.')?;
            let mut parts = rest.split(':');
            let (domain, bus, device) = (parts.next()?, parts.next()?, parts.next()?);
            if parts.next().is_some() {
                return None;
            }
            Some(Self {
                domain: u32::from_str_radix(domain, 16).ok()?,
                bus: u8::from_str_radix(bus, 16).ok()?,
                device: u8::from_str_radix(device, 16).ok().filter(|device| *device < 32)?,
                function: u8::from_str_radix(function, 16).ok().filter(|function| *function < 8)?,
            })
        };
        parse().ok_or_else(|| {
            format!("`{text}` is not a PCI address (expected domain:bus:device.function, all hexadecimal)")
        })
    }
}

serde_by_text!(PciAddress);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_short_and_long_domains() {
        let sysfs: PciAddress = "0000:17:00.0".parse().unwrap();
        assert_eq!(sysfs, "00000000:17:00.0".parse().unwrap());
        assert_eq!(sysfs.to_string(), "0000:17:00.0");
        for bad in ["", "17:00.0", "0000:17:00", "0000:17:20.0", "0000:17:00.8", "0000:17:00:1.0", "zz:17:00.0"] {
            assert!(bad.parse::<PciAddress>().is_err(), "{bad}");
        }
    }

    #[test]
    fn root_bus_is_bus_0_of_domain_0() {
        let is_on_root_bus = |text: &str| text.parse::<PciAddress>().unwrap().is_on_root_bus();
        assert!(is_on_root_bus("0000:00:02.0"));
        assert!(!is_on_root_bus("0000:03:00.0") && !is_on_root_bus("0001:00:02.0"));
    }
}
