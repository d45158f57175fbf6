//! The reload: detect again, install, and apply the changes with the least disruption. The main stages:
//!
//! ```text
//! Idle ─> Preparing ─┬─> nothing changed, or refused ──────────────────────────────> Idle
//!                    ├─> Reconfiguring ─┬────────────────> Starting ─> Watching ───> Idle
//!                    └──────────────────┴─> Stopping ────────^ │           │
//!                                              ^               v           v
//!                                              └─────────── Restoring (the previous files)
//! ```
//!
//! Only the controller's container reconfigures the cluster. A compute container sends SIGHUP to its slurmd, and a login
//! container does neither.
//!
//! `Finishing`, which the diagram omits, comes before `Watching`, or before `Idle` if nothing changed: it creates the accounts in the
//! accounting database and, after a change, runs a test job ([`super::finishing`]).
//!
//! Nothing is restarted before the preparation has validated and installed all files. If slurmctld and slurmd die twice in total with
//! the new files, the previous files are restored. If the cluster does not become ready, or the test job fails, the previous files are restored
//! only if the node was usable with them.
//!
//! Every transition takes the stage out of [`Reload`], with the [`Work`] that it owns, and puts the next one back.

mod apply;
mod state;

pub(super) use state::Reload;
pub use state::{Cause, LastReload, Outcome, ReloadSnapshot};

use std::time::Duration;

use model::daemons::DaemonName;
use model::prepared::{Apply, PrepareEvent, Prepared};

use super::cluster::Cluster;
use super::step::Step;
use super::{Child, Exit, Moment, Notice};
use crate::UnitId;
use crate::node_report::{NodeReport, NodeVerdict};
use state::{Stage, Work};

/// Editors and deployments write several files, some of them several times. The reload begins this long after the last
/// write.
const SETTLE: Duration = Duration::from_secs(1);
/// How long `scontrol reconfigure` may take; Slurm's own timeout is 10 s.
const RECONFIGURE_TIMEOUT: Duration = Duration::from_secs(15);

impl Reload {
    /// Requests a reload. Requests during a reload are served by one more reload afterwards.
    pub(super) fn request(&mut self, cause: Cause) {
        self.request_count += 1;
        self.next = Some(cause);
    }

    /// Schedules a reload, because a file in the operator's directory has changed. More changes may follow.
    pub(super) fn note_change(&mut self, now: Moment) {
        self.settle = Some(now + SETTLE);
    }

    /// The files to restore, and the unit that died with the new ones, if one did.
    pub(super) fn rollback_files_and_cause(&self) -> (&[String], Option<UnitId>) {
        match &self.stage {
            Stage::Restoring { work, .. } => {
                (&work.changed, work.rollback.as_ref().and_then(|rollback| rollback.failed_unit))
            }
            _ => (&[], None),
        }
    }

    /// Advances as far as possible. The next reload begins only if `may_begin`.
    pub(super) fn advance(&mut self, cluster: &mut Cluster, may_begin: bool) {
        let now = cluster.step.now;
        if self.settle.is_some_and(|at| now >= at) {
            self.settle = None;
            self.request(Cause::Change);
        }
        self.stage = match std::mem::take(&mut self.stage) {
            Stage::Preparing { until } if now >= until => {
                cluster.step.kill_task(Child::Reload);
                let limit = cluster.policy.prepare_timeout();
                let text = format!(
                    "the preparation timed out after {limit:?}, probably because a driver or disk is slow or hangs; run `slurminit detect`, or raise prepare_timeout"
                );
                cluster.step.start_task(Child::Reopen);
                self.end(Outcome::Refused, text, &mut cluster.step)
            }
            Stage::Reconfiguring { until, work } if now >= until => {
                cluster.step.report(Notice::ReconfigureTooSlow { limit: RECONFIGURE_TIMEOUT });
                cluster.step.kill_task(Child::Reconfigure);
                apply::stop_slurm(work, cluster)
            }
            Stage::Restoring { until, work } if now >= until => {
                cluster.step.kill_task(Child::Restore);
                apply::restored(false, work, cluster)
            }
            Stage::Stopping { work } => apply::advance_stopping(work, cluster),
            Stage::Starting { work, .. } if apply::is_slurm_ready(cluster) => self.applied(work, cluster),
            Stage::Finishing { helper, work } if now >= helper.until => {
                cluster.kill_helper(helper.child);
                self.run_next_helper(Some(helper.child), work, cluster)
            }
            Stage::Starting { until, work } if now >= until => self.handle_node_timeout(work, cluster),
            Stage::Watching { until, .. } if now >= until => Stage::Idle,
            stage => stage,
        };
        if may_begin {
            self.begin(cluster);
        }
    }

    /// Begins the next reload, if one was requested and no other reload or helper is running.
    fn begin(&mut self, cluster: &mut Cluster) {
        let is_idle = matches!(self.stage, Stage::Idle | Stage::Watching { .. });
        let (own, last) =
            ([Child::Reload, Child::Reconfigure, Child::Restore, Child::Reopen], [Child::Associations, Child::TestJob]);
        let has_running_task = own.into_iter().chain(last).any(|task| cluster.step.is_running(task));
        if !is_idle || has_running_task {
            return;
        }
        let Some(cause) = self.next.take() else { return };
        self.served_requests = self.request_count;
        self.stage = Stage::Preparing { until: cluster.step.now + cluster.policy.prepare_timeout() };
        cluster.step.report(Notice::ReloadBegins { cause });
        cluster.step.start_task(Child::Reload);
    }

    /// Handles a message of `prepare --reload` or `prepare --restore`, and returns any other message.
    pub(super) fn handle_message(&mut self, message: PrepareEvent, cluster: &mut Cluster) -> Option<PrepareEvent> {
        match (&mut self.stage, message) {
            // `prepare --restore` reports the cause of the death before it restores the files.
            (Stage::Restoring { work, .. }, PrepareEvent::Failed { finding, .. }) => {
                if let Some(rollback) = &mut work.rollback {
                    rollback.why = format!("{}: {}; fix: {}", rollback.why, finding.what, finding.fix);
                }
            }
            (Stage::Preparing { .. }, PrepareEvent::MungeKeyReady | PrepareEvent::Detected) => {}
            (Stage::Preparing { .. }, PrepareEvent::Failed { finding, .. }) => {
                self.stage = self.end(Outcome::Refused, finding.to_string(), &mut cluster.step);
            }
            (Stage::Preparing { .. }, PrepareEvent::Done(prepared)) => {
                self.stage = self.begin_applying(prepared, cluster)
            }
            (_, message) => return Some(message),
        }
        None
    }

    /// Begins to apply the new files, which are already installed.
    fn begin_applying(&mut self, prepared: Prepared, cluster: &mut Cluster) -> Stage {
        let names = prepared.changed.iter().filter_map(|path| path.file_name()?.to_str().map(str::to_owned));
        let usable = |report: &NodeReport| {
            report.is_drained_by_agent() || matches!(report.verdict(), NodeVerdict::Usable | NodeVerdict::Drained)
        };
        let work = Work {
            apply: prepared.apply,
            news: prepared.news.clone(),
            deferred: prepared.deferred.clone(),
            changed: names.collect(),
            previous: cluster.prepared.take(),
            was_usable: cluster.node.report.as_ref().is_some_and(usable),
            deaths: 0,
            rollback: None,
        };
        let reported = work.previous.as_ref().map(|previous| previous.findings.as_slice()).unwrap_or_default();
        let mut shown = prepared.clone();
        shown.findings.retain(|finding| !reported.contains(finding));
        if work.previous.as_ref().is_some_and(|previous| previous.gpus == prepared.gpus) {
            shown.gpus.clear();
        }
        cluster.step.report(Notice::ReloadPrepared { prepared: Box::new(shown) });
        cluster.prepared = Some(prepared);
        let slurm = cluster.units.slurm();
        let has_controller = cluster.units.daemon(DaemonName::Slurmctld).is_some();
        match work.apply {
            Apply::Nothing => self.run_next_helper(None, work, cluster),
            _ if slurm.is_empty() => self.run_next_helper(None, Work { apply: Apply::Nothing, ..work }, cluster),
            // `scontrol reconfigure` makes all daemons of the cluster read their files, so only the controller's container runs it.
            // The files of a compute container may arrive later, and affect only its own slurmd.
            Apply::Reconfigure if !has_controller && slurm.iter().all(|id| cluster.units[*id].is_ready()) => {
                for id in slurm {
                    cluster.step.signal(Child::Unit(id), libc::SIGHUP);
                }
                cluster.node.forget_failed_test(&cluster.step);
                self.run_next_helper(None, work, cluster)
            }
            Apply::Reconfigure if has_controller && work.was_usable => {
                cluster.step.start_task(Child::Reconfigure);
                Stage::Reconfiguring { until: cluster.step.now + RECONFIGURE_TIMEOUT, work }
            }
            // `scontrol reconfigure` requires a working slurmctld, and SIGHUP requires a ready slurmd.
            Apply::Reconfigure | Apply::Restart => apply::stop_slurm(work, cluster),
        }
    }

    /// Handles the end of a child of the reload.
    pub(super) fn exited(&mut self, child: Child, exit: &Exit, cluster: &mut Cluster) {
        self.stage = match (std::mem::take(&mut self.stage), child) {
            // The preparation's messages are read before its end is handled. If the stage has not changed, there was no final message.
            (Stage::Preparing { .. }, Child::Reload) => {
                let text = format!("the preparation {exit}; see its output in the container's log");
                cluster.step.start_task(Child::Reopen);
                self.end(Outcome::Refused, text, &mut cluster.step)
            }
            (Stage::Reconfiguring { work, .. }, Child::Reconfigure) if *exit == Exit::Code(0) => {
                cluster.node.stop();
                cluster.node.request_query(&cluster.step);
                apply::start_slurm(work, cluster)
            }
            (Stage::Reconfiguring { work, .. }, Child::Reconfigure) => {
                cluster.step.report(Notice::NotReconfigured { exit: exit.clone() });
                apply::stop_slurm(work, cluster)
            }
            (Stage::Restoring { work, .. }, Child::Restore) => apply::restored(*exit == Exit::Code(0), work, cluster),
            (stage, _) => stage,
        };
    }

    /// Starts the next helper once the files are applied; finishes the reload if there is none.
    fn run_next_helper(&mut self, previous: Option<Child>, work: Work, cluster: &mut Cluster) -> Stage {
        match cluster.start_helper(previous, work.apply != Apply::Nothing) {
            Some(helper) => Stage::Finishing { helper, work },
            None => self.finish(work, cluster),
        }
    }

    /// Handles the end of a helper that this reload awaits.
    pub(super) fn helper_ended(&mut self, child: Child, jobs_run: bool, cluster: &mut Cluster) {
        self.stage = match std::mem::take(&mut self.stage) {
            Stage::Finishing { work, .. } if jobs_run => self.run_next_helper(Some(child), work, cluster),
            Stage::Finishing { work, .. } => self.undo(
                "jobs cannot run with the new files; see the error of test-job in the container's log".to_owned(),
                work,
                cluster,
            ),
            stage => stage,
        };
    }

    /// Logs and records the outcome, and returns the next stage.
    fn end(&mut self, outcome: Outcome, text: String, step: &mut Step) -> Stage {
        self.end_with(false, outcome, text, step)
    }

    /// Like [`Self::end`]. `deferred`: part of the change takes effect at the next start.
    fn end_with(&mut self, deferred: bool, outcome: Outcome, text: String, step: &mut Step) -> Stage {
        step.report(Notice::Reloaded { outcome, text: text.clone(), deferred });
        let at_ms = u64::try_from(step.now.as_millis()).unwrap_or(u64::MAX);
        self.last = Some(LastReload { serves: self.served_requests, at_ms, outcome, text });
        Stage::Idle
    }
}

#[cfg(test)]
mod tests;
