//! The GPUs that an entry of `[gpu] only` or `except` selects.

use std::fmt;

use serde::Deserialize;
use toml::Value;

use model::inventory::{Gpu, MigInstance, PciAddress, Vendor};

/// The maximum length of a selector, in bytes: NVML's limit for a GPU name.
const MAX_LENGTH: usize = 95;
/// The minimum length of a UUID prefix: `GPU-` or `MIG-`, and four characters.
const MIN_UUID_LENGTH: usize = 8;

/// The largest GPU number in a selector, above that of any known machine. A larger number is taken as a word of a model's name:
/// `4090`.
const MAX_INDEX: u32 = 255;

/// Selects GPUs by number, UUID, PCI address, model or vendor, and MIG instances by UUID.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub struct GpuSelector {
    kind: Target,
    /// The selector as the operator wrote it.
    text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    /// The driver's number: `0`, `nvidia 0`.
    Index(Option<Vendor>, u32),
    /// A UUID or its prefix, in lower case.
    Uuid(String),
    Pci(PciAddress),
    Vendor(Vendor),
    /// Consecutive words of the model's name, in lower case.
    Model(Vec<String>),
}

impl GpuSelector {
    /// Whether the selector matches this GPU.
    pub fn matches(&self, gpu: &Gpu) -> bool {
        match &self.kind {
            Target::Index(vendor, index) => vendor.is_none_or(|vendor| vendor == gpu.vendor) && *index == gpu.index,
            Target::Uuid(uuid) => has_prefix(gpu.uuid.as_deref(), uuid),
            Target::Pci(address) => gpu.pci_address == Some(*address),
            Target::Vendor(vendor) => gpu.vendor == *vendor,
            Target::Model(name) => {
                let model = words(gpu.model.as_deref().unwrap_or_default());
                model.windows(name.len()).any(|part| part == name)
            }
        }
    }

    /// Whether the selector is a UUID that matches this MIG instance.
    pub fn matches_instance(&self, instance: &MigInstance) -> bool {
        matches!(&self.kind, Target::Uuid(uuid) if has_prefix(instance.uuid.as_deref(), uuid))
    }
}

fn has_prefix(uuid: Option<&str>, prefix: &str) -> bool {
    uuid.is_some_and(|uuid| uuid.to_ascii_lowercase().starts_with(prefix))
}

/// The words of a model's name. `NVIDIA A100-SXM4-40GB` and `nvidia_a100-sxm4-40gb` have the same words.
fn words(model: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '.';
    model.split(|c| !is_part(c)).filter(|word| !word.is_empty()).map(str::to_ascii_lowercase).collect()
}

impl TryFrom<Value> for GpuSelector {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, Self::Error> {
        let text = match value {
            Value::String(text) => text,
            Value::Integer(number) => number.to_string(),
            _ => return Err("expected a GPU's number, UUID, PCI address, model or vendor".to_owned()),
        };
        let lower = text.trim().to_ascii_lowercase();
        let kind = parse(&lower).filter(|_| text.len() <= MAX_LENGTH && !text.contains(char::is_control));
        let expected = "expected a number (\"0\", \"amd 0\"), UUID, PCI address, model (\"NVIDIA H200\") or vendor from `slurminit detect`";
        kind.map(|kind| Self { kind, text: text.clone() })
            .ok_or_else(|| format!("`{}` is not a GPU selector: {expected}", text.escape_default()))
    }
}

fn parse(lower: &str) -> Option<Target> {
    let index = |text: &str| text.parse::<u32>().ok().filter(|index| *index <= MAX_INDEX);
    if let Some(index) = index(lower) {
        return Some(Target::Index(None, index));
    }
    for vendor in Vendor::ALL {
        match lower.strip_prefix(vendor.as_str()).map(str::trim_start) {
            Some("") => return Some(Target::Vendor(vendor)),
            Some(rest) => {
                if let Some(index) = index(rest) {
                    return Some(Target::Index(Some(vendor), index));
                }
            }
            None => {}
        }
    }
    if lower.starts_with("gpu-") || lower.starts_with("mig-") {
        return (lower.len() >= MIN_UUID_LENGTH).then(|| Target::Uuid(lower.to_owned()));
    }
    // lspci omits domain 0.
    if let Some(address) = lower.parse().ok().or_else(|| format!("0000:{lower}").parse().ok()) {
        return Some(Target::Pci(address));
    }
    let words = words(lower);
    let is_name = lower.starts_with(|c: char| c.is_ascii_alphanumeric()) && !lower.contains(':');
    is_name.then_some(Target::Model(words))
}

impl fmt::Display for GpuSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> Option<Target> {
        GpuSelector::try_from(Value::from(text)).ok().map(|selector| selector.kind)
    }

    #[test]
    fn parses_index_vendor_uuid_pci_address_and_model() {
        let pci = |text: &str| text.parse().ok().map(Target::Pci);
        let model = |text: &[&str]| Some(Target::Model(text.iter().map(|word| (*word).to_owned()).collect()));
        for (text, expected) in [
            ("0", Some(Target::Index(None, 0))),
            ("4090", model(&["4090"])),
            ("nvidia 3", Some(Target::Index(Some(Vendor::Nvidia), 3))),
            ("AMD", Some(Target::Vendor(Vendor::Amd))),
            ("GPU-FA4E0000", Some(Target::Uuid("gpu-fa4e0000".to_owned()))),
            ("00000000:17:00.0", pci("0000:17:00.0")),
            ("c1:00.0", pci("0000:c1:00.0")),
            ("NVIDIA A100-SXM4-40GB", model(&["nvidia", "a100", "sxm4", "40gb"])),
            ("nvidia_h200", model(&["nvidia", "h200"])),
            ("", None),
            (" ", None),
            ("GPU-", None),
            ("-1", None),
            ("17:zz.0", None),
            ("a\nb", None),
        ] {
            assert_eq!(kind(text), expected, "{text:?}");
        }
    }

    #[test]
    fn matches_whole_words_of_model() {
        let fits = |model: &str, text: &str| {
            let model = words(model);
            matches!(kind(text), Some(Target::Model(words)) if model.windows(words.len()).any(|part| part == words))
        };
        assert!(fits("NVIDIA H100 80GB HBM3", "H100") && fits("NVIDIA A100-SXM4-40GB", "nvidia_a100-sxm4-40gb"));
        assert!(!fits("NVIDIA H1000", "H100") && !fits("NVIDIA H100", "100"));
    }

    proptest::proptest! {
        #[test]
        fn parser_never_panics(text in "(?s).{0,120}") {
            let _ = GpuSelector::try_from(Value::from(text));
        }
    }

    #[test]
    fn selects_gpu_by_each_of_its_names() {
        let gpu = Gpu {
            vendor: Vendor::Amd,
            index: 1,
            uuid: Some("GPU-FA4E0000-1".to_owned()),
            model: Some("AMD Instinct MI210".to_owned()),
            pci_address: "0000:c1:00.0".parse().ok(),
            ..Gpu::default()
        };
        let selector = |text: &str| GpuSelector::try_from(Value::from(text)).unwrap();
        for text in ["1", "amd 1", "amd", "gpu-fa4e", "c1:00.0", "MI210"] {
            assert!(selector(text).matches(&gpu), "{text}");
            assert!(!selector(text).matches(&Gpu::default()), "{text}");
            assert_eq!(selector(text).to_string(), text);
        }
        for other in ["0", "nvidia 1", "nvidia", "gpu-fa4f", "c2:00.0", "MI21"] {
            assert!(!selector(other).matches(&gpu), "{other}");
        }
        let instance = |uuid: &str| MigInstance { uuid: Some(uuid.to_owned()), ..MigInstance::default() };
        assert!(selector("mig-1234").matches_instance(&instance("MIG-1234-5")));
        assert!(!selector("mig-1234").matches_instance(&instance("MIG-1235-5")));
        assert!(!selector("1").matches_instance(&instance("MIG-1234-5")));
    }
}
