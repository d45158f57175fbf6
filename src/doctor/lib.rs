//! An answer for each symptom: what was examined and seen, the verdict, the cause, the repair.
//!
//! [`facts`], [`entry`] and the entries are pure: they turn observations into answers. [`look`] collects the observations. All entries
//! form one table: `slurminit doctor` runs all of it, each start runs the cheap part, and docs/reference/doctor.md is
//! generated from it.

#![forbid(unsafe_code)]

pub mod configure;
mod entries;
pub mod entry;
pub mod facts;
pub mod look;
pub mod requirements;

pub use entries::PARTS;
pub use entry::{Entry, Judge};
pub use model::inventory::{Observation, Observations, Verdict};

use facts::{Facts, Side, Start};
use model::inventory::{Finding, Kind};

/// Entries under one heading.
#[derive(Debug)]
pub struct Part {
    /// The heading.
    pub title: &'static str,
    /// The entries.
    pub entries: &'static [Entry],
}

/// An entry, and what was seen.
#[derive(Debug)]
pub struct Examined {
    /// The heading of the entry.
    pub part: &'static str,
    /// The entry.
    pub entry: &'static Entry,
    /// The result of the entry's check.
    pub observed: Observations,
}

/// Runs every check that is possible on this side.
pub fn examine(facts: &Facts) -> Vec<Examined> {
    let examined = |part: &'static Part, entry: &'static Entry| {
        let observed = match (entry.judge, &facts.side) {
            (Judge::Anywhere(judge), _) => judge(facts),
            (Judge::Host(judge), Side::Host(host)) => judge(facts, host),
            (Judge::Container(judge), Side::Container(container)) => judge(facts, container),
            (Judge::Findings(kinds, good), Side::Container(container)) => {
                Observations::all(container.found(kinds), || Observations::ok(good))
            }
            (Judge::FindingsAnd(kinds, judge), Side::Container(container)) => {
                judge(facts, container, container.found(kinds))
            }
            (Judge::Start(_, judge), Side::Container(container)) => {
                let Facts { inventory, environment, .. } = facts;
                judge(&Start { inventory, environment, cheap: &container.cheap })
            }
            _ => return None,
        };
        Some(Examined { part: part.title, entry, observed })
    };
    let of_part = |part: &'static Part| part.entries.iter().filter_map(move |entry| examined(part, entry));
    PARTS.iter().flat_map(of_part).collect()
}

/// The worst verdict.
pub fn worst(examined: &[Examined]) -> Verdict {
    examined.iter().map(|it| it.observed.verdict()).max().unwrap_or(Verdict::Ok)
}

/// Warnings and errors of the cheap checks, for the start of a container. Notes are reported only by `slurminit doctor`.
pub fn at_start(start: &Start<'_>) -> Vec<Finding> {
    let answer = |entry: &Entry| match entry.judge {
        Judge::Start(kind, judge) => Some((kind, judge(start))),
        _ => None,
    };
    let answers = PARTS.iter().flat_map(|part| part.entries).filter_map(answer);
    let findings = |(kind, answer): (Kind, Observations)| {
        answer.observations().iter().cloned().filter_map(|seen| seen.finding(kind)).collect::<Vec<_>>()
    };
    answers.flat_map(findings).collect()
}

#[cfg(test)]
mod tests;
