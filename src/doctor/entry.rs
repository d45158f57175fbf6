//! An entry of doctor's table, and its check.

use super::facts::{ContainerFacts, Facts, HostFacts, StartFacts};
use model::inventory::{Kind, Observations};

/// A symptom that users meet, and the check that detects it.
#[derive(Debug)]
pub struct Entry {
    /// The identifier: `gpu-memory`.
    pub id: &'static str,
    /// What the user sees, quoted from programs and documents.
    pub symptoms: &'static [&'static str],
    /// What the check examines.
    pub examines: &'static str,
    /// The usual cause, which observations such as [`Observations::usual_fault`] show.
    pub cause: &'static str,
    /// The usual fix, with the command; shown with the usual cause.
    pub fix: &'static str,
    /// The check, and where it can run.
    pub check: Check,
}

/// A check, and where it can run.
#[derive(Clone, Copy, Debug)]
pub enum Check {
    /// On the host and in the container.
    Anywhere(fn(&Facts) -> Observations),
    /// Only on the host.
    Host(fn(&Facts, &HostFacts) -> Observations),
    /// Only in the container.
    Container(fn(&Facts, &ContainerFacts) -> Observations),
    /// In the container: reports findings of these kinds, or the text if there are none.
    Findings(&'static [Kind], &'static str),
    /// Like `Findings`, with further checks.
    FindingsAnd(&'static [Kind], fn(&Facts, &ContainerFacts, Vec<Observations>) -> Observations),
    /// In the container, and also at every start, because the check is cheap. At a start, its findings are of this kind.
    Start(Kind, fn(&StartFacts<'_>) -> Observations),
}
