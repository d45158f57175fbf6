//! What the user asks for on the command line. PURE.

use std::fmt;
use std::str::FromStr;

use super::gpu_file::Wanted;
use super::situation::Situation;
pub use crate::config::GpuType;
use crate::inventory::{Finding, Severity};

/// Which GPUs the container gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Every one.
    All,
    /// These.
    Ids(Vec<GpuId>),
}

/// The name of a GPU that can stand in a compose file as it is: an index, `GPU-...` or `MIG-...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuId(String);

impl GpuId {
    /// The number, if it is one.
    pub fn index(&self) -> Option<usize> {
        self.0.parse().ok()
    }

    /// As it was typed.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Selection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let mut ids: Vec<GpuId> = Vec::new();
        for id in text.split(',') {
            let id = parse_id(id)?;
            if ids.contains(&id) {
                return Err(format!("`{id}` is named twice"));
            }
            ids.push(id);
        }
        Ok(Self::Ids(ids))
    }
}

fn parse_id(text: &str) -> Result<GpuId, String> {
    let is_index = !text.is_empty() && text.len() <= 3 && text.bytes().all(|byte| byte.is_ascii_digit());
    let name = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"));
    // The older names of MIG instances have slashes: MIG-GPU-UUID/0/0.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'/';
    let is_name = name.is_some_and(|name| !name.is_empty() && name.len() <= 64 && name.bytes().all(is_plain));
    if is_index || is_name {
        return Ok(GpuId(text.trim_start_matches('0').to_owned()).or_zero());
    }
    Err(format!("`{text}` names no GPU: want all, or numbers, GPU-... or MIG-... ids with commas between them"))
}

impl GpuId {
    fn or_zero(self) -> Self {
        if self.0.is_empty() { Self("0".to_owned()) } else { self }
    }
}

/// A selection that this host cannot meet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what the variant is")]
pub enum ChoiceError {
    #[error("--gpus {id}: there is no such GPU on this host; it has {has}")]
    NoSuchGpu { id: GpuId, has: String },
    #[error("--gpus {id}: AMD GPUs are chosen by number; this host has {has}")]
    AmdByNumber { id: GpuId, has: String },
    #[error("--gpus {0}: this host has GPUs of NVIDIA and of AMD; say whose with --gpu-type nvidia or --gpu-type amd")]
    WhoseGpu(GpuId),
}

/// Holds the selection against the GPUs of the host, as far as they are known.
///
/// # Errors
/// The first GPU that cannot be meant.
pub fn check(selection: &Selection, gpu_type: Option<GpuType>, seen: &Situation) -> Result<(), ChoiceError> {
    let Selection::Ids(ids) = selection else { return Ok(()) };
    let (nvidia, amd) = (&seen.nvidia, &seen.amd);
    for id in ids {
        let is_amd = match gpu_type {
            Some(gpu_type) => gpu_type == GpuType::Amd,
            None if nvidia.is_present() && amd.kfd.is_some() => return Err(ChoiceError::WhoseGpu(id.clone())),
            None => amd.kfd.is_some(),
        };
        if is_amd {
            let has = numbers(amd.render_nodes.len());
            match id.index() {
                None => return Err(ChoiceError::AmdByNumber { id: id.clone(), has }),
                Some(index) if index >= amd.render_nodes.len() => {
                    return Err(ChoiceError::NoSuchGpu { id: id.clone(), has });
                }
                Some(_) => {}
            }
            continue;
        }
        let uuids: Vec<&str> = nvidia.gpus.iter().filter_map(|gpu| gpu.uuid.as_deref()).collect();
        let knows = match id.index() {
            Some(index) => index < nvidia.gpus.len(),
            None if id.as_str().starts_with("GPU-") => uuids.len() < nvidia.gpus.len() || uuids.contains(&id.as_str()),
            None => nvidia.mig_ids.is_empty() || nvidia.mig_ids.iter().any(|mig| mig == id.as_str()),
        };
        // Without a driver nothing is known: the user may be preparing for another host.
        if !knows && !nvidia.gpus.is_empty() {
            return Err(ChoiceError::NoSuchGpu { id: id.clone(), has: numbers(nvidia.gpus.len()) });
        }
    }
    Ok(())
}

/// What was asked for that this host has nothing of. The files are written all the same: they may be for another host.
pub fn unmet(selection: &Selection, gpu_type: Option<GpuType>, wanted: &Wanted, seen: &Situation) -> Option<Finding> {
    let option = match (gpu_type, selection) {
        (Some(GpuType::Nvidia), _) if !seen.nvidia.is_present() && !seen.nvidia.has_dxg => "--gpu-type nvidia",
        (Some(GpuType::Amd), _) if !seen.amd.is_present() => "--gpu-type amd",
        (_, Selection::Ids(_)) if wanted.is_plain() => "--gpus",
        _ => return None,
    };
    Some(Finding {
        severity: Severity::Error,
        what: format!("{option}: this host has no such GPU to give to a container"),
        cause: "what was found is above".to_owned(),
        repair: "leave the option out to take what is there, or mend what is said above; what is written is for a host that \
                 has the GPU"
            .to_owned(),
    })
}

fn numbers(count: usize) -> String {
    match count {
        0 => "none".to_owned(),
        1 => "only GPU 0".to_owned(),
        _ => format!("GPUs 0 to {}", count - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_cannot_leave_its_quotes() {
        let ids = |text: &str| match text.parse() {
            Ok(Selection::Ids(ids)) => Some(ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")),
            _ => None,
        };
        assert_eq!("all".parse(), Ok(Selection::All));
        assert_eq!(ids("0,01,10").as_deref(), Some("0 1 10"));
        assert_eq!(ids("GPU-1c1d,MIG-GPU-1c1d/0/0").as_deref(), Some("GPU-1c1d MIG-GPU-1c1d/0/0"));
        for bad in ["", "0,", "0,0", "0,00", "-1", "GPU-", "GPU-1'", "GPU-1 2", "GPU-1\n", "x", "0:0", "1234"] {
            assert_eq!(ids(bad), None, "{bad:?}");
        }
    }
}
