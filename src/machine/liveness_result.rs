//! The queries and verdicts of liveness checks, which detect a daemon that is running but not responding.
//!
//! PID 1 passes all checks of a round to one child, `slurminit liveness`, and reads one answer per line.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::UnitId;

/// The variable that passes the checks to `slurminit liveness`, as JSON.
pub const CHECKS_VARIABLE: &str = "SLURMINIT_LIVENESS_CHECKS";

/// The liveness check of one unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LivenessCheck {
    /// The unit to check.
    pub unit: UnitId,
    /// The main process, whose activity distinguishes a slow daemon from a hung one.
    pub pid: i32,
    /// Whether the unit accepts connections. Its clients can then keep it busy, so that it does not answer the check.
    #[serde(default)]
    pub has_clients: bool,
    /// Whether slurmd connects to each slurmstepd for this check.
    #[serde(default)]
    pub connects_to_steps: bool,
    /// A pipeline of commands: each reads the output of the one before it, and all must exit with 0.
    pub commands: Vec<Vec<String>>,
    /// The user to run the commands as; `None` means root.
    #[serde(default)]
    pub user: Option<String>,
    /// Variables added to the commands' environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// How long the answer may take, in milliseconds.
    pub timeout_ms: u64,
}

impl LivenessCheck {
    /// How long the answer may take.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LivenessResult {
    /// The unit that was checked.
    pub unit: UnitId,
    /// The result of the unit's liveness check.
    pub liveness: Liveness,
}

/// The verdict of a liveness check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Liveness {
    /// The unit answered.
    Answers,
    /// The unit did not respond although it was idle, or the check found it broken.
    Silent(String),
    /// The unit or its helper process is stopped by a signal (SIGSTOP). Waiting longer does not help.
    Stopped(String),
    /// The unit did not answer, but was working, waiting for a CPU, or running while clients may have kept it from answering.
    Slow(String),
    /// The unit could not be checked, or the check failed for a reason outside of the unit.
    Unknown(String),
}
