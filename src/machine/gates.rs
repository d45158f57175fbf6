//! Gates that keep units from starting during the start and during reloads.

use std::collections::BTreeSet;

use model::unit::Gate;

/// The gates at which units wait. An open gate stays open, but a reload holds Slurm's daemons back while their files change.
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

    /// Closes the gate of Slurm's files before a change: no daemon that reads them starts.
    pub(super) fn hold_slurm(&mut self) {
        self.holds_slurm = true;
    }

    /// Opens the gate of Slurm's files after a change.
    pub(super) fn release_slurm(&mut self) {
        self.holds_slurm = false;
    }
}
