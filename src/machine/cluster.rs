//! The cluster in this container: start order, and the state that its parts share.

use model::daemons::{DaemonName, ReadinessTest};
use model::prepared::Prepared;
use model::supervise::Supervise;

use super::gates::Gates;
use super::jobs::Jobs;
use super::node::Node;
use super::step::Step;
use super::unit::Unit;
use super::units::Units;
use crate::UnitId;
use model::unit::JobCare;
use model::unit::{Gate, Spec};

/// The units and their shared state.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) policy: Supervise,
    /// Whose jobs are accounted for.
    pub(super) care: JobCare,
    pub(super) units: Units,
    pub(super) gates: Gates,
    pub(super) node: Node,
    pub(super) jobs: Jobs,
    pub(super) prepared: Option<Prepared>,
    pub(super) step: Step,
}

impl Cluster {
    pub(super) fn new(units: Vec<Spec>, care: JobCare, policy: Supervise, seed: u64) -> Self {
        Self {
            policy,
            care,
            units: Units::new(units),
            gates: Gates::default(),
            node: Node::default(),
            jobs: Jobs::default(),
            prepared: None,
            step: Step::new(seed),
        }
    }

    /// Advances units in start order: one that becomes ready at once lets the next one start in the same step.
    pub(super) fn advance_units(&mut self) {
        for id in self.units.ids() {
            self.advance_unit(id);
        }
    }

    fn advance_unit(&mut self, id: UnitId) {
        if self.units[id].is_due(self.step.now) {
            self.start_if_possible(id);
        } else {
            self.units[id].advance(&mut self.step);
        }
    }

    fn start_if_possible(&mut self, id: UnitId) {
        let unit = &self.units[id];
        let is_held = !self.gates.is_open(unit.spec.gate) || self.jobs.launch_hold.holds(unit);
        if is_held || !self.units.needs_are_met(id) {
            // After the back-off the unit waits like any other, without a deadline.
            self.units[id].wait();
            return self.units.report_failed_need(id, &mut self.step);
        }
        if unit.is(DaemonName::Slurmctld) {
            let follows = unit.follows(self.prepared.as_ref());
            self.jobs.before_slurmctld(follows, &self.units, &mut self.step);
        }
        self.units[id].start(self.policy.probe_timeout, &mut self.step);
        if self.units[id].spec.readiness == ReadinessTest::Started {
            self.is_ready(id);
            // A step checks the units in order. Earlier units that depend on this one are therefore checked again.
            for before in self.units.ids().take_while(|before| *before < id) {
                self.advance_unit(before);
            }
        }
    }

    /// The unit has become ready; its dependents may start.
    pub(super) fn is_ready(&mut self, id: UnitId) {
        if !self.units[id].becomes_ready(&mut self.step) {
            return;
        }
        match self.units[id].spec.daemon {
            Some(DaemonName::Slurmctld) => {
                self.node.controller_came_up();
                self.account_for_jobs();
            }
            Some(DaemonName::Slurmd) => self.slurmd_came_up(),
            _ => {}
        }
        let is_awaited = self.units[id].spec.gate != Gate::Served;
        if is_awaited && self.units.iter().filter(|unit| unit.reads_slurms_files()).all(Unit::is_ready) {
            self.node.ask(&self.step);
        }
    }
}
