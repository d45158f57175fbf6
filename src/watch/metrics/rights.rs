//! The process gives up root.

use anyhow::Context as _;
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Gid, Uid, User, setgid, setgroups, setuid};

/// nobody's number, and its group's.
const NOBODY: u32 = 65534;

/// Becomes slurminit's user without its group, which may open GPUs. Another user that the operator chose stays as it is.
///
/// # Errors
/// The rights cannot be given up.
pub(super) fn give_up() -> anyhow::Result<()> {
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    if Uid::effective().is_root() {
        let known = User::from_name(install::LOOKERS).ok().flatten();
        let uid = known.map_or(Uid::from_raw(NOBODY), |user| user.uid);
        setgroups(&[]).context("cannot change the groups")?;
        setgid(Gid::from_raw(NOBODY)).context("cannot change the group")?;
        setuid(uid).context("cannot change the user")?;
    }
    prctl::set_no_new_privs().context("cannot give up the way to new rights")
}
