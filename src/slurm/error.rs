//! Why a command of Slurm's has no result.

use sys::tool::answer::first_line;

/// slurmctld's answer for a job of another kind (Slurm 22.05 to 24.11, ESLURM_DISABLED).
const NOT_OF_THAT_KIND: &str = "presently disabled";

/// Why a command has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The command cannot be executed.
    #[error("{0} is not installed in this container")]
    Missing(&'static str),
    /// The command timed out.
    #[error("{0} did not respond in time")]
    Silent(&'static str),
    /// The command failed.
    #[error("{program}: {}", first_line([output.as_str()]))]
    Failed {
        /// The command.
        program: &'static str,
        /// The command's output.
        output: String,
    },
}

impl QueryError {
    /// Whether slurmctld refuses this for jobs of that kind, such as a requeue of an allocation.
    pub fn is_of_another_kind(&self) -> bool {
        matches!(self, Self::Failed { output, .. } if output.contains(NOT_OF_THAT_KIND))
    }
}

impl From<QueryError> for String {
    fn from(error: QueryError) -> Self {
        error.to_string()
    }
}
