//! What the machine shows of itself.

use serde::{Deserialize, Serialize};

use crate::report::Prepared;

use super::super::node::NodeReport;
use super::notice::how;
use super::unit::{Again, End, State};
use super::{Machine, Moment, Node, Phase, ReloadSnapshot, Span};

/// The machine's state for `status` and `health`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// `hooks`, `preparing`, `starting`, `ready`, `stopping`.
    pub phase: String,
    /// Whether jobs can run now.
    pub ready: bool,
    /// One line that says why not, or `ready`.
    pub why: String,
    /// The daemons and services in the order of their start.
    pub units: Vec<UnitSnapshot>,
    /// The node's last known state.
    pub node: Option<NodeReport>,
    /// What the preparation decided.
    pub prepared: Option<Prepared>,
    /// The reloads so far.
    #[serde(default)]
    pub reload: ReloadSnapshot,
    /// What the start spent its time on.
    pub timeline: Vec<Span>,
}

/// One daemon or service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitSnapshot {
    /// Its name.
    pub name: String,
    /// `waiting`, `starting`, `ready`, `stopping`, `backing off`, `finished`, `given up`.
    pub state: String,
    /// When this state began, in milliseconds since slurminit started, for `starting` and `ready`.
    pub since_ms: Option<u64>,
    /// Its process; the edge fills it in.
    pub pid: Option<i32>,
    /// How often it was started.
    pub starts: u32,
    /// How often it was started again.
    pub restarts: u32,
    /// Whether the container ends when it cannot be kept alive.
    pub essential: bool,
    /// How its last process ended.
    pub last_exit: Option<String>,
    /// Why slurminit had told that process to end, if it had.
    pub last_exit_why: Option<String>,
    /// When it ended, in milliseconds since slurminit started.
    pub last_exit_ms: Option<u64>,
}

impl Machine {
    /// What `status` shows.
    pub fn snapshot(&self) -> Snapshot {
        let units = self.setup.units.iter().zip(&self.units).map(|(spec, unit)| {
            let (state, since) = word(&unit.state);
            let end = unit.last_end.as_ref();
            UnitSnapshot {
                name: spec.name.clone(),
                state: state.to_owned(),
                since_ms: since.map(ms),
                pid: None,
                starts: unit.starts,
                restarts: unit.starts.saturating_sub(1),
                essential: spec.essential.is_some(),
                last_exit: end.map(|end| how(&end.exit)),
                last_exit_why: end.and_then(why_told),
                last_exit_ms: end.map(|end| ms(end.at)),
            }
        });
        let units = units.collect();
        let missing =
            self.setup.units.iter().zip(&self.units).find(|(spec, unit)| spec.essential.is_some() && !unit.is_ready());
        let (phase, why) = match &self.phase {
            Phase::New | Phase::Hook { .. } => ("hooks", Some("a pre-start hook runs".to_owned())),
            Phase::Prepare { .. } => ("preparing", Some("the GPUs are being detected".to_owned())),
            Phase::Stop(_) | Phase::End => ("stopping", Some("the container stops".to_owned())),
            Phase::Boot { .. } => ("starting", None),
            Phase::Serve => ("ready", None),
        };
        let why = why.or_else(|| missing.map(|(spec, unit)| format!("{} is {}", spec.name, word(&unit.state).0)));
        let why = why.or_else(|| self.node_trouble());
        Snapshot {
            phase: phase.to_owned(),
            ready: why.is_none(),
            why: why.unwrap_or_else(|| "ready".to_owned()),
            units,
            node: self.report.clone(),
            prepared: self.prepared.clone(),
            reload: self.reload.snapshot(),
            timeline: self.timeline(),
        }
    }

    fn node_trouble(&self) -> Option<String> {
        if self.setup.only_cmd || self.node == Node::Known {
            return None;
        }
        Some(match &self.report {
            Some(report) if !report.reason.is_empty() => format!("the node is {} ({})", report.state, report.reason),
            Some(report) => format!("the node is {}", report.state),
            None => "the node has not registered".to_owned(),
        })
    }
}

fn ms(moment: Moment) -> u64 {
    u64::try_from(moment.as_millis()).unwrap_or(u64::MAX)
}

fn why_told(end: &End) -> Option<String> {
    match (end.told?, &end.silence) {
        (Again::No, _) => None,
        (Again::AfterSilence, Some(silence)) => Some(format!("it did not answer ({silence})")),
        (Again::AfterSilence, None) => Some("it did not answer".to_owned()),
        (Again::AfterFailure, _) => Some("it did not get ready".to_owned()),
        (Again::AsAsked, _) => Some("a restart was asked for".to_owned()),
    }
}

fn word(state: &State) -> (&'static str, Option<Moment>) {
    match state {
        State::Waiting => ("waiting", None),
        State::Starting { since, .. } => ("starting", Some(*since)),
        State::Ready { since } => ("ready", Some(*since)),
        State::Stopping { .. } => ("stopping", None),
        State::BackingOff { .. } => ("backing off", None),
        State::Finished => ("finished", None),
        State::GivenUp => ("given up", None),
    }
}
