//! Whether root may make namespaces, as slurmd does where it loads a user's environment (Slurm 23.11 and newer, `env.c`).

use std::path::Path;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::capabilities::{SYS_ADMIN, effective};
use super::sandbox::Sandbox;

/// Tries it in a child, where the capability is there: a security profile can refuse all the same.
pub(super) fn detect(root: &Path, deadline: Duration) -> bool {
    let is_possible = effective(root).is_some_and(|set| set & (1 << SYS_ADMIN) != 0);
    // Below another root it is another machine's capability.
    is_possible
        && root == Path::new("/")
        && Sandbox::start(|| attempt().is_ok()).finish(Instant::now() + deadline).unwrap_or(false)
}

/// What slurmd's own child does.
fn attempt() -> nix::Result<()> {
    let (proc, none) = (Some("proc"), None::<&str>);
    unshare(CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS)?;
    mount(none, "/proc", none, MsFlags::MS_PRIVATE | MsFlags::MS_REC, none)?;
    mount(proc, "/proc", proc, MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC | MsFlags::MS_NODEV, none)
}
