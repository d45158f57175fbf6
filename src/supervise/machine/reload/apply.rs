//! Both daemons get the new files, and the former ones where they cannot live with those.

use std::time::Duration;

use crate::config::DaemonName;
use crate::report::Apply;

use super::super::super::daemon::Gate;
use super::super::unit::{Again, State};
use super::super::{Child, Effect, Machine, Moment, Node, Notice};
use super::state::{Stage, Work};
use super::{Outcome, ReloadNotice};

/// How long the former files may take to be written.
const RESTORE: Duration = Duration::from_secs(10);
/// A daemon that dies of its configuration does so within a second of reading it; slurmd reads it after slurmctld.
const WATCH: Duration = Duration::from_secs(5);
/// One death may have any cause; the start after it would die again of the files.
const DEATHS: u32 = 2;

impl Machine {
    /// Takes the end of slurmctld or slurmd, if the reload wants it or dies of it. One that was told to end because it did not
    /// get ready, or did not answer, counts as one that died.
    pub(in super::super) fn reload_takes_exit(
        &mut self,
        now: Moment,
        unit: usize,
        told: Option<Again>,
        out: &mut Vec<Effect>,
    ) -> bool {
        if !self.slurm_units().any(|slurm| slurm == unit) {
            return false;
        }
        match &mut self.reload.stage {
            Stage::Stopping { .. } | Stage::Restoring { .. } => {}
            Stage::Reconfiguring { work, .. } | Stage::Starting { work, .. } | Stage::Watching { work, .. } => {
                let asked = told == Some(Again::AsAsked);
                work.deaths += u32::from(!asked);
                if asked || work.deaths < DEATHS || work.back.is_some() {
                    return false;
                }
                let work = work.clone();
                let why = format!("{} does not live with the new files", self.name(unit));
                self.go_back(now, Some(unit), why, work, out);
            }
            Stage::Idle | Stage::Preparing { .. } => return false,
        }
        self.set_state(unit, State::Waiting);
        true
    }

    pub(in super::super) fn slurm_units(&self) -> impl Iterator<Item = usize> + use<> {
        let at = |name| self.setup.units.iter().position(|spec| spec.daemon == Some(name));
        // In the order of their stop.
        [at(DaemonName::Slurmd), at(DaemonName::Slurmctld)].into_iter().flatten()
    }

    /// Closes the gates, so that nothing starts; returns whether slurmd's was open.
    fn close_gates(&mut self) -> bool {
        self.open.remove(&Gate::Files);
        self.open.remove(&Gate::Jobs)
    }

    /// slurmd first, which slurmctld must outlive. Job steps live on, each with its own slurmstepd.
    pub(super) fn stop_slurm(&mut self, now: Moment, work: Work, out: &mut Vec<Effect>) {
        let work = Work { apply: Apply::Restart, ..work };
        let reopen = self.close_gates();
        self.leave_node(out);
        self.reload.stage = Stage::Stopping { work, reopen };
        self.advance_stopping(now, out);
    }

    /// What was known of the node is no news of the one to come.
    fn leave_node(&mut self, out: &mut Vec<Effect>) {
        self.node = Node::Unwatched;
        self.resumed = false;
        for task in [Child::NodeCheck, Child::NodeResume] {
            if self.tasks.contains(&task) && !out.contains(&Effect::Kill(task)) {
                out.push(Effect::Kill(task));
            }
        }
    }

    pub(super) fn advance_stopping(&mut self, now: Moment, out: &mut Vec<Effect>) {
        for unit in self.slurm_units() {
            match self.units.get(unit).map(|unit| unit.state.clone()) {
                Some(State::Stopping { .. }) => return,
                Some(State::Starting { .. } | State::Ready { .. }) => {
                    return self.stop_unit(now, unit, Again::AsAsked, out);
                }
                _ => self.set_state(unit, State::Waiting),
            }
        }
        let Stage::Stopping { work, reopen } = &self.reload.stage else { return };
        let (work, reopen) = (work.clone(), *reopen);
        for unit in self.slurm_units() {
            if let Some(unit) = self.units.get_mut(unit) {
                unit.forget_failures();
            }
        }
        self.open.insert(Gate::Files);
        if reopen {
            self.open.insert(Gate::Jobs);
        }
        self.await_slurm(now, work);
        // In the order of their start: one that is ready at once lets the next one start in this same step.
        for unit in 0..self.units.len() {
            self.advance_unit(now, unit, out);
        }
    }

    pub(super) fn await_slurm(&mut self, now: Moment, work: Work) {
        self.reload.stage = Stage::Starting { until: now + self.setup.supervise.ready_timeout, work };
    }

    pub(super) fn applied(&mut self, now: Moment, work: Work, out: &mut Vec<Effect>) {
        match &work.back {
            Some(why) => {
                let text = format!("{why}; everything runs as before, with the former files");
                self.end_reload(now, Outcome::WentBack, text, out);
            }
            None => {
                let how = match work.apply {
                    Apply::Nothing => "",
                    Apply::Reconfigure => "slurmctld and slurmd were reconfigured",
                    Apply::Restart => "slurmctld and slurmd were restarted",
                };
                let text = work.text(how, how);
                self.end_reload(now, Outcome::Applied, text, out);
                self.reload.stage = Stage::Watching { until: now + WATCH, work };
            }
        }
    }

    pub(super) fn never_came_back(&mut self, now: Moment, work: Work, out: &mut Vec<Effect>) {
        let after = self.setup.supervise.ready_timeout.as_secs();
        let node = self.report.as_ref().map(|node| format!(" ({}: {})", node.state, node.reason)).unwrap_or_default();
        let why = format!("the node cannot be used {after} s after the new files were applied{node}");
        match &work.back {
            Some(first) => {
                let text = format!("{first}; the former files did not help within {after} s{node}");
                self.end_reload(now, Outcome::Failed, text, out);
            }
            None if work.was_usable => self.go_back(now, None, why, work, out),
            None => self.end_reload(now, Outcome::Failed, why, out),
        }
    }

    fn go_back(&mut self, now: Moment, unit: Option<usize>, why: String, work: Work, out: &mut Vec<Effect>) {
        let name = unit.map(|unit| self.name(unit)).unwrap_or_default();
        out.push(Effect::Say(Notice::Reload(ReloadNotice::GoesBack { name, why: why.clone() })));
        let reopen = self.close_gates();
        self.leave_node(out);
        if self.tasks.contains(&Child::Reconfigure) {
            out.push(Effect::Kill(Child::Reconfigure));
        }
        self.prepared.clone_from(&work.former);
        let work = Work { back: Some(why), died: unit, ..work };
        self.reload.stage = Stage::Restoring { until: now + RESTORE, work, reopen };
        self.spawn_task(Child::Restore, out);
    }

    pub(super) fn restored(&mut self, now: Moment, well: bool, out: &mut Vec<Effect>) {
        let Stage::Restoring { work, reopen, .. } = &self.reload.stage else { return };
        let (work, reopen) = (work.clone(), *reopen);
        if !well {
            out.push(Effect::Say(Notice::Reload(ReloadNotice::NotRestored)));
        }
        self.reload.stage = Stage::Stopping { work, reopen };
        self.advance_stopping(now, out);
    }
}
