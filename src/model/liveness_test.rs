//! The configured liveness check of a ready process.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::value;

/// Overrides a daemon's built-in liveness check, or adds one to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LivenessTest {
    /// No check.
    Off,
    /// This command must exit with 0.
    Command {
        /// Program and arguments.
        command: Vec<String>,
        /// The command's timeout; `None` means `supervise.probe_timeout`.
        timeout: Option<Duration>,
    },
}

impl<'de> Deserialize<'de> for LivenessTest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LivenessVisitor)
    }
}

struct LivenessVisitor;

impl<'de> Visitor<'de> for LivenessVisitor {
    type Value = LivenessTest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#""off" or { command = ["..."] }"#)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<LivenessTest, E> {
        match text {
            "off" => Ok(LivenessTest::Off),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LivenessTest, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            #[serde(deserialize_with = "value::command")]
            command: Vec<String>,
            #[serde(default, deserialize_with = "value::optional_probe_seconds")]
            timeout: Option<Duration>,
        }
        let Table { command, timeout } = Table::deserialize(de::value::MapAccessDeserializer::new(map))?;
        Ok(LivenessTest::Command { command, timeout })
    }
}
