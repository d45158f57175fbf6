//! Errors of Slurm's commands.

use sys::tool::answer::first_line;

/// slurmctld's error for an operation that a kind of job does not support (Slurm 24.11, ESLURM_DISABLED).
const OPERATION_DISABLED: &str = "presently disabled";

/// Slurm's error for a controller with another munge key or clock (SLURM_PROTOCOL_AUTHENTICATION_ERROR).
const AUTHENTICATION_ERROR: &str = "authentication error";

/// Why a command has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The command does not exist, or this user may not execute it.
    #[error("{0} is not installed in this container, or this user may not execute it")]
    Missing(&'static str),
    /// The command timed out.
    #[error("{0} did not respond in time")]
    TimedOut(&'static str),
    /// The command failed, or the system could not start it.
    #[error("{program}: {}", first_line([output.as_str()]))]
    Failed {
        /// The command.
        program: &'static str,
        /// The command's output.
        output: String,
    },
}

impl QueryError {
    /// Whether slurmctld rejects the credentials of this container, or this container rejects slurmctld's.
    pub fn is_authentication(&self) -> bool {
        matches!(self, Self::Failed { output, .. } if output.contains(AUTHENTICATION_ERROR))
    }

    /// Whether slurmctld rejects the operation for this kind of job, such as a requeue of an interactive allocation.
    pub fn is_operation_disabled(&self) -> bool {
        matches!(self, Self::Failed { output, .. } if output.contains(OPERATION_DISABLED))
    }
}

impl From<QueryError> for String {
    fn from(error: QueryError) -> Self {
        error.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_slurms_errors_only_in_output_of_failed_command() {
        let failed = |output: &str| QueryError::Failed { program: "scontrol", output: output.to_owned() };
        let key = failed("slurm_load_node error: Protocol authentication error\n");
        let kind = failed("Requested operation is presently disabled for job 7\n");
        assert!(key.is_authentication() && !key.is_operation_disabled());
        assert!(kind.is_operation_disabled() && !kind.is_authentication());
        for other in [QueryError::Missing("scontrol"), QueryError::TimedOut("scontrol"), failed("Invalid job id")] {
            assert!(!other.is_authentication() && !other.is_operation_disabled(), "{other}");
        }
    }
}
