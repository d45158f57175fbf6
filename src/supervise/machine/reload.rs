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

use crate::report::{Apply, PrepareEvent, Prepared};

use super::super::node::NodeVerdict;
use super::unit::Unit;
use super::{Child, Effect, Exit, Machine, Moment, Node, Notice, Phase};
use state::{Stage, Work};

/// An editor or a deployment writes several files and several times: so long after the last of it.
const SETTLE: Duration = Duration::from_secs(1);
/// How long `scontrol reconfigure` may take; Slurm's own time-out is 10 s.
const RECONFIGURE: Duration = Duration::from_secs(15);

impl Machine {
    /// Asks for a reload. One that comes while another is under way is served after it; more of them are one.
    pub fn reload_asked(&mut self, cause: Cause) {
        if !self.setup.only_cmd && !self.is_stopping() {
            self.reload.asked += 1;
            self.reload.next = Some(cause);
        }
    }

    /// Something was written in the operator's directory, and more may follow.
    pub(super) fn configuration_changed(&mut self, now: Moment) {
        if !self.setup.only_cmd && !self.is_stopping() {
            self.reload.settle = Some(now + SETTLE);
        }
    }

    /// The unit that died of the files that are being taken back.
    pub fn died_of_the_new_files(&self) -> Option<usize> {
        match &self.reload.stage {
            Stage::Restoring { work, .. } => work.died,
            _ => None,
        }
    }

    /// The files that the way back writes.
    pub fn files_to_restore(&self) -> &[String] {
        match &self.reload.stage {
            Stage::Restoring { work, .. } => &work.changed,
            _ => &[],
        }
    }

    pub(super) fn advance_reload(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if self.reload.settle.is_some_and(|at| now >= at) {
            self.reload.settle = None;
            self.reload_asked(Cause::Change);
        }
        match &self.reload.stage {
            Stage::Preparing { until } if now >= *until => {
                out.push(Effect::Kill(Child::Reload));
                let limit = self.setup.supervise.prepare_timeout;
                let text = format!("the preparation did not end within {limit:?}: a driver or a disk hangs");
                self.end_reload(now, Outcome::Refused, text, out);
            }
            Stage::Reconfiguring { until, work } if now >= *until => {
                let work = work.clone();
                out.push(Effect::Say(Notice::Reload(ReloadNotice::ReconfigureTooSlow { limit: RECONFIGURE })));
                out.push(Effect::Kill(Child::Reconfigure));
                self.stop_slurm(now, work, out);
            }
            Stage::Restoring { until, .. } if now >= *until => {
                out.push(Effect::Kill(Child::Restore));
                self.restored(now, false, out);
            }
            Stage::Stopping { .. } => self.advance_stopping(now, out),
            Stage::Starting { until, work } => {
                let (late, work) = (now >= *until, work.clone());
                if self.slurm_units().all(|unit| self.units.get(unit).is_some_and(Unit::is_ready))
                    && self.node == Node::Known
                {
                    self.applied(now, work, out);
                } else if late {
                    self.never_came_back(now, work, out);
                }
            }
            Stage::Watching { until, .. } if now >= *until => self.reload.stage = Stage::Idle,
            _ => {}
        }
        self.begin_reload(now, out);
    }

    /// Begins the next one, if it was asked for and nothing more important is under way.
    fn begin_reload(&mut self, now: Moment, out: &mut Vec<Effect>) {
        // A start that is overdue may be waiting for just this.
        let booted = matches!(self.phase, Phase::Serve | Phase::Boot { told: true, .. });
        let free = matches!(self.reload.stage, Stage::Idle | Stage::Watching { .. });
        let left = [Child::Reload, Child::Reconfigure, Child::Restore].iter().any(|task| self.tasks.contains(task));
        if !booted || !free || left || self.is_stopping() {
            return;
        }
        let Some(cause) = self.reload.next.take() else { return };
        self.reload.serves = self.reload.asked;
        self.reload.stage = Stage::Preparing { until: now + self.setup.supervise.prepare_timeout };
        out.push(Effect::Say(Notice::Reload(ReloadNotice::Begins { cause })));
        self.spawn_task(Child::Reload, out);
    }

    /// Takes what the preparation says, if it is a reload's.
    pub(super) fn reload_said(&mut self, now: Moment, event: &PrepareEvent, out: &mut Vec<Effect>) -> bool {
        if let (Stage::Restoring { work, .. }, PrepareEvent::Failed { finding, .. }) = (&mut self.reload.stage, event) {
            // It says what the daemon died of before it writes anything.
            if let Some(back) = &mut work.back {
                *back = format!("{back}: {}; repair: {}", finding.what, finding.repair);
            }
            return true;
        }
        if !matches!(self.reload.stage, Stage::Preparing { .. }) {
            return false;
        }
        match event {
            PrepareEvent::MungeKeyReady | PrepareEvent::Detected => {}
            PrepareEvent::Failed { finding, .. } => {
                let text = format!("{}; cause: {}; repair: {}", finding.what, finding.cause, finding.repair);
                self.end_reload(now, Outcome::Refused, text, out);
            }
            PrepareEvent::Done(prepared) => self.reload_prepared(now, prepared.clone(), out),
        }
        true
    }

    fn reload_prepared(&mut self, now: Moment, prepared: Prepared, out: &mut Vec<Effect>) {
        let names = prepared.changed.iter().filter_map(|path| path.file_name()?.to_str().map(str::to_owned));
        let work = Work {
            apply: prepared.apply,
            news: prepared.news.clone(),
            deferred: prepared.deferred.clone(),
            changed: names.collect(),
            former: self.prepared.clone(),
            was_usable: self
                .report
                .as_ref()
                .is_some_and(|report| matches!(report.verdict(), NodeVerdict::Usable | NodeVerdict::Drained)),
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
        out.push(Effect::Say(Notice::Reload(ReloadNotice::Found(Box::new(shown)))));
        self.prepared = Some(prepared);
        match work.apply {
            Apply::Nothing => {
                let text = work.text("nothing changed", "the daemons need nothing for it");
                self.end_reload(now, Outcome::Unchanged, text, out);
            }
            Apply::Reconfigure if work.was_usable => {
                self.reload.stage = Stage::Reconfiguring { until: now + RECONFIGURE, work };
                self.spawn_task(Child::Reconfigure, out);
            }
            // A cluster that does not work cannot be asked to reconfigure itself.
            Apply::Reconfigure | Apply::Restart => self.stop_slurm(now, work, out),
        }
    }

    /// A child of the reload is gone.
    pub(super) fn reload_exited(&mut self, now: Moment, child: Child, exit: &Exit, out: &mut Vec<Effect>) {
        match (&self.reload.stage, child) {
            // Its last word was read before its death: still here, it died without one.
            (Stage::Preparing { .. }, Child::Reload) => {
                let how = super::notice::how(exit);
                let text = format!("the preparation {how}; its own words are in the lines above");
                self.end_reload(now, Outcome::Refused, text, out);
            }
            (Stage::Reconfiguring { work, .. }, Child::Reconfigure) => {
                let work = work.clone();
                if *exit == Exit::Code(0) {
                    self.node = Node::Unwatched;
                    self.await_slurm(now, work);
                    self.ask_node(now);
                } else {
                    out.push(Effect::Say(Notice::Reload(ReloadNotice::NotReconfigured { exit: exit.clone() })));
                    self.stop_slurm(now, work, out);
                }
            }
            (Stage::Restoring { .. }, Child::Restore) => self.restored(now, *exit == Exit::Code(0), out),
            _ => {}
        }
    }

    fn end_reload(&mut self, now: Moment, outcome: Outcome, text: String, out: &mut Vec<Effect>) {
        out.push(Effect::Say(Notice::Reload(ReloadNotice::Ended { outcome, text: text.clone() })));
        let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.reload.last = Some(LastReload { serves: self.reload.serves, at_ms, outcome, text });
        self.reload.stage = Stage::Idle;
    }
}

#[cfg(test)]
mod tests;
