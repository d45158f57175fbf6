//! GPU details (model and memory) that a node registers with the controller, in addition to its GRES.
//!
//! The controller stores it as the node's `Extra`. It is untrusted: root on a node can set any text.

use serde::{Deserialize, Serialize};

use super::OfferedGpu;
use crate::inventory::gres;

/// The maximum length of the text in bytes, enough for eight GPUs with seven instances each.
const MAX_BYTES: usize = 8 << 10;
/// The maximum length of a model name, in characters.
const MAX_MODEL_LENGTH: usize = 64;

/// One GPU of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The model, or the GPU's model and the profile of a MIG instance.
    pub model: String,
    /// The GPU's memory in MiB, if known.
    pub memory_mib: Option<u64>,
}

/// The text. It is JSON, because slurmctld parses it as JSON with `SchedulerParameters=extra_constraints`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Extra {
    gpus: Vec<Run>,
}

/// GPUs of the same kind, one after the other.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    n: usize,
    model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mib: Option<u64>,
}

/// The text for a node with these GPUs, in Slurm's order; empty without GPUs. It is printable ASCII.
pub fn text(gpus: &[OfferedGpu]) -> String {
    let mut extra = Extra::default();
    let mut text = String::new();
    for gpu in gpus {
        let model: String = gpu.model.chars().map(printable).take(MAX_MODEL_LENGTH).collect();
        match extra.gpus.last_mut() {
            Some(last) if last.model == model && last.mib == gpu.memory_mib => last.n += 1,
            _ => extra.gpus.push(Run { n: 1, model, mib: gpu.memory_mib }),
        }
        // GPUs that do not fit are dropped; the earlier ones keep their index.
        match serde_json::to_string(&extra) {
            Ok(longer) if longer.len() <= MAX_BYTES => text = longer,
            _ => break,
        }
    }
    text
}

/// Escapes non-ASCII characters, because Slurm prints the text unescaped.
fn printable(c: char) -> char {
    if c.is_ascii_graphic() || c == ' ' { c } else { '?' }
}

/// The GPUs of a text, in Slurm's order; empty if the text has another format.
pub fn parse(text: &str) -> Vec<Announced> {
    if text.len() > MAX_BYTES {
        return Vec::new();
    }
    let extra: Extra = serde_json::from_str(text).unwrap_or_default();
    let gpus = extra.gpus.into_iter().flat_map(|run| {
        let model = run.model.chars().take(MAX_MODEL_LENGTH).collect();
        std::iter::repeat_n(Announced { model, memory_mib: run.mib }, run.n.min(gres::MAX_GPUS))
    });
    gpus.take(gres::MAX_GPUS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(model: &str, memory_mib: Option<u64>) -> OfferedGpu {
        OfferedGpu { model: model.to_owned(), memory_mib, ..OfferedGpu::default() }
    }

    #[test]
    fn text_round_trips_within_maximum_length() {
        let gpus =
            [gpu("NVIDIA H200", Some(143_771)), gpu("NVIDIA H200", Some(143_771)), gpu("AMD\n\u{202e}\"x", None)];
        let announced = text(&gpus);
        assert_eq!(announced, r#"{"gpus":[{"n":2,"model":"NVIDIA H200","mib":143771},{"n":1,"model":"AMD??\"x"}]}"#);
        let read = parse(&announced);
        assert_eq!((read.len(), read[1].memory_mib, read[2].model.as_str()), (3, Some(143_771), "AMD??\"x"));
        assert_eq!(text(&[]), "");
        let many: Vec<OfferedGpu> = (0..200).map(|number| gpu(&"x".repeat(99), Some(number))).collect();
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
