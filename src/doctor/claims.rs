//! Which entry a finding of detection or of the plan belongs to. PURE.
//!
//! The checks behind these findings are made where the facts are; an entry only says them again under its symptom. A
//! finding that no entry claims is shown by the entry `others`: none is lost.

use super::entry::Answer;
use crate::inventory::Finding;

/// An entry, and what the findings that it claims have in their first sentence.
const CLAIMS: &[(&str, &[&str])] = &[
    ("gpu-type", &["the image was built"]),
    ("nvml-versions", &["are of different versions"]),
    ("device-rules", &["\"Unknown Error\"", "do not open", "was refused"]),
    ("nvml-library", &["the library is not in this container", "the library cannot be loaded"]),
    ("no-gpu", &["may use none of them", "NVIDIA_VISIBLE_DEVICES=", "no NVIDIA GPU answers"]),
    ("amd-devices", &["/dev/kfd is not in this container", "are hidden from this container"]),
    ("left-out", &["left out, of", "cannot be given to jobs", "and no GPU here is that"]),
    ("mig", &["MIG"]),
    ("job-devices", &["are not those of CUDA"]),
    ("real-memory", &["claims RealMemory", "memory_mib ="]),
    ("gres", &["Gres= claims", "Gres= has", "GresTypes lacks"]),
    ("driver-answers", &["gives no answer", "NVML counts no such GPU", "lost, of the GPUs", "(KFD)"]),
    ("own-files", &[".conf: ", ".conf is not used", ".conf is replaced"]),
];

/// The entry that claims `finding`.
fn owner(finding: &Finding) -> Option<&'static str> {
    let has = |clues: &[&str]| clues.iter().any(|clue| finding.what.contains(clue));
    CLAIMS.iter().find(|(_, clues)| has(clues)).map(|(id, _)| *id)
}

/// The answers of the entry `id`.
pub(super) fn of<'a>(findings: &'a [Finding], id: &'a str) -> impl Iterator<Item = Answer> + 'a {
    findings.iter().filter(move |finding| owner(finding) == Some(id)).cloned().map(Answer::from)
}

/// The answers that belong to no entry.
pub(super) fn unclaimed(findings: &[Finding]) -> impl Iterator<Item = Answer> + '_ {
    findings.iter().filter(|finding| owner(finding).is_none()).cloned().map(Answer::from)
}

/// The entries that claim something.
#[cfg(test)]
pub(super) fn owners() -> impl Iterator<Item = &'static str> {
    CLAIMS.iter().map(|(id, _)| *id)
}
