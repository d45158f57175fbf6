//! The collection of units.

use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

use model::daemons::DaemonName;

use super::Notice;
use super::step::Step;
use super::unit::{RestartIntent, Unit};
use model::unit::Spec;

/// A unit's index. [`Units`] creates the indices; a deserialized one may refer to no unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnitId(pub(crate) usize);

/// All daemons and services, in start order.
#[derive(Debug)]
pub struct Units(Vec<Unit>);

impl Units {
    /// Builds the units. The configuration has already checked that every name in an `after` exists.
    pub(super) fn new(specs: Vec<Spec>) -> Self {
        let id = |name: &String| specs.iter().position(|spec| spec.name == *name).map(UnitId);
        let dependencies: Vec<Vec<_>> = specs.iter().map(|spec| spec.after.iter().filter_map(id).collect()).collect();
        let units = specs.into_iter().zip(dependencies).enumerate();
        Self(units.map(|(index, (spec, dependencies))| Unit::new(UnitId(index), spec, dependencies)).collect())
    }

    /// The units in start order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Unit> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Unit> {
        self.0.iter_mut()
    }

    /// All IDs. They do not borrow the units, so the caller may change units while iterating.
    pub fn ids(&self) -> impl Iterator<Item = UnitId> + use<> {
        (0..self.0.len()).map(UnitId)
    }

    /// The unit with this name.
    pub fn named(&self, name: &str) -> Option<&Unit> {
        self.iter().find(|unit| unit.spec.name == name)
    }

    pub(super) fn daemon(&self, name: DaemonName) -> Option<&Unit> {
        self.daemons(name).next()
    }

    /// The instances of a daemon: at most one, except that each simulated node has a slurmd.
    pub(super) fn daemons(&self, name: DaemonName) -> impl Iterator<Item = &Unit> {
        self.iter().filter(move |unit| unit.is(name))
    }

    /// Sets the user that slurmctld runs as to the one in the operator's slurm.conf.
    pub(super) fn set_slurm_user(&mut self, user: Option<&str>) {
        let slurmctld = self.iter_mut().find(|unit| unit.is(DaemonName::Slurmctld));
        if let (Some(unit), Some(user)) = (slurmctld, user) {
            unit.spec.user = Some(user.to_owned());
        }
    }

    /// Whether this daemon is one of the units, and ready.
    pub(super) fn has_ready(&self, name: DaemonName) -> bool {
        self.daemon(name).is_some_and(Unit::is_ready)
    }

    /// slurmctld and each slurmd of this container.
    pub(super) fn slurm(&self) -> Vec<UnitId> {
        self.iter().filter(|unit| unit.reads_slurms_files()).map(|unit| unit.id).collect()
    }

    /// The container's exit code if the unit is given up; `None` if the container continues without it. A running cluster does not need accounting,
    /// so the container does not exit if accounting fails.
    pub(super) fn essential_exit_code(&self, unit: &Unit) -> Option<u8> {
        unit.spec.essential.filter(|_| !(unit.is_for_accounting() && self.was_controller_ready()))
    }

    /// Whether slurmctld has been ready: it has then saved the associations of the accounting database.
    fn was_controller_ready(&self) -> bool {
        self.daemon(DaemonName::Slurmctld).is_some_and(Unit::has_been_ready)
    }

    /// Whether every dependency of this unit is ready, or has exited with code 0. slurmctld needs accounting only until it has been ready once.
    pub(super) fn are_dependencies_ready(&self, id: UnitId) -> bool {
        let is_controller = self[id].is(DaemonName::Slurmctld);
        let is_waived = |other: &Unit| is_controller && other.is_for_accounting() && self.was_controller_ready();
        self[id].dependencies.iter().map(|other| &self[*other]).all(|other| other.satisfies() || is_waived(other))
    }

    /// Logs, once, that this unit does not start because a dependency has failed and is not restarted.
    pub(super) fn report_failed_dependency(&mut self, id: UnitId, step: &mut Step) {
        let has_failed = |other: &&UnitId| self[**other].has_finished() && !self[**other].has_succeeded();
        let failed = self[id].dependencies.iter().find(has_failed).copied();
        if let Some(other) = failed.filter(|_| failed != self[id].failed_dependency) {
            step.report(Notice::DependencyFailed { name: self[id].name(), dependency: self[other].name() });
        }
        self[id].failed_dependency = failed;
    }

    /// Stops these units in reverse start order: each one once all of these units that depend on it have ended. Returns whether all have ended.
    pub(super) fn stop_in_order(&mut self, ids: &[UnitId], intent: RestartIntent, step: &mut Step) -> bool {
        for id in ids {
            let is_needed = ids.iter().any(|other| self[*other].is_alive() && self[*other].dependencies.contains(id));
            let unit = &mut self[*id];
            if unit.is_running() && !is_needed {
                unit.stop(intent, step);
            }
        }
        !ids.iter().any(|id| self[*id].is_alive())
    }
}

impl Index<UnitId> for Units {
    type Output = Unit;

    fn index(&self, id: UnitId) -> &Unit {
        &self.0[id.0]
    }
}

impl IndexMut<UnitId> for Units {
    fn index_mut(&mut self, id: UnitId) -> &mut Unit {
        &mut self.0[id.0]
    }
}
