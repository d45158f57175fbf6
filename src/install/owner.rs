//! The users that the daemons run as.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::Path;

use nix::unistd::{Gid, Uid, User, geteuid, setgid, setgroups, setuid};

use super::InstallError;
use config::{Config, DaemonName};
use sys::proc::parse::Mount;

/// The user who must own a file or directory. Without root's privileges owners cannot be changed, so slurminit's own user remains the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    name: String,
    ids: Option<(u32, u32)>,
}

impl Owner {
    /// The user of `daemon`. `path`, which the user must own, appears in the error message.
    ///
    /// # Errors
    /// This process is root, and the user does not exist or cannot be looked up.
    pub fn of(daemon: DaemonName, config: &Config, path: &Path) -> Result<Self, InstallError> {
        let chosen = config.daemons.get(&daemon).and_then(|settings| settings.user.as_deref());
        let name = chosen.or(daemon.user()).unwrap_or("root");
        if !geteuid().is_root() {
            return Ok(Self { name: name.to_owned(), ids: None });
        }
        match User::from_name(name) {
            Ok(Some(user)) => Ok(Self { name: name.to_owned(), ids: Some((user.uid.as_raw(), user.gid.as_raw())) }),
            _ => {
                let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
                let fix = fix_of_missing_user(daemon, &mounts);
                Err(InstallError::NoUser { user: name.to_owned(), path: path.to_owned(), fix })
            }
        }
    }

    /// The user and group ID; `None` if this process is not root, and thus cannot change owners.
    pub(super) fn ids(&self) -> Option<(u32, u32)> {
        self.ids
    }

    /// Changes the owner of an open file to this user, if this process is root.
    pub(super) fn give(&self, file: &File) -> io::Result<()> {
        match self.ids {
            Some((user, group)) => fchown(file, Some(user), Some(group)),
            None => Ok(()),
        }
    }

    /// Switches this process permanently to the user, if the process is root and the user is not.
    pub(super) fn become_user(&self) -> Result<(), InstallError> {
        let Some((user, group)) = self.ids.filter(|(user, _)| *user != 0) else { return Ok(()) };
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        let switched = setgroups(&[group]).and_then(|()| setgid(group)).and_then(|()| setuid(user));
        switched.map_err(|errno| InstallError::Switch { user: self.name.clone(), error: errno.into() })
    }

    /// Whether this user owns the file that `metadata` describes; always true if this process is not root.
    pub(super) fn owns(&self, metadata: &std::fs::Metadata) -> bool {
        self.ids.is_none_or(|(user, _)| metadata.uid() == user)
    }

    pub(super) fn error(&self, path: &Path, error: io::Error) -> InstallError {
        InstallError::Owner { path: path.to_owned(), user: self.name.clone(), error }
    }
}

/// The fix if a daemon's user does not exist: a mounted passwd file may hide the accounts of the image.
fn fix_of_missing_user(daemon: DaemonName, mountinfo: &str) -> String {
    let is_mounted = |at: &&str| Mount::all(mountinfo).any(|mount| mount.at == *at);
    match ["/etc/passwd", "/etc"].into_iter().find(is_mounted) {
        Some(at) => format!(
            "{at} is mounted, which hides the image's accounts: remove this mount; to use the host's users, mount the host's passwd and \
             group below /host/etc and set `[users] from = \"/host/etc\"`"
        ),
        None => format!(
            "install the daemon's package in the image, or set `user` in [daemon.{}] to an existing user",
            daemon.as_str()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_user_is_explained_by_mount_over_accounts() {
        let fix = |mount: &str| {
            let root = "1 0 0:1 / / rw - overlay o rw\n";
            fix_of_missing_user(DaemonName::Munged, &format!("{root}2 1 8:1 {mount} ro - ext4 /dev/a rw\n"))
        };
        for (mount, at) in [("/etc/passwd /etc/passwd", "/etc/passwd is mounted"), ("/srv/etc /etc", "/etc is mounted")]
        {
            let fix = fix(mount);
            assert!(fix.starts_with(at) && fix.contains("[users] from"), "{fix}");
        }
        assert!(fix("/v /etc/munge").starts_with("install the daemon's package"));
    }
}
