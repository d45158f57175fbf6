//! What its surroundings do to a unit: no process, no memory, no descriptor left, or its port taken.
//!
//! Any user can bring these about, and none of them is the unit's fault. So none counts towards giving up, with one exception: a
//! port that was taken before the unit had ever served, by a process that slurminit may not end, is a mistake of the setup.

use std::time::Duration;

use crate::config::Supervise;

use super::unit::State;
use super::{Child, Effect, Exit, Fault, Machine, Moment, Notice};

/// What a unit met with.
#[derive(Debug, Default)]
pub(super) struct Setbacks {
    in_a_row: u32,
    /// Whether it was ever ready.
    pub(super) served: bool,
    /// Whether somebody is getting its port back.
    freeing: bool,
}

/// The longest pause after a setback: it must be short after the end of whatever caused it, and a try costs little.
pub(super) const LONGEST: Duration = Duration::from_secs(4);
/// How long a process that gets a port back may take; it keeps a shorter time itself.
const FREE_PORT: Duration = Duration::from_secs(10);

impl Setbacks {
    /// The next one is the first.
    pub(super) fn forget(&mut self) {
        self.in_a_row = 0;
    }

    fn note(&mut self) {
        self.in_a_row = self.in_a_row.saturating_add(1);
    }

    /// The pause before the next try. It doubles.
    fn pause(&self, policy: &Supervise) -> Duration {
        let doubled = 1_u32.checked_shl(self.in_a_row.saturating_sub(1)).unwrap_or(u32::MAX);
        policy.restart_initial_delay.saturating_mul(doubled).min(policy.restart_max_delay).min(LONGEST)
    }

    /// A line for the first, the second, the fourth, ...: a user who goes on for days must not fill the log.
    fn is_told(&self) -> bool {
        self.in_a_row.is_power_of_two()
    }
}

impl Machine {
    /// Whether the unit's process lives and was not ready yet.
    pub fn is_starting(&self, unit: usize) -> bool {
        self.units.get(unit).is_some_and(|unit| matches!(unit.state, State::Starting { .. }))
    }

    /// How often in a row the unit met with something that was not its fault.
    pub fn setbacks(&self, unit: usize) -> u32 {
        self.units.get(unit).map_or(0, |unit| unit.setbacks.in_a_row)
    }

    /// The unit's process is gone, and it was not its fault.
    pub(super) fn struck(&mut self, now: Moment, unit: usize, exit: Exit, fault: Fault, out: &mut Vec<Effect>) {
        let name = self.name(unit);
        let Some(this) = self.units.get_mut(unit) else { return };
        this.setbacks.note();
        let pause = this.setbacks.pause(&self.setup.supervise);
        let told = this.setbacks.is_told();
        if let Fault::Port(_) = fault {
            this.setbacks.freeing = true;
            this.state = State::BackingOff { until: now + FREE_PORT };
            self.spawn_task(Child::FreePort(unit), out);
        } else {
            this.state = State::BackingOff { until: now + pause };
        }
        if told {
            out.push(Effect::Say(Notice::Struck { name, exit, fault, pause }));
        }
    }

    /// Whoever could be made to let go of the port has: with code 0 it is free.
    pub(super) fn port_is_free(&mut self, now: Moment, unit: usize, exit: &Exit, out: &mut Vec<Effect>) {
        let Some(this) = self.units.get_mut(unit) else { return };
        let was_freeing = std::mem::take(&mut this.setbacks.freeing);
        if !was_freeing || !matches!(this.state, State::BackingOff { .. }) {
            return;
        }
        let is_free = *exit == Exit::Code(0);
        if !is_free && !this.setbacks.served && this.failed(now, &self.setup.supervise) {
            this.state = State::GivenUp;
            let last = this.last_end.as_ref().map_or(Exit::Code(0), |end| end.exit.clone());
            return self.gave_up(now, unit, &last, out);
        }
        // The first time at once, for a restart must not take longer than the thief does to come back.
        let first = is_free && this.setbacks.in_a_row <= 1;
        let pause = if first { Duration::ZERO } else { this.setbacks.pause(&self.setup.supervise) };
        this.state = State::BackingOff { until: now + pause };
    }
}

#[cfg(test)]
mod tests;
