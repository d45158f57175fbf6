//! Reads files outside of the sandbox, where nothing may block.

use std::io;
use std::path::Path;

use crate::walk;

/// The text of a regular file, which those of /proc and /sys are too. A pipe in its place (`docker run -v`, a tree given with
/// `--root`) is an error at once.
///
/// # Errors
/// It is not there, no regular file, or no text.
pub(super) fn text(path: &Path) -> io::Result<String> {
    String::from_utf8(walk::read(path)?).map_err(|_| io::ErrorKind::InvalidData.into())
}
