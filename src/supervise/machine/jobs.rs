//! What slurmctld believes of jobs when it comes up, and what is true.

use std::time::Duration;

use crate::config::DaemonName;

use super::super::daemon::Gate;
use super::{Child, Effect, Exit, Machine, Moment, Notice};

/// How long the jobs of a former start may take to be accounted for; slurmd waits for it.
const RECOVER_DEADLINE: Duration = Duration::from_secs(15);
/// How long the look for lost jobs may take, which waits until a batch job is old enough to be called missing.
const RECLAIM_DEADLINE: Duration = Duration::from_secs(60);

/// Who accounts for jobs.
#[derive(Debug, Default)]
pub(super) enum Accounts {
    /// Nobody.
    #[default]
    Idle,
    /// A child, until then; `again` if slurmctld or slurmd came up once more meanwhile.
    Made { until: Moment, again: bool },
}

impl Accounts {
    pub(super) fn next_wake(&self) -> Option<Moment> {
        match self {
            Self::Idle => None,
            Self::Made { until, .. } => Some(*until),
        }
    }
}

/// What a daemon finds of the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// All of its state: it ended in order.
    Saved,
    /// Perhaps not the last of it.
    Unknown,
}

impl Machine {
    /// What this unit's next process finds of a former one; `None` if there was none.
    #[must_use]
    pub fn follows(&self, unit: usize) -> Option<Follows> {
        match self.units.get(unit).and_then(|unit| unit.last_end.as_ref()) {
            Some(end) if end.exit == Exit::Code(0) => Some(Follows::Saved),
            Some(_) => Some(Follows::Unknown),
            None => self.prepared.as_ref().is_some_and(|prepared| prepared.saved_jobs).then_some(Follows::Unknown),
        }
    }

    /// slurmctld answers. At the first start, jobs that it believes to run have lost their processes with the former
    /// container: that must be said before slurmd registers. Later they may well run; but of what ended shortly before
    /// slurmctld died it does not know.
    pub(super) fn account_for_jobs(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if let Accounts::Made { again, .. } = &mut self.accounts {
            *again = true;
            return;
        }
        // Not by the gate, which a reload closes while jobs run.
        let (child, limit) = match std::mem::replace(&mut self.recovered, true) {
            true => (Child::JobsReclaim, RECLAIM_DEADLINE),
            false if self.prepared.as_ref().is_some_and(|prepared| prepared.saved_jobs) => {
                (Child::JobsRecover, RECOVER_DEADLINE)
            }
            false => {
                self.open.insert(Gate::Jobs);
                return;
            }
        };
        self.accounts = Accounts::Made { until: now + limit, again: false };
        self.spawn_task(child, out);
    }

    /// A slurmd that died between the order to launch a batch job and its slurmstepd has launched nothing, and the next one
    /// does not know of it. The first slurmd had no order yet.
    pub(super) fn slurmd_is_ready(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if std::mem::replace(&mut self.had_slurmd, true) && self.recovered && self.is_slurmctld_ready() {
            self.account_for_jobs(now, out);
        }
    }

    fn is_slurmctld_ready(&self) -> bool {
        let slurmctld = self.setup.units.iter().position(|spec| spec.daemon == Some(DaemonName::Slurmctld));
        slurmctld.and_then(|unit| self.units.get(unit)).is_some_and(super::Unit::is_ready)
    }

    pub(super) fn advance_accounts(&mut self, now: Moment, out: &mut Vec<Effect>) {
        if self.accounts.next_wake().is_some_and(|until| now >= until) {
            self.accounts = Accounts::Idle;
            let made = [Child::JobsRecover, Child::JobsReclaim];
            out.extend(made.into_iter().filter(|child| self.tasks.contains(child)).map(Effect::Kill));
        }
    }

    /// As far as it is possible, the jobs are accounted for; slurmd waits for no more.
    pub(super) fn accounts_made(&mut self, now: Moment, child: Child, exit: Exit, out: &mut Vec<Effect>) {
        let again = matches!(self.accounts, Accounts::Made { again: true, .. });
        self.accounts = Accounts::Idle;
        if child == Child::JobsRecover {
            self.open.insert(Gate::Jobs);
        }
        if self.is_stopping() {
            return;
        }
        if exit != Exit::Code(0) {
            let recover = child == Child::JobsRecover;
            let notice = if recover { Notice::JobsNotRecovered { exit } } else { Notice::JobsNotReclaimed { exit } };
            out.push(Effect::Say(notice));
        }
        if again && self.is_slurmctld_ready() {
            self.account_for_jobs(now, out);
        }
    }
}
