//! The last steps of a start or reload: creating the accounts in the accounting database, then running a test job if the node is usable and one of
//! Slurm's files is the user's own.
//!
//! An account that cannot be created is reported, but does not prevent readiness, because the existing accounts remain valid. If the
//! test job fails, the container is not ready, and a reload restores the previous files if the node was usable with them.

use std::time::Duration;

use model::exit_code;
use model::prepared::Prepared;

use super::cluster::Cluster;
use super::{Child, Exit, Moment, Notice};

/// How long [`Child::Associations`] may take, in addition to the deadlines of a start or a reload. The time limits of its
/// commands add up to less.
pub const ASSOCIATIONS_TIMEOUT: Duration = Duration::from_secs(60);
/// How long [`Child::TestJob`] may take beyond `ready_timeout`, its job's time limit, to cancel the job and drain the node.
const TEST_JOB_MARGIN: Duration = Duration::from_secs(30);

/// A running helper, and the moment at which it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Helper {
    pub(super) child: Child,
    pub(super) until: Moment,
}

impl Cluster {
    /// Starts the helper that follows `previous`; `None` if none is left. `is_new`: the daemons run with new files.
    pub(super) fn start_helper(&mut self, previous: Option<Child>, is_new: bool) -> Option<Helper> {
        let prepared = self.prepared.as_ref()?;
        let (child, limit) = if previous.is_none() && prepared.has_associations {
            (Child::Associations, ASSOCIATIONS_TIMEOUT)
        } else if previous != Some(Child::TestJob) && is_new && self.must_test_jobs(prepared) {
            (Child::TestJob, self.policy.ready_timeout + TEST_JOB_MARGIN)
        } else {
            return None;
        };
        self.step.start_task(child);
        Some(Helper { child, until: self.step.now + limit })
    }

    fn must_test_jobs(&self, prepared: &Prepared) -> bool {
        let has_one_node = !prepared.node_name.is_empty() && prepared.simulated_nodes == 0;
        self.policy.test_job && prepared.has_own_files && has_one_node && self.node.is_usable()
    }

    /// Kills a helper that has reached its deadline.
    pub(super) fn kill_helper(&mut self, child: Child) {
        self.step.kill_task(child);
        self.step.report(match child {
            Child::TestJob => Notice::TestJobTooSlow { limit: self.policy.ready_timeout + TEST_JOB_MARGIN },
            _ => Notice::AssociationsTooSlow { limit: ASSOCIATIONS_TIMEOUT },
        });
    }

    /// Handles the end of a helper. Returns `false` if the test job showed that jobs do not run.
    pub(super) fn helper_ended(&mut self, child: Child, exit: Exit) -> bool {
        match (child, exit) {
            (_, Exit::Code(0)) => {}
            (Child::TestJob, Exit::Code(exit_code::TEST_JOB_FAILED)) => {
                self.node.fail_test(&self.step);
                return false;
            }
            (Child::TestJob, exit) => self.step.report(Notice::TestJobNotRun { exit }),
            (_, exit) => self.step.report(Notice::AssociationsNotMade { exit }),
        }
        true
    }
}
