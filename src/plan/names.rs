//! Names from hardware or the kernel, made safe for Slurm's files.

use std::fmt;
use std::path::Path;

/// The type of a GRES: letters, digits, `_`, `-`, `.`, and `+` in a MIG profile. Slurm would accept slightly more. None of
/// these characters can end a value, a line or a list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GresType(String);

impl GresType {
    /// A name that needs no check: a vendor's name, `gpu0`, or the type of simulated GPUs.
    pub(super) fn own(name: impl fmt::Display) -> Self {
        Self(name.to_string())
    }

    /// The name that Slurm's nvml plugin gives a model: lower case, with `_` for spaces (Slurm 24.11, gpu_common.c).
    /// Characters that a type cannot contain are dropped, and all after the 64th. `None` if no letter is left.
    pub fn from_model(model: &str) -> Option<Self> {
        let name: String = model
            .trim()
            .chars()
            .map(|c| if c == ' ' { '_' } else { c.to_ascii_lowercase() })
            .filter(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-' | '.'))
            .take(64)
            .collect();
        // Slurm reads a type that consists only of digits as a count: gpu:8000.
        name.contains(|c: char| c.is_ascii_lowercase()).then_some(Self(name))
    }
}

impl GresType {
    /// The name that Slurm's nvml plugin gives a MIG instance (24.11): the model up to its first `-`, then the profile:
    /// `nvidia_a100_1g.5gb`.
    pub(super) fn of_instance(vendor: impl fmt::Display, model: Option<&str>, profile: Option<&str>) -> Self {
        let family = model.and_then(|model| Self::from_model(model.split('-').next()?));
        let family = family.unwrap_or_else(|| Self::own(vendor));
        let valid = |c: &char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-' | '.' | '+');
        let profile: String = profile.unwrap_or("mig").to_ascii_lowercase().chars().filter(valid).take(32).collect();
        Self(format!("{family}_{profile}"))
    }
}

model::text_type!(GresType);

/// A device file that gres.conf can name: a path below /dev without characters that Slurm reads as a list or range.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DevicePath(String);

impl DevicePath {
    /// Another path to the same file: `/dev/./dxg` for `/dev/dxg`, and `/dev/././dxg` for `/dev/./dxg`.
    pub(super) fn other_spelling(&self) -> Self {
        Self(self.0.replacen("/dev/", "/dev/./", 1))
    }
}

model::text_type!(DevicePath);

impl TryFrom<&Path> for DevicePath {
    type Error = String;

    fn try_from(path: &Path) -> Result<Self, Self::Error> {
        match path.to_str() {
            Some(text)
                if text.starts_with("/dev/")
                    && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.')) =>
            {
                Ok(Self(text.to_owned()))
            }
            _ => Err(format!(
                "the path `{}` cannot be in gres.conf: it is not below /dev, or has special characters",
                path.to_string_lossy().escape_default()
            )),
        }
    }
}

/// A host name: letters, digits, `-` and `.` (and `_`, which some orchestrators use). It begins with a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

model::text_type!(HostName, "the host name `{}` cannot be used", |text| {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
});
