//! Reconciles what slurmctld believes about jobs when it comes up with what is true.

use std::time::Duration;

use model::daemons::DaemonName;
use model::prepared::Prepared;

use super::cluster::Cluster;
use super::step::Step;
use super::unit::Unit;
use super::units::Units;
use super::{Child, Exit, Moment, Notice};
use model::unit::Gate;
use model::unit::JobCare;

/// How long accounting for the previous start's jobs may take; slurmd waits for it.
const RECOVER_DEADLINE: Duration = Duration::from_secs(15);
/// How long slurmd may be suspended.
const ACCOUNT_DEADLINE: Duration = Duration::from_secs(15);
/// How long the search for lost jobs may take. It waits until a batch job is old enough to be called missing.
const RECLAIM_DEADLINE: Duration = Duration::from_secs(60);

/// The state of job accounting.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    accounts: Accounts,
    orders: Orders,
    /// Whether the previous start's jobs were accounted for, or are just being.
    recovered: bool,
    /// Whether a slurmd was ready before.
    had_slurmd: bool,
}

/// Whether jobs are being accounted for.
#[derive(Debug, Default)]
enum Accounts {
    /// No.
    #[default]
    Idle,
    /// A child does it, until this deadline. `again`: slurmctld or slurmd came up once more meanwhile.
    Made { until: Moment, again: bool },
}

/// Whether slurmd may take requests. While it is held, it is stopped with SIGSTOP.
#[derive(Debug, Default)]
enum Orders {
    /// It was never held.
    #[default]
    Taken,
    /// It was released at this moment.
    TakenSince(Moment),
    /// It is held.
    Held,
}

/// What a daemon inherits from its predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// Its complete state, if the state was saved after this moment: it shut down in order, which includes a save.
    Saved(Moment),
    /// Possibly not its latest state.
    Unknown,
}

impl Jobs {
    pub(super) fn next_wake(&self) -> Option<Moment> {
        match self.accounts {
            Accounts::Idle => None,
            Accounts::Made { until, .. } => Some(until),
        }
    }

    fn make(&mut self, child: Child, limit: Duration, step: &mut Step) {
        self.accounts = Accounts::Made { until: step.now + limit, again: false };
        step.start_task(child);
    }

    /// The slurmctld about to start may have forgotten which jobs have begun, and would launch them again within 0.2 s
    /// of coming up. slurmd is suspended until they are accounted for: a launch request that has not reached it can be
    /// revoked.
    pub(super) fn hold_orders(&mut self, units: &Units, step: &mut Step) {
        if !self.recovered {
            return;
        }
        self.orders = Orders::Held;
        for slurmd in units.daemons(DaemonName::Slurmd).filter(|slurmd| slurmd.is_ready()) {
            step.signal(Child::Unit(slurmd.id), libc::SIGSTOP);
        }
    }

    pub(super) fn release_orders(&mut self, units: &Units, step: &mut Step) {
        if self.holds_orders() {
            self.orders = Orders::TakenSince(step.now);
            // A stopping slurmd was already sent SIGCONT.
            for slurmd in units.daemons(DaemonName::Slurmd).filter(|slurmd| slurmd.runs()) {
                step.signal(Child::Unit(slurmd.id), libc::SIGCONT);
            }
        }
    }

    pub(super) fn holds_orders(&self) -> bool {
        matches!(self.orders, Orders::Held)
    }

    /// Whether this unit is suspended.
    pub(super) fn holds(&self, unit: &Unit) -> bool {
        self.holds_orders() && unit.is(DaemonName::Slurmd)
    }

    /// Whether this unit was suspended at that time.
    pub(super) fn held(&self, unit: &Unit, at: Moment) -> bool {
        match self.orders {
            Orders::Taken => false,
            Orders::TakenSince(since) => since >= at && unit.is(DaemonName::Slurmd),
            Orders::Held => self.holds(unit),
        }
    }

    pub(super) fn advance(&mut self, step: &mut Step) {
        if self.next_wake().is_some_and(|until| step.now >= until) {
            self.accounts = Accounts::Idle;
            for task in [Child::JobsRecover, Child::JobsAccount, Child::JobsReclaim] {
                step.kill_task(task);
            }
        }
    }

    /// The container stops: children that account for jobs are killed with everything else.
    pub(super) fn stop(&mut self, units: &Units, step: &mut Step) {
        self.accounts = Accounts::Idle;
        self.release_orders(units, step);
    }
}

impl Cluster {
    /// slurmctld has come up. At the first start, jobs that it believes to be running lost their processes with the
    /// previous container; it must learn that before slurmd registers. Later such jobs may well be running, but
    /// slurmctld does not know about jobs that ended shortly before it died.
    pub(super) fn account_for_jobs(&mut self) {
        if self.care != JobCare::Cluster {
            return;
        }
        if let Accounts::Made { again, .. } = &mut self.jobs.accounts {
            *again = true;
            // A running search for lost jobs is started over; slurmd may be waiting.
            return self.step.kill_task(Child::JobsReclaim);
        }
        // This does not use the gate, which a reload closes while jobs run.
        let saved_jobs = self.prepared.as_ref().is_some_and(|prepared| prepared.saved_jobs);
        match std::mem::replace(&mut self.jobs.recovered, true) {
            true => self.jobs.make(Child::JobsAccount, ACCOUNT_DEADLINE, &mut self.step),
            false if saved_jobs => self.jobs.make(Child::JobsRecover, RECOVER_DEADLINE, &mut self.step),
            false => drop(self.open.insert(Gate::Jobs)),
        }
    }

    /// If slurmd died between the order to launch a batch job and the fork of its slurmstepd, the job was lost, and the
    /// next slurmd does not know about it. The first slurmd cannot have had such an order.
    pub(super) fn slurmd_is_ready(&mut self) {
        let had_one = std::mem::replace(&mut self.jobs.had_slurmd, true);
        if had_one && self.jobs.recovered && self.units.has_ready(DaemonName::Slurmctld) {
            self.account_for_jobs();
        }
    }

    /// Jobs are accounted for as far as possible; slurmd need not wait longer.
    pub(super) fn accounts_made(&mut self, child: Child, exit: Exit) {
        let again = matches!(std::mem::take(&mut self.jobs.accounts), Accounts::Made { again: true, .. });
        if child == Child::JobsRecover {
            self.open.insert(Gate::Jobs);
        }
        if exit != Exit::Code(0) && !(again && child == Child::JobsReclaim) {
            self.step.say(match child {
                Child::JobsRecover => Notice::JobsNotRecovered { exit },
                Child::JobsAccount => Notice::JobsNotAccounted { exit },
                _ => Notice::JobsNotReclaimed { exit },
            });
        }
        match again {
            // A new slurmctld has replaced the one that slurmd was held for.
            true if self.units.has_ready(DaemonName::Slurmctld) => self.account_for_jobs(),
            true => {}
            false => {
                self.jobs.release_orders(&self.units, &mut self.step);
                if child == Child::JobsAccount {
                    self.jobs.make(Child::JobsReclaim, RECLAIM_DEADLINE, &mut self.step);
                }
            }
        }
    }
}

impl Unit {
    /// What the unit's next process inherits from a previous one; `None` if there was none.
    pub fn follows(&self, prepared: Option<&Prepared>) -> Option<Follows> {
        let has_saved_jobs = prepared.is_some_and(|prepared| prepared.saved_jobs);
        match &self.last_end {
            Some(end) if end.exit == Exit::Code(0) => Some(Follows::Saved(end.began)),
            Some(_) if self.has_been_ready() => Some(Follows::Unknown),
            // One that never answered has taken no job.
            _ => has_saved_jobs.then_some(Follows::Unknown),
        }
    }

    /// Whether the unit's next process is the first to use an empty state directory.
    pub fn finds_no_state(&self, prepared: Option<&Prepared>) -> bool {
        self.last_end.is_none() && prepared.is_some_and(|prepared| prepared.new_state)
    }
}
