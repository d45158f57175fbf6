//! The reload: detect again, install, and apply what changed the gentlest way that works.
//!
//! ```text
//! Idle ─> Preparing ─┬─> nothing changed, or refused ──────────────────────────────> Idle
//!                    ├─> Reconfiguring ─┬────────────────> Starting ─> Watching ───> Idle
//!                    └──────────────────┴─> Stopping ────────^ │           │
//!                                              ^               v           v
//!                                              └─────────── Restoring (the former files again)
//! ```
//!
//! What runs is left alone until the preparation has weighed and installed everything. A daemon that dies twice of the new
//! files, or a node that does not come back, leads to the former ones.

mod apply;
mod notice;
mod state;

pub use notice::ReloadNotice;
pub(super) use state::Reload;
pub use state::{Cause, LastReload, Outcome, ReloadSnapshot};

use std::time::Duration;

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
const RECONFIGURE: Duration = Duration::from_secs(15);

impl Reload {
    /// Requests a reload. Requests during a reload are served by one more reload afterwards.
    pub(super) fn ask(&mut self, cause: Cause) {
        self.asked += 1;
        self.next = Some(cause);
    }

    /// A file in the operator's directory was written; more may follow.
    pub(super) fn note_change(&mut self, now: Moment) {
        self.settle = Some(now + SETTLE);
    }

    /// The files to restore, and the unit that died of the new ones.
    pub(super) fn to_restore(&self) -> (&[String], Option<UnitId>) {
        match &self.stage {
            Stage::Restoring { work, .. } => (&work.changed, work.died),
            _ => (&[], None),
        }
    }

    /// Advances as far as possible. The next reload begins only if `may_begin`.
    pub(super) fn advance(&mut self, cluster: &mut Cluster, may_begin: bool) {
        let now = cluster.step.now;
        if self.settle.is_some_and(|at| now >= at) {
            self.settle = None;
            self.ask(Cause::Change);
        }
        match &self.stage {
            Stage::Preparing { until } if now >= *until => {
                cluster.step.kill_task(Child::Reload);
                let limit = cluster.policy.prepare_timeout;
                let text = format!("the preparation did not end within {limit:?}: a driver or a disk hangs");
                self.end(Outcome::Refused, text, &mut cluster.step);
            }
            Stage::Reconfiguring { until, work } if now >= *until => {
                let work = work.clone();
                cluster.step.say(Notice::Reload(ReloadNotice::ReconfigureTooSlow { limit: RECONFIGURE }));
                cluster.step.kill_task(Child::Reconfigure);
                self.stop_slurm(work, cluster);
            }
            Stage::Restoring { until, .. } if now >= *until => {
                cluster.step.kill_task(Child::Restore);
                self.restored(false, cluster);
            }
            Stage::Stopping { .. } => self.advance_stopping(cluster),
            Stage::Starting { until, work } => {
                let (late, work) = (now >= *until, work.clone());
                if cluster.units.slurm().all(|id| cluster.units[id].is_ready()) && cluster.node.is_known() {
                    self.applied(work, &mut cluster.step);
                } else if late {
                    self.never_came_back(work, cluster);
                }
            }
            Stage::Watching { until, .. } if now >= *until => self.stage = Stage::Idle,
            _ => {}
        }
        if may_begin {
            self.begin(cluster);
        }
    }

    /// Begins the next reload, if one was requested and nothing more important is under way.
    fn begin(&mut self, cluster: &mut Cluster) {
        let free = matches!(self.stage, Stage::Idle | Stage::Watching { .. });
        let left = [Child::Reload, Child::Reconfigure, Child::Restore].iter().any(|task| cluster.step.runs(*task));
        if !free || left {
            return;
        }
        let Some(cause) = self.next.take() else { return };
        self.serves = self.asked;
        self.stage = Stage::Preparing { until: cluster.step.now + cluster.policy.prepare_timeout };
        cluster.step.say(Notice::Reload(ReloadNotice::Begins { cause }));
        cluster.step.start_task(Child::Reload);
    }

    /// Handles a message of the preparation, if that belongs to a reload. Returns whether it did.
    pub(super) fn said(&mut self, event: &PrepareEvent, cluster: &mut Cluster) -> bool {
        if let (Stage::Restoring { work, .. }, PrepareEvent::Failed { finding, .. }) = (&mut self.stage, event) {
            // The preparation reports what the daemon died of before it writes anything.
            if let Some(back) = &mut work.back {
                *back = format!("{back}: {}; repair: {}", finding.what, finding.repair);
            }
            return true;
        }
        if !matches!(self.stage, Stage::Preparing { .. }) {
            return false;
        }
        match event {
            PrepareEvent::MungeKeyReady | PrepareEvent::Detected => {}
            PrepareEvent::Failed { finding, .. } => {
                self.end(Outcome::Refused, finding.to_string(), &mut cluster.step);
            }
            PrepareEvent::Done(prepared) => self.prepared(prepared.clone(), cluster),
        }
        true
    }

    fn prepared(&mut self, prepared: Prepared, cluster: &mut Cluster) {
        let names = prepared.changed.iter().filter_map(|path| path.file_name()?.to_str().map(str::to_owned));
        let usable = |report: &NodeReport| {
            report.is_the_agents_drain() || matches!(report.verdict(), NodeVerdict::Usable | NodeVerdict::Drained)
        };
        let work = Work {
            apply: prepared.apply,
            news: prepared.news.clone(),
            deferred: prepared.deferred.clone(),
            changed: names.collect(),
            former: cluster.prepared.clone(),
            was_usable: cluster.node.report.as_ref().is_some_and(usable),
            deaths: 0,
            back: None,
            died: None,
        };
        let told = work.former.as_ref().map(|former| former.findings.as_slice()).unwrap_or_default();
        let mut shown = prepared.clone();
        shown.findings.retain(|finding| !told.contains(finding));
        if work.former.as_ref().is_some_and(|former| former.gpus == prepared.gpus) {
            shown.gpus.clear();
        }
        cluster.step.say(Notice::Reload(ReloadNotice::Found(Box::new(shown))));
        cluster.prepared = Some(prepared);
        match work.apply {
            Apply::Nothing => {
                let text = work.text("nothing changed", "the daemons need nothing for it");
                self.end_with(!work.deferred.is_empty(), Outcome::Unchanged, text, &mut cluster.step);
            }
            Apply::Reconfigure if work.was_usable => {
                self.stage = Stage::Reconfiguring { until: cluster.step.now + RECONFIGURE, work };
                cluster.step.start_task(Child::Reconfigure);
            }
            // A broken cluster cannot be asked to reconfigure itself.
            Apply::Reconfigure | Apply::Restart => self.stop_slurm(work, cluster),
        }
    }

    /// A child of the reload has ended.
    pub(super) fn exited(&mut self, child: Child, exit: &Exit, cluster: &mut Cluster) {
        match (&self.stage, child) {
            // Its last message was read before its death. If the stage has not changed, it died without one.
            (Stage::Preparing { .. }, Child::Reload) => {
                let text = format!("the preparation {exit}; its own words are in the lines above");
                self.end(Outcome::Refused, text, &mut cluster.step);
            }
            (Stage::Reconfiguring { work, .. }, Child::Reconfigure) => {
                let work = work.clone();
                if *exit == Exit::Code(0) {
                    cluster.node.stop();
                    self.await_slurm(work, cluster);
                    cluster.node.ask(&cluster.step);
                } else {
                    cluster.step.say(Notice::Reload(ReloadNotice::NotReconfigured { exit: exit.clone() }));
                    self.stop_slurm(work, cluster);
                }
            }
            (Stage::Restoring { .. }, Child::Restore) => self.restored(*exit == Exit::Code(0), cluster),
            _ => {}
        }
    }

    fn end(&mut self, outcome: Outcome, text: String, step: &mut Step) {
        self.end_with(false, outcome, text, step);
    }

    /// `deferred`: part of the change waits for the next start.
    fn end_with(&mut self, deferred: bool, outcome: Outcome, text: String, step: &mut Step) {
        step.say(Notice::Reload(ReloadNotice::Ended { outcome, text: text.clone(), deferred }));
        let at_ms = u64::try_from(step.now.as_millis()).unwrap_or(u64::MAX);
        self.last = Some(LastReload { serves: self.serves, at_ms, outcome, text });
        self.stage = Stage::Idle;
    }
}

#[cfg(test)]
mod tests;
