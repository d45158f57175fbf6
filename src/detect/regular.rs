//! Reads files outside of the sandbox, where nothing may block.
//!
//! A pipe in place of a file (`docker run -v`, a tree given with `--root`) would hold the reader until somebody writes to it.

use std::io;
use std::path::Path;

use crate::walk;

/// The text of a regular file, which those of /proc and /sys are too.
///
/// # Errors
/// Also if it is no regular file: a pipe, a socket, a device, a directory.
pub fn text(path: &Path) -> io::Result<String> {
    String::from_utf8(walk::read(path)?).map_err(|_| io::ErrorKind::InvalidData.into())
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
            assert!(text(&root.path().join(name)).is_err(), "{name}");
        }
        assert!(text(Path::new("/dev/zero")).is_err());
        assert!(text(Path::new("/proc/self/status")).unwrap().contains("Pid:"));
    }
}
