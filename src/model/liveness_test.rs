//! The configured liveness check of a ready process.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::value;

/// Replaces or disables a daemon's built-in liveness check, or adds a check to a daemon or service that has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LivenessTest {
    /// No check.
    Off,
    /// This command must exit with 0.
    Command {
        /// Program and arguments.
        command: Vec<String>,
        /// The command's timeout, limited to `supervise.probe_interval`; `None` means `supervise.probe_timeout`.
        timeout: Option<Duration>,
    },
}

impl<'de> Deserialize<'de> for LivenessTest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            #[serde(deserialize_with = "value::command")]
            command: Vec<String>,
            #[serde(default, deserialize_with = "value::optional_probe_seconds")]
            timeout: Option<Duration>,
        }
        let table = value::word_or_table(deserializer, "off", r#""off" or { command = ["..."] }"#)?;
        Ok(table.map_or(Self::Off, |Table { command, timeout }| Self::Command { command, timeout }))
    }
}
