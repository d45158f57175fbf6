//! Gates that delay the start of units, during the container's start and during reloads.

use std::collections::BTreeSet;

use model::unit::Gate;

/// The gates at which units wait. An opened gate remains open, except that a reload closes `Files` and `Jobs` while Slurm's files change.
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

    /// Closes the gates `Files` and `Jobs` while Slurm's files change. No unit that waits at these gates starts meanwhile.
    pub(super) fn hold_slurm(&mut self) {
        self.holds_slurm = true;
    }

    /// Ends the effect of [`Self::hold_slurm`].
    pub(super) fn release_slurm(&mut self) {
        self.holds_slurm = false;
    }
}
