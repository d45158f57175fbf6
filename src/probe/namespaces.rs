//! Whether root may create namespaces, as slurmd does to load a user's environment (Slurm 24.11, `env.c`).

use std::path::Path;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::capabilities::{SYS_ADMIN, has};
use sys::sandbox::Sandbox;

/// With CAP_SYS_ADMIN, tries to create the namespaces in a child, because a security profile can still refuse them.
pub(super) fn detect(root: &Path, deadline: Duration) -> bool {
    let is_possible = has(root, SYS_ADMIN).unwrap_or(false);
    // With another root directory, the capability would be that of another machine.
    is_possible
        && root == Path::new("/")
        && Sandbox::start(|| attempt().is_ok()).finish(Instant::now() + deadline).unwrap_or(false)
}

/// Makes the same system calls as slurmd's child process.
fn attempt() -> nix::Result<()> {
    let (proc, none) = (Some("proc"), None::<&str>);
    unshare(CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS)?;
    mount(none, "/proc", none, MsFlags::MS_PRIVATE | MsFlags::MS_REC, none)?;
    mount(proc, "/proc", proc, MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC | MsFlags::MS_NODEV, none)
}
