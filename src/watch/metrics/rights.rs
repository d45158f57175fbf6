//! Drops root's rights in the metrics process.

use anyhow::Context as _;
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, User, setgid, setgroups, setuid};

/// The conventional unprivileged user and group ID.
const UNPRIVILEGED: u32 = 65534;

/// Switches from root to the user slurminit, but not to its group, whose members may open GPUs. Another user, set by the operator, is kept.
///
/// # Errors
/// The rights cannot be given up.
pub(super) fn give_up() -> anyhow::Result<()> {
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    if Uid::effective().is_root() {
        let known = User::from_name(install::WATCHER_USER).ok().flatten();
        let uid = known.map_or(Uid::from_raw(UNPRIVILEGED), |user| user.uid);
        setgroups(&[]).context("cannot drop the supplementary groups of this process")?;
        setgid(Gid::from_raw(UNPRIVILEGED)).context("cannot change the group of this process")?;
        setuid(uid).context("cannot change the user of this process")?;
    }
    prctl::set_no_new_privs().context("cannot set no_new_privs")
}
