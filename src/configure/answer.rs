//! What came of running a program. PURE.

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// There is no such program, or it cannot be executed.
    Missing,
    /// It was still busy at the deadline, and was killed.
    Silent,
    /// It ended.
    Ended {
        /// Whether with exit code 0.
        succeeded: bool,
        /// Its standard output.
        stdout: String,
        /// Its standard error.
        stderr: String,
    },
}

impl Answer {
    /// The standard output of a program that succeeded.
    pub fn output(&self) -> Option<&str> {
        match self {
            Self::Ended { succeeded: true, stdout, .. } => Some(stdout),
            _ => None,
        }
    }
}

/// The first line of `texts` that says something, not too long for a report.
pub fn first_line<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut lines = texts.into_iter().flat_map(str::lines).map(str::trim);
    let line = lines.find(|line| !line.is_empty()).unwrap_or("it says nothing");
    line.chars().take(300).collect()
}
