//! Reads files outside the sandbox, where nothing may block.

use std::io;
use std::path::Path;

use crate::walk;

/// Reads a regular file; files of /proc and /sys count as regular. A pipe in its place (`docker run -v`, a tree passed
/// with `--root`) is an error instead of blocking.
///
/// # Errors
/// The file is missing, is not regular, or is not UTF-8.
pub(super) fn text(path: &Path) -> io::Result<String> {
    String::from_utf8(walk::read(path)?).map_err(|_| io::ErrorKind::InvalidData.into())
}
