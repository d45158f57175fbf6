//! The suspension of slurmd while slurmctld may launch a job a second time.
//!
//! A slurmctld that starts without its latest state may not have recorded which jobs have started, and would launch them again within 0.2 s of
//! its start. slurmd is therefore stopped with SIGSTOP until the jobs are accounted for: a launch request that has not reached slurmd can
//! be revoked.

use model::daemons::DaemonName;

use super::step::Step;
use super::unit::Unit;
use super::units::Units;
use super::{Child, Moment};

/// Whether slurmd is suspended.
#[derive(Debug, Default)]
pub(super) enum LaunchHold {
    /// slurmd was never suspended.
    #[default]
    Never,
    /// A running slurmd is suspended, and none may start.
    Held,
    /// slurmd was resumed at this moment.
    Released(Moment),
}

impl LaunchHold {
    pub(super) fn hold(&mut self, units: &Units, step: &mut Step) {
        *self = Self::Held;
        for slurmd in units.daemons(DaemonName::Slurmd).filter(|slurmd| slurmd.is_ready()) {
            step.signal(Child::Unit(slurmd.id), libc::SIGSTOP);
        }
    }

    pub(super) fn release(&mut self, units: &Units, step: &mut Step) {
        if self.is_held() {
            *self = Self::Released(step.now);
            // A stopping slurmd was already sent SIGCONT.
            for slurmd in units.daemons(DaemonName::Slurmd).filter(|slurmd| slurmd.is_running()) {
                step.signal(Child::Unit(slurmd.id), libc::SIGCONT);
            }
        }
    }

    pub(super) fn is_held(&self) -> bool {
        matches!(self, Self::Held)
    }

    /// Whether this unit is suspended, or must not start.
    pub(super) fn applies_to(&self, unit: &Unit) -> bool {
        self.is_held() && unit.is(DaemonName::Slurmd)
    }

    /// Whether this unit has been suspended at some time since `start`.
    pub(super) fn applied_since(&self, unit: &Unit, start: Moment) -> bool {
        match self {
            Self::Never => false,
            Self::Held => self.applies_to(unit),
            Self::Released(at) => *at >= start && unit.is(DaemonName::Slurmd),
        }
    }
}
