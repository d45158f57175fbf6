//! The result of running a program.

/// The result of running a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The program does not exist, or this user may not execute it.
    Missing,
    /// The program was still running at the deadline and was killed.
    Silent,
    /// The program ended, or the system could not start it: then `stderr` is the reason.
    Ended {
        /// Whether the program exited with 0.
        succeeded: bool,
        /// The program's standard output.
        stdout: String,
        /// The program's standard error.
        stderr: String,
    },
}

impl Answer {
    /// The standard output, if the program succeeded.
    pub fn output(&self) -> Option<&str> {
        match self {
            Self::Ended { succeeded: true, stdout, .. } => Some(stdout),
            _ => None,
        }
    }

    /// The standard output of `program`, or why it failed.
    pub fn output_of(self, program: &str) -> Result<String, String> {
        match self {
            Self::Missing => Err(format!("{program} is not installed or not executable")),
            Self::Silent => Err(format!("{program} timed out")),
            Self::Ended { succeeded: true, stdout, .. } => Ok(stdout),
            Self::Ended { stdout, stderr, .. } => {
                Err(format!("{program}: {}", first_line([stderr.as_str(), stdout.as_str()])))
            }
        }
    }
}

/// The first non-empty line of `texts`, at most 300 characters; `no output` if there is none.
pub fn first_line<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut lines = texts.into_iter().flat_map(str::lines).map(str::trim);
    let line = lines.find(|line| !line.is_empty()).unwrap_or("no output");
    line.chars().take(300).collect()
}
