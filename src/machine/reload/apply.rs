//! Gives both daemons the new files, and the former ones if they cannot run with those.

use std::time::Duration;

use model::prepared::Apply;

use super::super::cluster::Cluster;
use super::super::step::Step;
use super::super::unit::Again;
use super::super::{Child, Notice};
use super::state::{Stage, Work};
use super::{Outcome, Reload, ReloadNotice};
use crate::UnitId;
use model::unit::Gate;

/// How long restoring the former files may take.
const RESTORE: Duration = Duration::from_secs(10);
/// A daemon that its configuration kills dies within a second of reading it. slurmd reads it after slurmctld.
const WATCH: Duration = Duration::from_secs(5);
/// A single death may have any cause. If the files are at fault, the daemon dies again at the next start.
const DEATHS: u32 = 2;

impl Reload {
    /// Handles the end of slurmctld or slurmd, if the reload asked for it or caused it. A daemon that was told to end
    /// because it was not ready or did not answer counts as dead.
    pub(in super::super) fn takes_exit(&mut self, id: UnitId, told: Option<Again>, cluster: &mut Cluster) -> bool {
        if !cluster.units[id].reads_slurms_files() {
            return false;
        }
        match &mut self.stage {
            Stage::Stopping { .. } | Stage::Restoring { .. } => {}
            Stage::Reconfiguring { work, .. } | Stage::Starting { work, .. } | Stage::Watching { work, .. } => {
                let asked = told == Some(Again::AsAsked);
                work.deaths += u32::from(!asked);
                if asked || work.deaths < DEATHS || work.back.is_some() {
                    return false;
                }
                let work = work.clone();
                let why = format!("{} does not live with the new files", cluster.units[id].name());
                self.go_back(Some(id), why, work, cluster);
            }
            Stage::Idle | Stage::Preparing { .. } => return false,
        }
        true
    }

    /// slurmd goes first, because slurmctld must outlive it. Job steps keep running under their slurmstepd.
    pub(super) fn stop_slurm(&mut self, work: Work, cluster: &mut Cluster) {
        let work = Work { apply: Apply::Restart, ..work };
        let reopen = close_gates(cluster);
        cluster.node.forget(&mut cluster.step);
        self.stage = Stage::Stopping { work, reopen };
        self.advance_stopping(cluster);
    }

    pub(super) fn advance_stopping(&mut self, cluster: &mut Cluster) {
        for id in cluster.units.slurm() {
            let unit = &mut cluster.units[id];
            if unit.is_stopping() {
                return;
            }
            if unit.runs() {
                return unit.stop(Again::AsAsked, &mut cluster.step);
            }
            unit.wait();
        }
        let Stage::Stopping { work, reopen } = &self.stage else { return };
        let (work, reopen) = (work.clone(), *reopen);
        for id in cluster.units.slurm() {
            cluster.units[id].forget_failures();
        }
        cluster.open.insert(Gate::Files);
        if reopen {
            cluster.open.insert(Gate::Jobs);
        }
        self.await_slurm(work, cluster);
        cluster.advance_units();
    }

    pub(super) fn await_slurm(&mut self, work: Work, cluster: &Cluster) {
        self.stage = Stage::Starting { until: cluster.step.now + cluster.policy.ready_timeout, work };
    }

    pub(super) fn applied(&mut self, work: Work, step: &mut Step) {
        match &work.back {
            Some(why) => {
                let text = format!("{why}; everything runs as before, with the former files");
                self.end(Outcome::WentBack, text, step);
            }
            None => {
                let how = match work.apply {
                    Apply::Nothing => "",
                    Apply::Reconfigure => "slurmctld and slurmd were reconfigured",
                    Apply::Restart => "slurmctld and slurmd were restarted",
                };
                let text = work.text(how, how);
                self.end_with(!work.deferred.is_empty(), Outcome::Applied, text, step);
                self.stage = Stage::Watching { until: step.now + WATCH, work };
            }
        }
    }

    pub(super) fn never_came_back(&mut self, work: Work, cluster: &mut Cluster) {
        let after = cluster.policy.ready_timeout.as_secs();
        let report = cluster.node.report.as_ref();
        let node = report.map(|node| format!(" ({}: {})", node.state, node.reason)).unwrap_or_default();
        let why = format!("the node cannot be used {after} s after the new files were applied{node}");
        match &work.back {
            Some(first) => {
                let text = format!("{first}; the former files did not help within {after} s{node}");
                self.end(Outcome::Failed, text, &mut cluster.step);
            }
            None if work.was_usable => self.go_back(None, why, work, cluster),
            None => self.end(Outcome::Failed, why, &mut cluster.step),
        }
    }

    fn go_back(&mut self, died: Option<UnitId>, why: String, work: Work, cluster: &mut Cluster) {
        let name = died.map(|id| cluster.units[id].name()).unwrap_or_default();
        cluster.step.say(Notice::Reload(ReloadNotice::GoesBack { name, why: why.clone() }));
        let reopen = close_gates(cluster);
        cluster.node.forget(&mut cluster.step);
        cluster.step.kill_task(Child::Reconfigure);
        cluster.prepared.clone_from(&work.former);
        let work = Work { back: Some(why), died, ..work };
        self.stage = Stage::Restoring { until: cluster.step.now + RESTORE, work, reopen };
        cluster.step.start_task(Child::Restore);
    }

    pub(super) fn restored(&mut self, well: bool, cluster: &mut Cluster) {
        let Stage::Restoring { work, reopen, .. } = &self.stage else { return };
        let (work, reopen) = (work.clone(), *reopen);
        if !well {
            cluster.step.say(Notice::Reload(ReloadNotice::NotRestored));
        }
        self.stage = Stage::Stopping { work, reopen };
        self.advance_stopping(cluster);
    }
}

/// Closes the gates so that no daemon starts. Returns whether slurmd's gate was open.
fn close_gates(cluster: &mut Cluster) -> bool {
    cluster.open.remove(&Gate::Files);
    cluster.open.remove(&Gate::Jobs)
}
