//! An answer for each symptom: what was looked at, what was seen, the verdict, the cause, the repair.
//!
//! [`facts`], [`entry`] and the entries are PURE: what was seen becomes answers. [`look`] is EDGE. The entries are one table:
//! `slurminit doctor` goes through it, each start goes through the cheap part of it, and docs/troubleshooting.md is made of it.

mod claims;
mod entries;
pub mod entry;
pub mod facts;
pub mod look;
pub mod requirements;

pub use entries::PARTS;
pub use entry::{Answer, Entry, Judge, Observation, Verdict};

use crate::inventory::{Finding, Severity};
use facts::{Facts, Side, Start};

/// Entries under one heading.
#[derive(Debug)]
pub struct Part {
    /// The heading.
    pub title: &'static str,
    /// The entries.
    pub entries: &'static [Entry],
}

/// An entry with its answer.
#[derive(Debug)]
pub struct Examined {
    /// The heading that it stands under.
    pub part: &'static str,
    /// The entry.
    pub entry: &'static Entry,
    /// What its check saw.
    pub answer: Answer,
}

/// Every entry that can be looked at on this side.
pub fn examine(facts: &Facts) -> Vec<Examined> {
    let examined = |part: &'static Part, entry: &'static Entry| {
        let answer = match (entry.judge, &facts.side) {
            (Judge::Anywhere(judge), _) => judge(facts),
            (Judge::Host(judge), Side::Host(host)) => judge(facts, host),
            (Judge::Container(judge), Side::Container(container)) => judge(facts, container),
            (Judge::Start(judge), Side::Container(container)) => {
                let Facts { inventory, environment, .. } = facts;
                judge(&Start { inventory, environment, cheap: &container.cheap })
            }
            _ => return None,
        };
        Some(Examined { part: part.title, entry, answer })
    };
    let of_part = |part: &'static Part| part.entries.iter().filter_map(move |entry| examined(part, entry));
    PARTS.iter().flat_map(of_part).collect()
}

/// The worst of all verdicts.
pub fn worst(examined: &[Examined]) -> Verdict {
    examined.iter().map(|it| it.answer.verdict()).max().unwrap_or(Verdict::Ok)
}

/// What the cheap checks have to say at the start of a container. What they only note is left to the verb.
pub fn at_start(start: &Start<'_>) -> Vec<Finding> {
    let answer = |entry: &Entry| match entry.judge {
        Judge::Start(judge) => Some(judge(start)),
        _ => None,
    };
    let answers = PARTS.iter().flat_map(|part| part.entries).filter_map(answer);
    answers.flat_map(|answer| answer.observations().to_vec()).filter_map(finding).collect()
}

fn finding(observation: Observation) -> Option<Finding> {
    let severity = match observation.verdict {
        Verdict::Fail => Severity::Error,
        Verdict::Warn => Severity::Warning,
        Verdict::Ok | Verdict::Note | Verdict::CouldNotLook => return None,
    };
    Some(Finding { severity, what: observation.seen, cause: observation.cause?, repair: observation.repair? })
}

#[cfg(test)]
mod tests;
