//! The handling of running jobs when the container stops, and of those whose slurmstepd dies.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::value;

/// The AdminComment of a job that was requeued or cancelled because its slurmstepd died.
pub const SLURMSTEPD_DIED: &str = "the job's slurmstepd was killed (out of memory?) or crashed";

/// The handling of running jobs when the container stops.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Jobs {
    /// The time from the notice (SIGTERM) to the end; must fit into `supervise.stop_timeout`.
    #[serde(deserialize_with = "value::seconds")]
    pub grace: Duration,
    /// What happens to jobs that are still running then.
    pub on_stop: OnStop,
    /// Whether to wait for the jobs in the queue when the container's command has ended.
    pub wait: bool,
}

impl Default for Jobs {
    fn default() -> Self {
        Self { grace: Duration::from_secs(3), on_stop: OnStop::Requeue, wait: false }
    }
}

/// What happens to jobs that do not end in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStop {
    /// The jobs are requeued and run at the next start; those submitted with `--no-requeue` fail.
    #[default]
    Requeue,
    /// The jobs are cancelled.
    Cancel,
}

shown_as_serialized!(OnStop);
