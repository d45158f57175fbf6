//! GPU details (model, memory, index and device file) that a node registers with the controller, in addition to its GRES.
//!
//! The controller stores these details as the node's `Extra`. They are untrusted: root on a node can set any text.

use serde::{Deserialize, Serialize};

use super::OfferedGpu;
use crate::inventory::{file_kind, gres};

/// The maximum length of the text in bytes, enough for eight GPUs with seven instances each.
const MAX_BYTES: usize = 8 << 10;
/// The maximum length of a model name or device file, in characters.
const MAX_MODEL_LENGTH: usize = 64;

/// One GPU or MIG instance of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The model, or the GPU's model and the profile of a MIG instance.
    pub model: String,
    /// The memory of the GPU or MIG instance in MiB, if known.
    pub memory_mib: Option<u64>,
    /// The driver's index of the GPU; `None` from a node with an older slurminit.
    pub index: Option<u32>,
    /// The device file; for a MIG instance, the last of its device files. `None` from a node with an older slurminit.
    pub file: Option<String>,
}

impl From<&OfferedGpu> for Announced {
    fn from(gpu: &OfferedGpu) -> Self {
        let (model, file) = (gpu.model.clone(), Some(gpu.file.clone()));
        Self { model, memory_mib: gpu.memory_mib, index: Some(gpu.index), file }
    }
}

/// The registered text. It is JSON, because slurmctld parses it as JSON with `SchedulerParameters=extra_constraints`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Extra {
    gpus: Vec<Run>,
}

/// A run of equal GPUs, whose indices and device file numbers are consecutive.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    n: usize,
    model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mib: Option<u64>,
    /// The index of the first GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpu: Option<u32>,
    /// The device file of the first GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

impl Run {
    /// The index and device file of the GPU at this position of the run, counted from 0.
    fn place(&self, number: usize) -> (Option<u32>, Option<String>) {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let file = self.file.as_deref().and_then(|first| match number {
            0 => Some(first.to_owned()),
            _ => {
                let kind = file_kind(first);
                Some(format!("{kind}{}", first[kind.len()..].parse::<u32>().ok()?.checked_add(number)?))
            }
        });
        (self.gpu.and_then(|first| first.checked_add(number)), file)
    }
}

/// The text for a node with these GPUs, in Slurm's order; empty without GPUs. It is printable ASCII.
pub fn text(gpus: &[OfferedGpu]) -> String {
    let mut extra = Extra::default();
    let mut text = String::new();
    for gpu in gpus {
        let model: String = gpu.model.chars().map(printable).take(MAX_MODEL_LENGTH).collect();
        let (index, file) = (Some(gpu.index), Some(gpu.file.chars().map(printable).take(MAX_MODEL_LENGTH).collect()));
        match extra.gpus.last_mut() {
            Some(last)
                if last.model == model && last.mib == gpu.memory_mib && last.place(last.n) == (index, file.clone()) =>
            {
                last.n += 1;
            }
            _ => extra.gpus.push(Run { n: 1, model, mib: gpu.memory_mib, gpu: index, file }),
        }
        // From the first GPU that does not fit, all are dropped, so that the others keep their positions.
        match serde_json::to_string(&extra) {
            Ok(longer) if longer.len() <= MAX_BYTES => text = longer,
            _ => break,
        }
    }
    text
}

/// Replaces all but printable ASCII characters, because Slurm prints the text unescaped.
fn printable(c: char) -> char {
    if c.is_ascii_graphic() || c == ' ' { c } else { '?' }
}

/// Parses a registered text. The GPUs are in Slurm's order; the list is empty if the text is too long or has another format.
pub fn parse(text: &str) -> Vec<Announced> {
    if text.len() > MAX_BYTES {
        return Vec::new();
    }
    let extra: Extra = serde_json::from_str(text).unwrap_or_default();
    let gpus = extra.gpus.into_iter().flat_map(|run| {
        let model: String = run.model.chars().take(MAX_MODEL_LENGTH).collect();
        (0..run.n.min(gres::MAX_GPUS)).map(move |number| {
            let (index, file) = run.place(number);
            let file = file.map(|file| file.chars().take(MAX_MODEL_LENGTH).collect());
            Announced { model: model.clone(), memory_mib: run.mib, index, file }
        })
    });
    gpus.take(gres::MAX_GPUS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32, file: &str, model: &str, memory_mib: Option<u64>) -> OfferedGpu {
        OfferedGpu { index, file: file.to_owned(), model: model.to_owned(), memory_mib, ..OfferedGpu::default() }
    }

    #[test]
    fn text_round_trips_within_maximum_length() {
        let h200 = |index, file| gpu(index, file, "NVIDIA H200", Some(143_771));
        let gpus = [
            h200(1, "/dev/nvidia2"),
            h200(2, "/dev/nvidia3"),
            h200(4, "/dev/nvidia4"),
            gpu(0, "/dev/dri/renderD128", "AMD\n\u{202e}\"x", None),
        ];
        let announced = text(&gpus);
        assert_eq!(
            announced,
            r#"{"gpus":[{"n":2,"model":"NVIDIA H200","mib":143771,"gpu":1,"file":"/dev/nvidia2"},{"n":1,"model":"NVIDIA H200","mib":143771,"gpu":4,"file":"/dev/nvidia4"},{"n":1,"model":"AMD??\"x","gpu":0,"file":"/dev/dri/renderD128"}]}"#
        );
        let read = parse(&announced);
        let places: Vec<_> = read.iter().map(|gpu| (gpu.index.unwrap(), gpu.file.as_deref().unwrap())).collect();
        assert_eq!(places, [1, 2, 4, 0].into_iter().zip(gpus.iter().map(|gpu| gpu.file.as_str())).collect::<Vec<_>>());
        assert_eq!((read[1].memory_mib, read[3].model.as_str()), (Some(143_771), "AMD??\"x"));
        let older = parse(r#"{"gpus":[{"n":2,"model":"x"}]}"#);
        assert_eq!((older.len(), older[1].index, &older[1].file), (2, None, &None));
        assert_eq!(text(&[]), "");
        let many: Vec<OfferedGpu> =
            (0..200).map(|number| gpu(0, "/dev/nvidia0", &"x".repeat(99), Some(number))).collect();
        let announced = text(&many);
        assert!(announced.len() <= MAX_BYTES && parse(&announced).len() > 50, "{}", announced.len());
    }

    #[test]
    fn rejects_or_bounds_foreign_text() {
        for other in ["", "somebody's own text", "[]", "{}", r#"{"gpus":[{"n":-1,"model":"x"}]}"#, &"{".repeat(8000)] {
            assert_eq!(parse(other), [], "{other:.40}");
        }
        let many = r#"{"gpus":[{"n":18446744073709551615,"model":"x"},{"n":9,"model":"y"}]}"#;
        assert_eq!(parse(many).len(), gres::MAX_GPUS);
        assert_eq!(parse(&" ".repeat(MAX_BYTES + 1)), []);
    }
}
