//! Safe access to the kernel: processes, paths that other users may have changed, signals, sockets, locks, and programs with a deadline.

pub mod acl;
pub mod container;
pub mod inherited;
pub mod leftovers;
pub mod link_protection;
pub mod lock;
pub mod open_files;
pub mod proc;
pub mod report;
pub mod secret_variables;
pub mod sockets;
pub mod system_calls;
pub mod tool;
pub mod trusted_path;
pub mod users;

use std::path::{Path, PathBuf};

/// `path` below `root`.
pub fn under(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}
