//! Small validated values, and how seconds and commands are read.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, de};

/// A node's or cluster's name: letters, digits, `-`, `_` and `.`, as Slurm and a host name allow, at most 63.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

impl NodeName {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for NodeName {
    /// The name in the one-container role.
    fn default() -> Self {
        Self("localhost".to_owned())
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for NodeName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let starts = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        // ALL and DEFAULT have a meaning of their own in slurm.conf.
        let reserved = ["all", "default"].contains(&text.to_ascii_lowercase().as_str());
        if starts && !reserved && text.len() <= 63 && text.chars().all(is_name_character) {
            Ok(Self(text))
        } else {
            Err(format!(
                "`{}` is not a name: want letters, digits, `-`, `_`, `.`, at most 63, not ALL or DEFAULT",
                text.escape_default()
            ))
        }
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.0
    }
}

/// A node's Feature: letters, digits, `-`, `_`, `.`; Slurm reads `&|()[]*,` in a constraint as operators.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FeatureName(String);

impl FeatureName {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Makes a Feature of a name that a driver gave: lower case, runs of anything else become one `_`; `None` if
    /// nothing is left.
    pub fn from_hardware(name: &str) -> Option<Self> {
        let mut text = String::new();
        for c in name.chars().flat_map(char::to_lowercase).take(64) {
            if is_name_character(c) {
                text.push(c);
            } else if !text.ends_with('_') {
                text.push('_');
            }
        }
        Self::try_from(text.trim_matches(['_', '-', '.']).to_owned()).ok()
    }
}

impl fmt::Display for FeatureName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for FeatureName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let starts = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if starts && text.len() <= 64 && text.chars().all(is_name_character) {
            Ok(Self(text))
        } else {
            Err(format!(
                "`{}` is not a Feature: want letters, digits, `-`, `_` and `.`, at most 64",
                text.escape_default()
            ))
        }
    }
}

impl From<FeatureName> for String {
    fn from(name: FeatureName) -> Self {
        name.0
    }
}

fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// A year: longer is a slip of the pen, and `Duration` arithmetic stays far from its end.
const LONGEST: f64 = 366.0 * 86_400.0;

/// Reads seconds, with or without a fraction.
pub(super) fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(deserializer)?;
    if (0.0..=LONGEST).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(de::Error::custom(format_args!("want seconds from 0 to {LONGEST}, not {seconds}")))
    }
}

/// As [`seconds`], for a key that may be absent.
pub(super) fn optional_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    seconds(deserializer).map(Some)
}

/// No daemon answers sooner on a busy machine, and no probe comes to an end.
const SHORTEST_PROBE: Duration = Duration::from_millis(100);

/// As [`seconds`], for the time that an answer may take.
pub(super) fn probe_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    match seconds(deserializer)? {
        time if time < SHORTEST_PROBE => Err(de::Error::custom("want at least 0.1 seconds")),
        time => Ok(time),
    }
}

/// As [`probe_seconds`], where zero is never.
pub(super) fn probe_seconds_or_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    match seconds(deserializer)? {
        time if !time.is_zero() && time < SHORTEST_PROBE => {
            Err(de::Error::custom("want 0 (never) or at least 0.1 seconds"))
        }
        time => Ok(time),
    }
}

/// As [`probe_seconds`], for a key that may be absent.
pub(super) fn optional_probe_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    probe_seconds(deserializer).map(Some)
}

/// Reads a program and its arguments.
pub(super) fn command<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let command = Vec::<String>::deserialize(deserializer)?;
    if command.first().is_none_or(String::is_empty) {
        return Err(de::Error::custom("a command needs a program: [\"/path/to/program\", \"argument\"]"));
    }
    if command.iter().any(|argument| argument.contains('\0')) {
        return Err(de::Error::custom("a command cannot hold a NUL character"));
    }
    Ok(command)
}

/// As [`command`], for a key that may be absent.
pub(super) fn optional_command<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    command(deserializer).map(Some)
}
