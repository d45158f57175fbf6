//! What the start and reloads let units start for.

use std::collections::BTreeSet;

use model::unit::Gate;

/// The gates at which units wait. One that was opened stays open, but a reload holds Slurm's daemons back while their files change.
#[derive(Debug, Default)]
pub(super) struct Gates {
    opened: BTreeSet<Gate>,
    holds_slurm: bool,
}

impl Gates {
    pub(super) fn open(&mut self, gate: Gate) {
        self.opened.insert(gate);
    }

    pub(super) fn is_open(&self, gate: Gate) -> bool {
        let is_held = self.holds_slurm && matches!(gate, Gate::Files | Gate::Jobs);
        self.opened.contains(&gate) && !is_held
    }

    /// Slurm's files are about to change: no daemon that reads them starts.
    pub(super) fn hold_slurm(&mut self) {
        self.holds_slurm = true;
    }

    /// Slurm's files are in place again.
    pub(super) fn release_slurm(&mut self) {
        self.holds_slurm = false;
    }
}
