//! What Slurm gives each user as the environment of a login follows /etc/passwd.

use super::{Child, Effect, Exit, Machine, Notice};

/// Whether the files must be written once more, as the accounts changed while they were.
#[derive(Debug, Default)]
pub(super) struct Environments {
    again: bool,
}

impl Machine {
    /// Before the preparation is done there is no need: it reads them last of all.
    pub(super) fn accounts_changed(&mut self, out: &mut Vec<Effect>) {
        if self.prepared.is_none() || self.is_stopping() {
            return;
        }
        self.environments.again = self.tasks.contains(&Child::Environments);
        self.spawn_task(Child::Environments, out);
    }

    pub(super) fn environments_written(&mut self, exit: Exit, out: &mut Vec<Effect>) {
        let again = std::mem::take(&mut self.environments.again);
        if self.is_stopping() {
            return;
        }
        if exit != Exit::Code(0) {
            out.push(Effect::Say(Notice::EnvironmentsNotWritten { exit }));
        }
        if again {
            self.spawn_task(Child::Environments, out);
        }
    }
}
