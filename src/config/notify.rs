//! Who is told of a GPU's fault.

use std::time::Duration;

use serde::Deserialize;

use super::value;
use crate::gpu_health::fault::Policy;

/// A `[[notify]]`: a command that is run for a fault.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notify {
    /// Program and arguments.
    #[serde(deserialize_with = "value::command")]
    pub command: Vec<String>,
    /// The user to run as; `None` means `slurminit`, which has no rights.
    #[serde(default)]
    pub user: Option<String>,
    /// The least severe policy of a fault that is told.
    #[serde(default = "warn")]
    pub at_least: Policy,
    /// How long the command may take.
    #[serde(default = "ten_seconds", deserialize_with = "value::seconds")]
    pub timeout: Duration,
    /// How often it runs in an hour at most.
    #[serde(default = "sixty")]
    pub per_hour: u32,
}

const fn warn() -> Policy {
    Policy::Warn
}

const fn ten_seconds() -> Duration {
    Duration::from_secs(10)
}

const fn sixty() -> u32 {
    60
}
