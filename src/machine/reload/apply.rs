//! Applies the new files to slurmctld and slurmd, and restores the previous files if the new ones do not work.
//!
//! Most functions take the work of the stage that ends, and return the stage that begins.

use std::time::Duration;

use model::daemons::DaemonName;
use model::prepared::Apply;

use super::super::cluster::Cluster;
use super::super::unit::RestartIntent;
use super::super::{Child, Notice};
use super::state::{Rollback, Stage, Work};
use super::{Outcome, Reload};
use crate::UnitId;

/// The timeout for restoring the previous files.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a reload watches the daemons for crashes. A daemon that crashes because of its configuration does so within a second of reading it.
/// slurmd reads it after slurmctld.
const CRASH_WATCH: Duration = Duration::from_secs(5);
/// The number of deaths of slurmctld and slurmd, counted together, at which the previous files are restored. A single death may have any cause.
const DEATHS_BEFORE_ROLLBACK: u32 = 2;

impl Reload {
    /// Handles the end of slurmctld or slurmd. Returns whether the reload, not the cluster, starts the unit again. A
    /// daemon that slurminit stopped because it was not ready or did not answer counts as dead.
    pub(in super::super) fn unit_exited(
        &mut self,
        id: UnitId,
        intent: Option<RestartIntent>,
        cluster: &mut Cluster,
    ) -> bool {
        if !cluster.units[id].reads_slurms_files() {
            return false;
        }
        let work = match &mut self.stage {
            Stage::Idle | Stage::Preparing { .. } => return false,
            Stage::Stopping { .. } | Stage::Restoring { .. } => return true,
            Stage::Finishing { work, .. } if work.apply == Apply::Nothing => return false,
            Stage::Reconfiguring { work, .. }
            | Stage::Starting { work, .. }
            | Stage::Finishing { work, .. }
            | Stage::Watching { work, .. } => work,
        };
        let is_requested = intent == Some(RestartIntent::Requested);
        work.deaths += u32::from(!is_requested);
        if is_requested || work.deaths < DEATHS_BEFORE_ROLLBACK || work.rollback.is_some() {
            return false;
        }
        if let Some(work) = std::mem::take(&mut self.stage).into_work() {
            let why = format!("{} fails with the new files", cluster.units[id].name());
            self.stage = roll_back(Some(id), why, work, cluster);
        }
        true
    }

    /// Continues a reload once the daemons are ready, and the node is usable or remains drained.
    pub(super) fn applied(&mut self, work: Work, cluster: &mut Cluster) -> Stage {
        match &work.rollback {
            Some(Rollback { why, is_restored: true, .. }) => {
                let text = format!("{why}; the cluster runs with the previous files");
                self.end(Outcome::RolledBack, text, &mut cluster.step)
            }
            Some(Rollback { why, .. }) => {
                let text = format!("{why}; the previous files could not be restored");
                self.end(Outcome::Failed, text, &mut cluster.step)
            }
            None => self.run_next_helper(None, work, cluster),
        }
    }

    /// Ends a successful reload.
    pub(super) fn finish(&mut self, work: Work, cluster: &mut Cluster) -> Stage {
        let daemons = [DaemonName::Slurmctld, DaemonName::Slurmd];
        let own = daemons.into_iter().filter(|name| cluster.units.daemon(*name).is_some());
        let own = own.map(|name| name.to_string()).collect::<Vec<_>>();
        let step = &mut cluster.step;
        let be = if own.len() == 1 { "was" } else { "were" };
        let done = match work.apply {
            Apply::Nothing => {
                let text = work.text("nothing changed", "no daemon is affected");
                return self.end_with(!work.deferred.is_empty(), Outcome::Unchanged, text, step);
            }
            Apply::Reconfigure => "reconfigured",
            Apply::Restart => "restarted",
        };
        let how = format!("{} {be} {done}", own.join(" and "));
        let text = work.text(&how, &how);
        self.end_with(!work.deferred.is_empty(), Outcome::Applied, text, step);
        Stage::Watching { until: step.now + CRASH_WATCH, work }
    }

    /// Handles daemons or a node that did not become ready before the deadline.
    pub(super) fn handle_node_timeout(&mut self, work: Work, cluster: &mut Cluster) -> Stage {
        let after = cluster.policy.ready_timeout.as_secs();
        let report = cluster.node.report.as_ref();
        let node = report.map(|node| format!(" (the controller last reported: {node})")).unwrap_or_default();
        let why = format!("the cluster is not ready {after} s after the new files were applied{node}");
        match &work.rollback {
            Some(rollback) => {
                let restore = if rollback.is_restored { "were restored" } else { "could not be restored" };
                let text = format!(
                    "{}; the previous files {restore}, and the cluster is still not ready after {after} s{node}",
                    rollback.why
                );
                self.end(Outcome::Failed, text, &mut cluster.step)
            }
            None => self.undo(why, work, cluster),
        }
    }

    /// Handles new files that do not work: restores the previous files if the node was usable with them. If it was not, the new files remain, because
    /// the next change may complete them.
    pub(super) fn undo(&mut self, why: String, work: Work, cluster: &mut Cluster) -> Stage {
        match work.was_usable {
            true => roll_back(None, why, work, cluster),
            false => self.end(Outcome::Failed, why, &mut cluster.step),
        }
    }
}

/// Whether slurmctld and slurmd are ready, and the node is usable or remains drained.
pub(super) fn is_slurm_ready(cluster: &Cluster) -> bool {
    cluster.units.slurm().into_iter().all(|id| cluster.units[id].is_ready()) && cluster.node.is_known()
}

/// Stops slurmctld and slurmd, so that they restart with the new files.
pub(super) fn stop_slurm(work: Work, cluster: &mut Cluster) -> Stage {
    cluster.gates.hold_slurm();
    cluster.node.forget(&mut cluster.step);
    advance_stopping(Work { apply: Apply::Restart, ..work }, cluster)
}

/// Stops slurmd, then slurmctld, which must outlive it; then lets both start again. Job steps keep running under their slurmstepd.
pub(super) fn advance_stopping(work: Work, cluster: &mut Cluster) -> Stage {
    let slurm = cluster.units.slurm();
    if !cluster.units.stop_in_order(&slurm, RestartIntent::Requested, &mut cluster.step) {
        return Stage::Stopping { work };
    }
    for id in slurm {
        cluster.units[id].wait();
        cluster.units[id].forget_failures();
    }
    cluster.gates.release_slurm();
    cluster.advance_units();
    start_slurm(work, cluster)
}

/// Begins to wait for the daemons and the node, with the timeout of a container start.
pub(super) fn start_slurm(work: Work, cluster: &Cluster) -> Stage {
    Stage::Starting { until: cluster.step.now + cluster.policy.ready_timeout, work }
}

/// Starts restoring the previous files.
fn roll_back(failed_unit: Option<UnitId>, why: String, mut work: Work, cluster: &mut Cluster) -> Stage {
    let name = failed_unit.map(|id| cluster.units[id].name());
    cluster.step.report(Notice::RollingBack { name, why: why.clone() });
    cluster.gates.hold_slurm();
    cluster.node.forget(&mut cluster.step);
    cluster.step.kill_task(Child::Reconfigure);
    cluster.prepared = work.previous.take();
    work.rollback = Some(Rollback { why, failed_unit, is_restored: false });
    cluster.step.start_task(Child::Restore);
    Stage::Restoring { until: cluster.step.now + RESTORE_TIMEOUT, work }
}

/// Handles the result of restoring the previous files.
pub(super) fn restored(is_restored: bool, mut work: Work, cluster: &mut Cluster) -> Stage {
    if let Some(rollback) = &mut work.rollback {
        rollback.is_restored = is_restored;
    }
    if !is_restored {
        cluster.step.report(Notice::NotRestored);
    }
    advance_stopping(work, cluster)
}
