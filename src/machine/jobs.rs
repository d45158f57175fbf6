//! Accounting for jobs: corrects slurmctld's records of the jobs when a daemon comes up. This is unrelated to Slurm's accounting database.
//!
//! | started daemon | possibly wrong in slurmctld | child that corrects this | unit that waits for it |
//! |---|---|---|---|
//! | the container's first slurmctld, with saved jobs | jobs whose processes ended with the previous container | `JobsRecover` | slurmd, at `Gate::Jobs` |
//! | a later slurmctld | jobs that began or ended shortly before the previous slurmctld died | `JobsAccount`, then `JobsReclaim` | slurmd, by the [`LaunchHold`] |
//! | a later slurmd | jobs that were lost before their slurmstepd was forked | `JobsAccount`, then `JobsReclaim` | none |
//!
//! A killed slurmstepd reports nothing, so its job would hold its resources forever. `JobsReclaimDeadSteps` releases them, also on a node whose
//! controller runs in another container.
//!
//! Only one such child runs at a time. If a daemon comes up meanwhile, the accounting is repeated.

use std::time::Duration;

use model::daemons::DaemonName;
use model::prepared::Prepared;
use model::unit::{Gate, JobCare};

use super::cluster::Cluster;
use super::launch_hold::LaunchHold;
use super::step::Step;
use super::unit::Unit;
use super::units::Units;
use super::{Child, Exit, Moment, Notice};

/// How long accounting for the previous start's jobs may take; slurmd waits for it.
const RECOVER_DEADLINE: Duration = Duration::from_secs(15);
/// How long `JobsAccount` may take. A suspended slurmd is resumed once `JobsAccount` has ended.
const ACCOUNT_DEADLINE: Duration = Duration::from_secs(15);
/// How long the search for lost jobs may take. The search waits until a batch job is old enough to be considered lost.
const RECLAIM_DEADLINE: Duration = Duration::from_secs(60);

/// The pause before a failed search for jobs without a slurmstepd is repeated. A full process limit can crash a
/// slurmstepd, and also prevent the search from starting.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// The state of job accounting.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    accounting: Accounting,
    pub(super) launch_hold: LaunchHold,
    /// Whether the previous start's jobs are accounted for, or being accounted for.
    has_recovered: bool,
    /// Whether a slurmd has already been ready since slurminit started.
    has_had_slurmd: bool,
    /// Whether the last search for jobs without a slurmstepd failed.
    has_failed_search: bool,
}

/// The state of the child that accounts for jobs.
#[derive(Debug, Default)]
enum Accounting {
    #[default]
    Idle,
    /// A child accounts for jobs. `until` is `None` after the child was sent SIGKILL; `then` is the accounting to repeat after the child has ended.
    Running { until: Option<Moment>, then: Option<Repeat> },
    /// Jobs without a slurmstepd are searched for again at this moment.
    Pause { until: Moment },
}

/// The accounting to repeat, because of an event while a child accounted for jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Repeat {
    /// A slurmstepd died.
    DeadSteps,
    /// slurmctld or slurmd came up.
    All,
}

/// The saved state that a daemon inherits from its previous process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InheritedState {
    /// The previous process shut down cleanly, which includes a save. The state is complete if it was saved after this
    /// moment.
    Saved(Moment),
    /// The saved state may be stale.
    Unknown,
}

impl Jobs {
    pub(super) fn next_wake(&self) -> Option<Moment> {
        match self.accounting {
            Accounting::Idle => None,
            Accounting::Running { until, .. } => until,
            Accounting::Pause { until } => Some(until),
        }
    }

    fn start_accounting(&mut self, child: Child, limit: Duration, step: &mut Step) {
        self.accounting = Accounting::Running { until: Some(step.now + limit), then: None };
        step.start_task(child);
    }

    /// Suspends slurmd, if the slurmctld that is about to start may have stale state.
    pub(super) fn before_slurmctld(&mut self, inherited: Option<InheritedState>, units: &Units, step: &mut Step) {
        if self.has_recovered && inherited == Some(InheritedState::Unknown) {
            self.launch_hold.hold(units, step);
        }
    }

    pub(super) fn advance(&mut self, step: &mut Step) {
        match &mut self.accounting {
            Accounting::Running { until, .. } if until.is_some_and(|until| step.now >= until) => {
                *until = None;
                for task in [Child::JobsRecover, Child::JobsAccount, Child::JobsReclaim, Child::JobsReclaimDeadSteps] {
                    step.kill_task(task);
                }
            }
            Accounting::Pause { until } if step.now >= *until => {
                self.start_accounting(Child::JobsReclaimDeadSteps, RECLAIM_DEADLINE, step);
            }
            _ => {}
        }
    }

    /// Ends the accounting, because the container stops. The caller kills the child.
    pub(super) fn stop(&mut self, units: &Units, step: &mut Step) {
        self.accounting = Accounting::Idle;
        self.launch_hold.release(units, step);
    }
}

impl Cluster {
    /// Accounts for the jobs after slurmctld, or a slurmd other than the first, has come up.
    pub(super) fn account_for_jobs(&mut self) {
        if self.job_care != JobCare::Cluster {
            return;
        }
        if let Accounting::Running { then, .. } = &mut self.jobs.accounting {
            *then = Some(Repeat::All);
            // A running search for lost jobs is killed and then repeated, because slurmd may be waiting.
            self.step.kill_task(Child::JobsReclaimDeadSteps);
            return self.step.kill_task(Child::JobsReclaim);
        }
        let saved_jobs = self.prepared.as_ref().is_some_and(|prepared| prepared.saved_jobs);
        match std::mem::replace(&mut self.jobs.has_recovered, true) {
            true => self.jobs.start_accounting(Child::JobsAccount, ACCOUNT_DEADLINE, &mut self.step),
            false if saved_jobs => self.jobs.start_accounting(Child::JobsRecover, RECOVER_DEADLINE, &mut self.step),
            false => self.gates.open(Gate::Jobs),
        }
    }

    /// Handles a slurmd that has become ready. Jobs can have been lost only if it is not the first slurmd.
    pub(super) fn slurmd_came_up(&mut self) {
        // This helper closes slurmstepd's sockets to users, so it must not wait for the first liveness round.
        self.step.start_task(Child::OomScore);
        let is_later_slurmd = std::mem::replace(&mut self.jobs.has_had_slurmd, true);
        if is_later_slurmd && self.jobs.has_recovered && self.units.has_ready(DaemonName::Slurmctld) {
            self.account_for_jobs();
        }
    }

    /// Handles the death of a slurmstepd that was killed or crashed.
    pub(super) fn slurmstepd_died(&mut self) {
        match &mut self.jobs.accounting {
            Accounting::Idle => self.search_dead_steps(),
            Accounting::Running { then, .. } => *then = (*then).max(Some(Repeat::DeadSteps)),
            Accounting::Pause { .. } => {}
        }
    }

    fn search_dead_steps(&mut self) {
        self.jobs.start_accounting(Child::JobsReclaimDeadSteps, RECLAIM_DEADLINE, &mut self.step);
    }

    /// Handles the end of a child that accounted for jobs. slurmd stops waiting, unless the accounting starts over.
    pub(super) fn accounting_ended(&mut self, child: Child, exit: Exit) {
        let then = match std::mem::take(&mut self.jobs.accounting) {
            Accounting::Running { then, .. } => then,
            Accounting::Idle | Accounting::Pause { .. } => None,
        };
        let is_search = matches!(child, Child::JobsReclaim | Child::JobsReclaimDeadSteps);
        if child == Child::JobsRecover {
            self.gates.open(Gate::Jobs);
        }
        let has_failed = exit != Exit::Code(0) && !(is_search && then == Some(Repeat::All));
        let is_retry =
            child == Child::JobsReclaimDeadSteps && std::mem::replace(&mut self.jobs.has_failed_search, has_failed);
        if has_failed && !is_retry {
            self.step.report(match child {
                Child::JobsRecover => Notice::JobsNotRecovered { exit },
                Child::JobsAccount => Notice::JobsNotAccounted { exit },
                _ => Notice::JobsNotReclaimed { exit },
            });
        }
        if then == Some(Repeat::All) {
            // slurmd keeps waiting while the accounting starts over. If slurmctld has died, the accounting starts once slurmctld is ready again.
            if self.units.has_ready(DaemonName::Slurmctld) {
                self.account_for_jobs();
            }
            return;
        }
        if !is_search {
            self.jobs.launch_hold.release(&self.units, &mut self.step);
        }
        if child == Child::JobsAccount {
            self.jobs.start_accounting(Child::JobsReclaim, RECLAIM_DEADLINE, &mut self.step);
        } else if then == Some(Repeat::DeadSteps) {
            self.search_dead_steps();
        } else if has_failed && child == Child::JobsReclaimDeadSteps {
            self.jobs.accounting = Accounting::Pause { until: self.step.now + RETRY_PAUSE };
        }
    }
}

impl Unit {
    /// The state that the unit's next process inherits from a previous process; `None` if there is none.
    pub fn inherited_state(&self, prepared: Option<&Prepared>) -> Option<InheritedState> {
        let has_saved_jobs = prepared.is_some_and(|prepared| prepared.saved_jobs);
        match &self.last_end {
            Some(end) if end.exit == Exit::Code(0) => Some(InheritedState::Saved(end.shutdown_began)),
            Some(_) if self.has_been_ready() => Some(InheritedState::Unknown),
            // A process that never became ready has accepted no job.
            _ => has_saved_jobs.then_some(InheritedState::Unknown),
        }
    }

    /// Whether the unit's next process is the first to use an empty state directory.
    pub fn has_empty_state(&self, prepared: Option<&Prepared>) -> bool {
        self.last_end.is_none() && prepared.is_some_and(|prepared| prepared.new_state)
    }
}
