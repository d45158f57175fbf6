//! The options of `slurminit configure` that select GPUs.

use std::str::FromStr;

use super::gpu_file::ContainerGpus;
use super::host_gpus::HostGpus;
use super::situation::Situation;
pub use config::GpuType;
use model::inventory::{Finding, Kind};

/// The GPUs that are passed to the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All GPUs.
    All,
    /// Only the GPUs with these IDs.
    Ids(Vec<GpuId>),
}

/// A GPU ID that is safe in a compose file: an index, `GPU-...` or `MIG-...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuId(String);

impl GpuId {
    /// The index, if the ID is a number.
    pub fn index(&self) -> Option<usize> {
        self.0.parse().ok()
    }
}

model::text_type!(GpuId);

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
                return Err(format!("duplicate GPU `{id}`"));
            }
            ids.push(id);
        }
        Ok(Self::Ids(ids))
    }
}

fn parse_id(text: &str) -> Result<GpuId, String> {
    let is_index = !text.is_empty() && text.len() <= 3 && text.bytes().all(|byte| byte.is_ascii_digit());
    let name = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"));
    // Older names of MIG instances contain slashes: MIG-GPU-UUID/0/0.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'/';
    let is_name = name.is_some_and(|name| !name.is_empty() && name.len() <= 64 && name.bytes().all(is_plain));
    match text.parse::<u16>() {
        Ok(index) if is_index => Ok(GpuId(index.to_string())),
        _ if is_name => Ok(GpuId(text.to_owned())),
        _ => Err(format!("invalid GPU `{text}`: expected all, or comma-separated numbers, GPU-... or MIG-... IDs")),
    }
}

/// Checks the selection against the host's GPUs, as far as these are known.
///
/// # Errors
/// A GPU does not exist, the vendor's GPUs are selected only by number, or the host has GPUs of several vendors and `gpu_type` is not set.
pub fn check(selection: &Selection, gpu_type: Option<GpuType>, situation: &Situation) -> Result<(), String> {
    let Selection::Ids(ids) = selection else { return Ok(()) };
    let is_default_choice = |gpus: &&dyn HostGpus| match gpu_type {
        Some(gpu_type) => gpu_type.vendor() == Some(gpus.vendor()),
        None => gpus.is_default_choice(),
    };
    let all = || situation.gpus.iter().map(Box::as_ref);
    let candidates: Vec<&dyn HostGpus> = all().filter(is_default_choice).collect();
    let target = candidates.first().copied().or_else(|| all().next());
    for id in ids {
        if candidates.len() > 1 {
            let options: Vec<String> = candidates.iter().map(|gpus| format!("--gpu-type {}", gpus.vendor())).collect();
            let makers: Vec<&str> = candidates.iter().map(|gpus| gpus.vendor().traits().maker).collect();
            let (makers, options) = (makers.join(" and of "), options.join(" or "));
            return Err(format!("--gpus {id}: this host has GPUs of {makers}; select a vendor with {options}"));
        }
        target.map_or(Ok(()), |gpus| gpus.check(id))?;
    }
    Ok(())
}

/// Reports a request that this host cannot meet. The files are still written, because they may be for another host.
pub fn unmet_request(
    selection: &Selection,
    gpu_type: Option<GpuType>,
    container_gpus: &ContainerGpus,
    situation: &Situation,
) -> Option<Finding> {
    let may_be_present = |vendor| situation.gpus.iter().any(|gpus| gpus.vendor() == vendor && gpus.may_be_present());
    let (problem, fix) = match (gpu_type.and_then(GpuType::vendor), selection) {
        (Some(vendor), _) if !may_be_present(vendor) => (
            format!("--gpu-type {vendor}: no such GPU on this host"),
            "to use the detected GPUs, remove the option; the generated files are for a host with such a GPU",
        ),
        (_, Selection::Ids(_)) if container_gpus.has_no_gpus() => (
            "--gpus: no GPU can be passed to the container".to_owned(),
            "apply the fixes above, or remove the option; the generated files pass no GPU",
        ),
        _ => return None,
    };
    Some(Finding::error(Kind::Other, problem, "the report above lists the detected GPUs and their faults", fix))
}

/// The error for a GPU that the host does not have; `count` is the number of the vendor's GPUs on the host.
pub(super) fn unknown_gpu(id: &GpuId, count: usize) -> String {
    format!("--gpus {id}: no such GPU; this host has {}", index_range(count))
}

pub(super) fn index_range(count: usize) -> String {
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
    fn unknown_gpu_is_answered_with_the_existing_ones() {
        assert_eq!([0, 1, 2].map(index_range), ["none", "only GPU 0", "GPUs 0 to 1"]);
    }

    #[test]
    fn selection_accepts_only_all_or_indexes_or_ids() {
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
