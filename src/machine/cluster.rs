//! The cluster in this container: the start order of its units, and the state that they share.

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
use model::unit::Spec;

/// The units and their shared state.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) policy: Supervise,
    /// The jobs that this container handles when it starts and stops.
    pub(super) job_care: JobCare,
    pub(super) units: Units,
    pub(super) gates: Gates,
    pub(super) node: Node,
    pub(super) jobs: Jobs,
    pub(super) prepared: Option<Prepared>,
    pub(super) step: Step,
}

impl Cluster {
    pub(super) fn new(units: Vec<Spec>, job_care: JobCare, policy: Supervise, seed: u64) -> Self {
        Self {
            policy,
            job_care,
            units: Units::new(units),
            gates: Gates::default(),
            node: Node::default(),
            jobs: Jobs::default(),
            prepared: None,
            step: Step::new(seed),
        }
    }

    /// Advances the units in start order. A unit that becomes ready at once lets its dependents start in the same step.
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
        let is_held = !self.gates.is_open(unit.spec.gate) || self.jobs.launch_hold.applies_to(unit);
        if is_held || !self.units.are_dependencies_ready(id) {
            // After its backoff, the unit waits without a deadline.
            self.units[id].wait();
            return self.units.report_failed_dependency(id, &mut self.step);
        }
        if unit.is(DaemonName::Slurmctld) {
            let inherited = unit.inherited_state(self.prepared.as_ref());
            self.jobs.before_slurmctld(inherited, &self.units, &mut self.step);
        }
        self.units[id].start(self.policy.probe_timeout, &mut self.step);
        if self.units[id].spec.readiness == ReadinessTest::Started {
            self.mark_ready(id);
            // A step checks the units in order. Earlier units that depend on this one are therefore checked again.
            for before in self.units.ids().take_while(|before| *before < id) {
                self.advance_unit(before);
            }
        }
    }

    /// Marks the unit as ready, so that its dependents may start.
    pub(super) fn mark_ready(&mut self, id: UnitId) {
        if !self.units[id].mark_ready(&mut self.step) {
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
        // Other daemons and services do not affect the node's state.
        let is_needed = self.units[id].is(DaemonName::Munged) || self.units[id].reads_slurms_files();
        if is_needed && self.units.iter().filter(|unit| unit.reads_slurms_files()).all(Unit::is_ready) {
            self.node.request_query(&self.step);
        }
    }
}
