//! The report of each job's GPUs.

use serde::Deserialize;

/// The settings of the table `[report]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobReports {
    /// Whether a batch job's output ends with a summary of its report.
    pub output: bool,
}
