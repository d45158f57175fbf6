//! Standard output and standard error of the verbs. A reader that closes the pipe (`| head`) is not an error, and does not stop a verb halfway.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};

use anyhow::Context as _;

/// Prints on standard output.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// Prints a line on standard output.
pub(crate) fn print_line(line: impl Display) -> anyhow::Result<()> {
    print(&format!("{line}\n"))
}

/// Prints a line on standard error. A failure is ignored, because it could not be reported.
pub(crate) fn error_line(line: impl Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
