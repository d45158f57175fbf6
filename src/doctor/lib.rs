//! An answer for each symptom: what was examined, the observation, its verdict, cause and fix.
//!
//! [`facts`], [`entry`] and the entries are pure: they turn observations into answers. [`look`] collects the
//! observations. All entries form one table: `slurminit doctor` runs the checks that are possible where it runs, each
//! start runs the cheap ones, and docs/reference/doctor.md is generated from the table.

#![forbid(unsafe_code)]

pub mod configure;
mod entries;
pub mod entry;
pub mod facts;
pub mod look;
mod place;
pub mod requirements;
mod root_only;

pub use entries::PARTS;
pub use entry::{Check, Entry};
pub use model::inventory::{Observation, Observations, Verdict};
pub use root_only::RootOnly;

use facts::{Facts, Side, StartFacts};
use model::inventory::{Finding, Kind};
use place::Place;

/// A group of entries under one heading.
#[derive(Debug)]
pub struct Part {
    /// The heading of the group.
    pub title: &'static str,
    /// The entries of the group.
    pub entries: &'static [Entry],
}

/// An entry and the result of its check.
#[derive(Debug)]
pub struct ExaminedEntry {
    /// The heading of the group that contains the entry.
    pub part: &'static str,
    /// The entry.
    pub entry: &'static Entry,
    /// The result of the entry's check.
    pub observations: Observations,
}

/// The fix that a user who is not root sees for a warning or a fault.
const ASK_ADMINISTRATOR: &str = "ask an administrator: `slurminit doctor` as root shows the fix";

/// Runs every check that is possible on this side of the container boundary. For a user who is not root, replaces results
/// that depend on facts that only root can observe, and the fixes of warnings and faults.
pub fn examine(facts: &Facts) -> Vec<ExaminedEntry> {
    let place = Place::of(facts);
    let examined = |part: &'static Part, entry: &'static Entry| {
        let observations = match (entry.check, &facts.side) {
            (Check::Anywhere(check), _) => check(facts),
            (Check::Host(check), Side::Host(host)) => check(facts, host),
            (Check::Container(check), Side::Container(container)) => check(facts, container),
            (Check::Findings(kinds, good), Side::Container(_)) => {
                Observations::all(facts.findings_of(kinds), || Observations::ok(good))
            }
            (Check::FindingsAnd(kinds, check), Side::Container(container)) => {
                check(facts, container, facts.findings_of(kinds))
            }
            (Check::Start(_, check), Side::Container(container)) => {
                let inventory = facts.root.part(|root| &root.inventory);
                check(&StartFacts { inventory, environment: &facts.environment, cheap: &container.cheap })
            }
            _ => return None,
        };
        let observations = observations.explained(entry.cause, entry.fix);
        let needs_root = facts.root.take_read();
        let observations = match place {
            Some(place) => observations.map_fixes(|fix| place.fix(fix)),
            None => observations,
        };
        let observations = match facts.is_root {
            true => observations,
            false if needs_root => root_only::not_checked(),
            false => observations.with_fix_of_faults(ASK_ADMINISTRATOR),
        };
        Some(ExaminedEntry { part: part.title, entry, observations })
    };
    let of_part = |part: &'static Part| part.entries.iter().filter_map(move |entry| examined(part, entry));
    PARTS.iter().flat_map(of_part).collect()
}

/// The worst verdict of all observations.
pub fn worst_verdict(examined: &[ExaminedEntry]) -> Verdict {
    examined.iter().map(|entry| entry.observations.verdict()).max().unwrap_or(Verdict::Ok)
}

/// Warnings and errors of the cheap checks, for the start of a container. Only `slurminit doctor` reports notes.
pub fn startup_findings(start: &StartFacts<'_>) -> Vec<Finding> {
    let answer = |entry: &Entry| match entry.check {
        Check::Start(kind, check) => Some((kind, check(start).explained(entry.cause, entry.fix))),
        _ => None,
    };
    let answers = PARTS.iter().flat_map(|part| part.entries).filter_map(answer);
    let findings = |(kind, answer): (Kind, Observations)| {
        answer.observations().iter().cloned().filter_map(|observation| observation.finding(kind)).collect::<Vec<_>>()
    };
    answers.flat_map(findings).collect()
}

#[cfg(test)]
mod tests;
