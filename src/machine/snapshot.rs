//! The machine's public state.

use serde::{Deserialize, Serialize};

use model::daemons::DaemonName;
use model::prepared::Prepared;

use super::finishing::Helper;
use super::unit::{End, RestartIntent, State};
use super::{Child, Exit, Machine, Moment, Phase, ReloadSnapshot, Span, Unit};
use crate::node_report::NodeReport;
use model::process_id::ProcessId;
use model::role::Role;
use model::unit::JobCare;

/// The name of the status file in the run directory.
pub const STATUS_FILE: &str = "status.json";

/// The contents of the status file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The version of slurminit that wrote the file.
    pub version: String,
    /// Identifies the slurminit that wrote the file, to detect a file from an earlier run.
    #[serde(flatten)]
    pub process: ProcessId,
    /// When slurminit started, in milliseconds of the monotonic clock.
    pub started_ms: u64,
    /// The state of the container and all units.
    #[serde(flatten)]
    pub snapshot: Snapshot,
}

/// The machine's state for `status` and `health`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The phase of the container's life.
    pub phase: PhaseName,
    /// Whether the container is ready. A node that remains drained counts as ready.
    pub ready: bool,
    /// `ready`, or one line with the reason why not.
    pub why: String,
    /// The daemons and services in the order of their start.
    pub units: Vec<UnitSnapshot>,
    /// The node's last known state.
    pub node: Option<NodeReport>,
    /// The result of the preparation.
    pub prepared: Option<Prepared>,
    /// The reloads so far.
    #[serde(default)]
    pub reload: ReloadSnapshot,
    /// How long each part of the start took.
    pub timeline: Vec<Span>,
}

impl Snapshot {
    /// The unit with this name.
    pub fn unit(&self, name: &str) -> Option<&UnitSnapshot> {
        self.units.iter().find(|unit| unit.name == name)
    }

    /// The daemon; on simulated nodes, that of the first node.
    pub fn daemon(&self, name: DaemonName) -> Option<&UnitSnapshot> {
        self.unit(name.as_str())
    }

    /// The role of the running cluster, inferred from its daemons.
    pub fn role(&self) -> Role {
        match (self.daemon(DaemonName::Slurmctld).is_some(), self.daemon(DaemonName::Slurmd).is_some()) {
            (true, true) => Role::All,
            (true, false) => Role::Controller,
            (false, true) => Role::Compute,
            (false, false) => Role::Login,
        }
    }
}

/// The state and history of one daemon or service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitSnapshot {
    /// The unit's name.
    pub name: String,
    /// The unit's state.
    pub state: UnitState,
    /// When this state began, in milliseconds since slurminit started; only for `starting` and `ready`.
    pub since_ms: Option<u64>,
    /// The PID of the main process, which only the supervisor adds.
    pub pid: Option<i32>,
    /// How many times the unit has been started.
    pub starts: u32,
    /// How many times the unit has been restarted.
    pub restarts: u32,
    /// Whether the container exits if this unit is given up, unless `on_give_up` is `hold`.
    pub essential: bool,
    /// How the unit's last process ended.
    pub last_exit: Option<LastExit>,
    /// Why slurminit stopped the last process; `None` if it ended by itself, or because the container stops.
    pub last_exit_why: Option<StopReason>,
    /// The end of the last process, in milliseconds since slurminit started.
    pub last_exit_ms: Option<u64>,
}

/// The phase of the container's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "their names are those in the status")]
pub enum PhaseName {
    #[default]
    Hooks,
    Preparing,
    Starting,
    Ready,
    Stopping,
}

/// The state of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "their names are those in the status")]
pub enum UnitState {
    #[default]
    Waiting,
    Starting,
    Ready,
    Stopping,
    #[serde(rename = "backing off")]
    BackingOff,
    Finished,
    #[serde(rename = "given up")]
    GivenUp,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LastExit {
    /// The process exited with 0.
    #[serde(rename = "exited with code 0")]
    Success,
    /// The process ended in another way, described in words.
    #[serde(untagged)]
    Failure(String),
}

/// Why slurminit stopped a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// An operator requested a restart, or a reload restarted the process.
    #[serde(rename = "a restart was requested")]
    RestartRequested,
    /// The process ran but did not become ready.
    #[serde(rename = "not ready in time")]
    NeverReady,
    /// The process did not respond; the text describes how.
    #[serde(untagged)]
    Silent(String),
}

model::shown_as_serialized!(PhaseName, UnitState, LastExit, StopReason);

impl UnitSnapshot {
    /// Whether the unit is ready.
    pub fn is_up(&self) -> bool {
        self.state == UnitState::Ready
    }

    /// How the unit's last process ended, as part of a sentence.
    pub fn how_it_ended(&self) -> String {
        self.last_exit.as_ref().map_or_else(|| "ended".to_owned(), LastExit::to_string)
    }
}

impl Machine {
    /// The snapshot for `status`.
    pub fn snapshot(&self) -> Snapshot {
        let units = self.cluster.units.iter().map(|unit| {
            let (state, since) = public_state(unit.state());
            let end = unit.last_end.as_ref();
            UnitSnapshot {
                name: unit.name(),
                state,
                since_ms: since.map(ms),
                pid: None,
                starts: unit.starts(),
                restarts: unit.starts().saturating_sub(1),
                essential: self.cluster.units.essential_exit_code(unit).is_some(),
                last_exit: end.map(|end| last_exit(&end.exit)),
                last_exit_why: end.and_then(stop_reason),
                last_exit_ms: end.map(|end| ms(end.at)),
            }
        });
        let units = units.collect();
        let cluster = &self.cluster.units;
        let is_missing = |unit: &&Unit| cluster.essential_exit_code(unit).is_some() && !unit.is_ready_or_succeeded();
        let missing = cluster.iter().find(is_missing);
        let (phase, why) = match &self.phase {
            Phase::New | Phase::Hook { .. } => (PhaseName::Hooks, Some("a pre-start hook is running".to_owned())),
            Phase::Prepare { .. } => {
                (PhaseName::Preparing, Some("GPUs are being detected and Slurm's files written".to_owned()))
            }
            Phase::Stop(_) | Phase::End => (PhaseName::Stopping, Some("the container is stopping".to_owned())),
            Phase::Boot { .. } => (PhaseName::Starting, None),
            Phase::Serve => (PhaseName::Ready, None),
        };
        let why = why.or_else(|| missing.map(|unit| self.why_missing(unit)));
        let why = why.or_else(|| self.node_problem());
        let why = why.or_else(|| match self.phase {
            Phase::Boot { helper: Some(Helper { child: Child::TestJob, .. }), .. } => {
                Some("a test job is running".to_owned())
            }
            Phase::Boot { helper: Some(_), .. } => Some("the accounts of slurminit.toml are being created".to_owned()),
            _ => None,
        });
        Snapshot {
            phase,
            ready: why.is_none(),
            why: why.unwrap_or_else(|| "ready".to_owned()),
            units,
            node: self.cluster.node.report.clone(),
            prepared: self.cluster.prepared.clone(),
            reload: self.reload.snapshot(),
            timeline: self.timeline.spans.clone(),
        }
    }

    /// Why an essential unit is not ready.
    fn why_missing(&self, unit: &Unit) -> String {
        let failed =
            unit.failed_dependency.map(|id| format!(": its dependency {} has failed", self.cluster.units[id].name()));
        match public_state(unit.state()).0 {
            UnitState::GivenUp => format!("{} failed too often, and is not restarted", unit.name()),
            state => format!("{} is {state}{}", unit.name(), failed.unwrap_or_default()),
        }
    }

    fn node_problem(&self) -> Option<String> {
        if !self.setup.has_cluster || self.cluster.node.is_known() {
            return None;
        }
        Some(match &self.cluster.node.report {
            _ if self.setup.jobs == JobCare::OtherContainers => "the controller has not responded".to_owned(),
            Some(report) => format!("the node is {report}"),
            None => "the controller has not reported the node's state".to_owned(),
        })
    }
}

fn ms(moment: Moment) -> u64 {
    u64::try_from(moment.as_millis()).unwrap_or(u64::MAX)
}

fn last_exit(exit: &Exit) -> LastExit {
    if *exit == Exit::Code(0) { LastExit::Success } else { LastExit::Failure(exit.to_string()) }
}

fn stop_reason(end: &End) -> Option<StopReason> {
    match (end.intent?, &end.unresponsive_reason) {
        (RestartIntent::NoRestart, _) => None,
        (RestartIntent::Unresponsive, Some(reason)) => {
            Some(StopReason::Silent(format!("it did not answer ({reason})")))
        }
        (RestartIntent::Unresponsive, None) => Some(StopReason::Silent("it did not answer".to_owned())),
        (RestartIntent::NotReady, _) => Some(StopReason::NeverReady),
        (RestartIntent::Requested, _) => Some(StopReason::RestartRequested),
    }
}

/// The state, and when it began.
fn public_state(state: &State) -> (UnitState, Option<Moment>) {
    match state {
        State::Waiting => (UnitState::Waiting, None),
        State::Starting { since, .. } => (UnitState::Starting, Some(*since)),
        State::Ready { since } => (UnitState::Ready, Some(*since)),
        State::Stopping { .. } => (UnitState::Stopping, None),
        State::BackingOff { .. } => (UnitState::BackingOff, None),
        State::Finished => (UnitState::Finished, None),
        State::GivenUp => (UnitState::GivenUp, None),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use super::*;

    /// Programs read these names in status.json; people see the same names in the table.
    #[test]
    fn displays_and_serializes_the_same_words() {
        fn assert_both<T>(value: T, words: &str)
        where
            T: Serialize + serde::de::DeserializeOwned + fmt::Display + fmt::Debug + PartialEq,
        {
            assert_eq!(value.to_string(), words);
            let json = serde_json::to_value(&value).unwrap();
            assert_eq!(json, words);
            assert_eq!(serde_json::from_value::<T>(json).unwrap(), value);
        }
        assert_both(PhaseName::Hooks, "hooks");
        assert_both(UnitState::Ready, "ready");
        assert_both(UnitState::BackingOff, "backing off");
        assert_both(UnitState::GivenUp, "given up");
        assert_both(last_exit(&Exit::Code(0)), "exited with code 0");
        assert_both(last_exit(&Exit::Code(1)), "exited with code 1");
        assert_both(StopReason::RestartRequested, "a restart was requested");
        assert_both(StopReason::Silent("it did not answer".to_owned()), "it did not answer");
    }

    #[test]
    fn unit_without_an_end_has_ended() {
        let unit = |state, last_exit| UnitSnapshot { state, last_exit, ..UnitSnapshot::default() };
        assert_eq!(unit(UnitState::BackingOff, Some(LastExit::Success)).how_it_ended(), "exited with code 0");
        assert_eq!(unit(UnitState::Waiting, None).how_it_ended(), "ended");
        assert!(unit(UnitState::Ready, None).is_up() && !unit(UnitState::Starting, None).is_up());
    }
}
