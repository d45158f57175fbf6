//! Reads files outside of the sandbox, where nothing may block.
//!
//! A pipe in place of a file (`docker run -v`, a tree given with `--root`) would hold the reader until somebody writes to it.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The longest file that is read, in bytes: `mountinfo` of a machine with thousands of containers has some MiB.
const LONGEST: u64 = 16 << 20;

/// The text of a regular file, which those of /proc and /sys are too.
///
/// # Errors
/// Also if it is no regular file: a pipe, a socket, a device, a directory.
pub fn text(path: &Path) -> io::Result<String> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_refused_at_once_and_proc_is_read() {
        let root = tempfile::tempdir().unwrap();
        let pipe = root.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(&pipe, root.path().join("link")).unwrap();
        for name in ["pipe", "link", ""] {
            assert_eq!(text(&root.path().join(name)).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        assert!(text(Path::new("/dev/zero")).is_err());
        assert!(text(Path::new("/proc/self/status")).unwrap().contains("Pid:"));
    }
}
