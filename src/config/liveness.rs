//! How a process that is ready is asked whether it still answers.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::value;

/// In place of the question that a daemon has by itself, or for a service, which has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It is not asked.
    Off,
    /// This command must end with 0.
    Command {
        /// Program and arguments.
        command: Vec<String>,
        /// How long it may take; `None` is `supervise.probe_timeout`.
        timeout: Option<Duration>,
    },
}

impl<'de> Deserialize<'de> for Liveness {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LivenessVisitor)
    }
}

struct LivenessVisitor;

impl<'de> Visitor<'de> for LivenessVisitor {
    type Value = Liveness;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#""off" or { command = ["..."] }"#)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Liveness, E> {
        match text {
            "off" => Ok(Liveness::Off),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Liveness, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            #[serde(deserialize_with = "value::command")]
            command: Vec<String>,
            #[serde(default, deserialize_with = "value::optional_probe_seconds")]
            timeout: Option<Duration>,
        }
        let Table { command, timeout } = Table::deserialize(de::value::MapAccessDeserializer::new(map))?;
        Ok(Liveness::Command { command, timeout })
    }
}
