//! Mounts for tests, which only the test's thread sees. They require root.

use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Mounts a new tmpfs.
pub(crate) fn tmpfs(at: &Path, flags: MsFlags, options: &str) {
    unshare_mounts();
    mount(Some("none"), at, Some("tmpfs"), flags, Some(options)).unwrap();
}

/// Makes later mounts visible only to this thread and its children.
pub(crate) fn unshare_mounts() {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_PRIVATE | MsFlags::MS_REC, None::<&str>).unwrap();
}
