//! The accounts of the accounting database: created once the node can be used, at a start and at a reload.
//!
//! A failure is reported and ends neither: accounts that exist already are valid.

use std::time::Duration;

use super::cluster::Cluster;
use super::{Child, Exit, Moment, Notice};

/// How long [`Child::Associations`] may take, in addition to the deadlines of a start or a reload. Its commands have less
/// together.
pub const ASSOCIATIONS_TIMEOUT: Duration = Duration::from_secs(60);

impl Cluster {
    /// Starts to create the accounts, and returns the deadline; `None` if there are none.
    pub(super) fn start_creating_accounts(&mut self) -> Option<Moment> {
        self.prepared.as_ref().filter(|prepared| prepared.has_associations)?;
        self.step.start_task(Child::Associations);
        Some(self.step.now + ASSOCIATIONS_TIMEOUT)
    }

    /// The deadline was reached.
    pub(super) fn stop_creating_accounts(&mut self) {
        self.step.kill_task(Child::Associations);
        self.step.report(Notice::AssociationsTooSlow { limit: ASSOCIATIONS_TIMEOUT });
    }

    pub(super) fn report_accounts(&mut self, exit: Exit) {
        if exit != Exit::Code(0) {
            self.step.report(Notice::AssociationsNotMade { exit });
        }
    }
}
