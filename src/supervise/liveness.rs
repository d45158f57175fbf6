//! The questions by which a daemon that lives but does not answer is found, and what can come of one.
//!
//! PURE. PID 1 gives the questions of a round to one child, `slurminit liveness`, and reads an answer a line.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What one unit is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// The unit's number.
    pub unit: usize,
    /// Its main process, whose work tells a slow daemon from a hung one.
    pub pid: i32,
    /// Where it listens, if that is known: who keeps it busy is connected there.
    #[serde(default)]
    pub door: Option<Door>,
    /// Commands; each reads what the one before it wrote, and all must end with 0.
    pub commands: Vec<Vec<String>>,
    /// How long the answer may take, in milliseconds.
    pub timeout_ms: u64,
}

impl Question {
    /// How long the answer may take.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

/// Where a unit listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Door {
    /// This TCP port.
    Port(u16),
    /// This Unix socket.
    Socket(PathBuf),
}

/// What came of one question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The unit's number.
    pub unit: usize,
    /// What it showed.
    pub verdict: Verdict,
}

/// What a question showed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It answered.
    Answers,
    /// It did not, and did nothing else either.
    Silent(String),
    /// It was stopped by a signal: no time makes up for that.
    Stopped(String),
    /// It did not, but it runs, and others than the cluster itself hold many connections to it: a restart would drop what they
    /// hold, and they would come back.
    Overloaded(String),
    /// It did not, and worked or waited for a CPU meanwhile.
    Slow(String),
    /// The question could not be asked, or its failure says nothing about the unit.
    Unknown(String),
}
