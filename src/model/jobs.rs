//! `[jobs]`: the handling of jobs when the container or its command ends. Also the note for jobs whose slurmstepd dies.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::value;

/// The AdminComment, without slurminit's prefix, of a job that was requeued or cancelled because its slurmstepd died.
pub const SLURMSTEPD_DIED: &str = "the job's slurmstepd was killed (out of memory?) or crashed";

/// The handling of jobs when the container or its command ends.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Jobs {
    /// The time that jobs have to end when the container stops, before they are killed; must fit into `supervise.stop_timeout`.
    #[serde(deserialize_with = "value::seconds")]
    pub grace: Duration,
    /// What happens to jobs that a stop of the container ends.
    pub on_stop: OnStop,
    /// Whether to wait for the jobs in the queue after the container's command has ended.
    pub wait: bool,
}

impl Default for Jobs {
    fn default() -> Self {
        Self { grace: Duration::from_secs(3), on_stop: OnStop::Requeue, wait: false }
    }
}

/// What happens to jobs that a stop of the container ends. A job whose script exits with 0 counts as completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStop {
    /// The jobs are requeued and run at the next start. Jobs that Slurm cannot requeue (`--no-requeue`, salloc, srun) fail.
    #[default]
    Requeue,
    /// Jobs that are still running after the grace period are cancelled. A job that fails earlier is not requeued.
    Cancel,
}

shown_as_serialized!(OnStop);
