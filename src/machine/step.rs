//! The current step: its time and its effects.

use std::collections::BTreeSet;

use super::{Child, Effect, Moment, Notice};

/// The context that every part of the machine writes to.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) now: Moment,
    effects: Vec<Effect>,
    /// The running children other than the units and the command.
    tasks: BTreeSet<Child>,
    random: u64,
}

impl Step {
    pub(super) fn new(seed: u64) -> Self {
        Self { now: Moment::ZERO, effects: Vec::new(), tasks: BTreeSet::new(), random: seed | 1 }
    }

    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    pub(super) fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    pub(super) fn report(&mut self, notice: Notice) {
        self.push(Effect::Report(notice));
    }

    pub(super) fn signal(&mut self, child: Child, signal: i32) {
        self.push(Effect::Signal(child, signal));
    }

    pub(super) fn has_effect(&self, effect: &Effect) -> bool {
        self.effects.contains(effect)
    }

    /// Starts a helper, unless one of its kind is alive.
    pub(super) fn start_task(&mut self, task: Child) {
        if self.tasks.insert(task) {
            self.push(Effect::Spawn(task));
        }
    }

    /// Kills a helper if it is alive.
    pub(super) fn kill_task(&mut self, task: Child) {
        if self.is_running(task) && !self.has_effect(&Effect::Kill(task)) {
            self.push(Effect::Kill(task));
        }
    }

    pub(super) fn is_running(&self, task: Child) -> bool {
        self.tasks.contains(&task)
    }

    pub(super) fn tasks(&self) -> impl Iterator<Item = Child> + use<> {
        self.tasks.clone().into_iter()
    }

    pub(super) fn task_ended(&mut self, task: Child) {
        self.tasks.remove(&task);
    }

    /// xorshift64. Enough to spread restarts, and reproducible for a given seed.
    pub(super) fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
