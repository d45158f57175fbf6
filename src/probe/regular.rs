//! Reads files outside the sandbox, where nothing may block.

use std::io;
use std::path::Path;

use sys::trusted_path;

/// Reads a regular file; files of /proc and /sys count as regular. A pipe in its place (`docker run -v`, a tree passed
/// with `--root`) is an error instead of blocking.
///
/// # Errors
/// The file is missing, is not regular, or is not UTF-8.
pub(super) fn text(path: &Path) -> io::Result<String> {
    String::from_utf8(trusted_path::read(path)?).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Reads a file of one line, such as those of sysfs; `None` if it is empty or unreadable.
pub(super) fn line(path: &Path) -> Option<String> {
    Some(text(path).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}
