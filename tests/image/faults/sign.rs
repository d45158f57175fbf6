//! Log entries that a case requires, and their text in the table.

use serde_json::Value;

use crate::docker::{records, text};

/// A record of slurminit, or text logged by another program.
#[derive(Clone, Debug)]
pub(crate) enum Sign {
    Event { kind: &'static str, unit: Option<&'static str>, field: Option<(&'static str, &'static str)> },
    Words(&'static str),
}

impl Sign {
    /// A record of this kind, whatever its unit.
    pub(crate) fn event(kind: &'static str) -> Self {
        Self::Event { kind, unit: None, field: None }
    }

    pub(crate) fn of(unit: &'static str, kind: &'static str) -> Self {
        Self::Event { kind, unit: Some(unit), field: None }
    }

    /// Any record that the unit ended with `how` (signal name or exit code), by itself or while the container stops.
    pub(crate) fn ended(unit: &'static str, how: &'static str) -> Vec<Self> {
        ["unit-died", "unit-stopped", "external-failure"].map(|kind| Self::of(unit, kind).with("exit", how)).to_vec()
    }

    /// Also requires this word, such as a signal name or a path, in the field.
    pub(crate) fn with(self, name: &'static str, word: &'static str) -> Self {
        match self {
            Self::Event { kind, unit, .. } => Self::Event { kind, unit, field: Some((name, word)) },
            Self::Words(_) => self,
        }
    }

    fn matches(&self, record: &Value) -> bool {
        match self {
            Self::Words(words) => record.get("kind").is_none() && text(record).contains(words),
            Self::Event { kind, unit, field } => {
                let has_field = |(name, word): &(&str, &str)| {
                    let value = record["fields"][name].as_str().unwrap_or_default();
                    value.split([' ', '(', ')', ',', ':']).any(|part| part == *word)
                };
                record["kind"] == *kind
                    && unit.is_none_or(|unit| record["unit"] == unit)
                    && field.as_ref().is_none_or(has_field)
            }
        }
    }
}

/// The first log line that matches one of the signs, in the text log format without the time.
pub(crate) fn first(log: &str, signs: &[Sign]) -> Option<String> {
    let format_record = |record: &Value| {
        let word = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
        format!("{} {}: {}", word("level"), word("source"), text(record))
    };
    let record = records(log).into_iter().find(|record| signs.iter().any(|sign| sign.matches(record)));
    // Output that bypasses PID 1 is not a record.
    let is_raw = |line: &&str| {
        !line.starts_with('{') && signs.iter().any(|sign| matches!(sign, Sign::Words(words) if line.contains(words)))
    };
    let line = record.as_ref().map(format_record).or_else(|| log.lines().find(is_raw).map(str::to_owned))?;
    Some(format!("`{}`", line.trim().replace('`', "'")))
}
