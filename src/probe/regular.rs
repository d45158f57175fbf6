//! Reads files in the process outside the sandbox, which must not block.

use std::io;
use std::path::Path;

use sys::trusted_path;

/// Reads a regular file, which includes the files of /proc and /sys. Returns an error for a pipe (`docker run -v`, a tree passed with
/// `--root`), because reading it would block.
///
/// # Errors
/// The file is missing, unreadable, not regular, too long, or not UTF-8.
pub(super) fn text(path: &Path) -> io::Result<String> {
    String::from_utf8(trusted_path::read(path)?).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Reads a file of one line, such as those of sysfs; `None` if it is empty or unreadable.
pub(super) fn line(path: &Path) -> Option<String> {
    Some(text(path).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
}
