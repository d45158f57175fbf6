//! Updates the login environments, which Slurm reads, after a change of /etc/passwd.

use super::step::Step;
use super::{Child, Exit, Notice};

/// Whether the environments must be written again, because the accounts changed while `slurminit environments` was running.
#[derive(Debug, Default)]
pub(super) struct Environments {
    is_outdated: bool,
}

impl Environments {
    pub(super) fn accounts_changed(&mut self, step: &mut Step) {
        self.is_outdated = step.is_running(Child::Environments);
        step.start_task(Child::Environments);
    }

    pub(super) fn exited(&mut self, exit: Exit, step: &mut Step) {
        if exit != Exit::Code(0) {
            step.report(Notice::EnvironmentsNotWritten { exit });
        }
        if std::mem::take(&mut self.is_outdated) {
            step.start_task(Child::Environments);
        }
    }
}
