//! Safe access to the kernel: processes, paths that other users may have changed, signals, sockets, locks, and programs with a deadline.

pub mod acl;
pub mod container;
pub mod inherited;
pub mod init_task;
pub mod leftovers;
pub mod link_protection;
pub mod lock;
pub mod open_files;
pub mod outer_job;
pub mod proc;
pub mod report;
pub mod sandbox;
pub mod secret_variables;
pub mod sockets;
pub mod system_calls;
pub mod tool;
pub mod trusted_path;
pub mod users;

use std::path::{Path, PathBuf};

use nix::time::{ClockId, clock_gettime};

/// Joins `path`, which may be absolute, to `root`.
pub fn under(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Milliseconds of the monotonic clock.
pub fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or(nix::sys::time::TimeSpec::new(0, 0));
    u64::try_from(now.tv_sec() * 1000 + now.tv_nsec() / 1_000_000).unwrap_or_default()
}
