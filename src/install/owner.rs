//! The users that the daemons run as.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::Path;

use nix::unistd::{Gid, Uid, User, geteuid, setgid, setgroups, setuid};

use super::InstallError;
use config::{Config, DaemonName};
use sys::proc::parse::Mount;

/// A user that must own something. Without root's privileges nothing can be given away, and slurminit's user keeps
/// everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    name: String,
    ids: Option<(u32, u32)>,
}

impl Owner {
    /// The user of `daemon`. `path`, which the user must own, appears in the error message.
    ///
    /// # Errors
    /// There is no such user.
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

    /// The user and group ID; `None` if nothing can be given away.
    pub(super) fn ids(&self) -> Option<(u32, u32)> {
        self.ids
    }

    /// Gives an open file to the user.
    pub(super) fn give(&self, file: &File) -> io::Result<()> {
        match self.ids {
            Some((user, group)) => fchown(file, Some(user), Some(group)),
            None => Ok(()),
        }
    }

    /// Switches this process to the user permanently.
    pub(super) fn become_user(&self) -> io::Result<()> {
        let Some((user, group)) = self.ids.filter(|(user, _)| *user != 0) else { return Ok(()) };
        let group = Gid::from_raw(group);
        setgroups(&[group])?;
        setgid(group)?;
        Ok(setuid(Uid::from_raw(user))?)
    }

    /// Whether this user owns the file that `metadata` describes.
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
            "{at} is mounted, which hides the image's accounts: remove this mount; for the host's users mount its passwd and group \
             below /host/etc and set `[users] from = \"/host/etc\"`"
        ),
        None => format!("install its package in the image, or set `user` in [daemon.{}]", daemon.as_str()),
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
        assert!(fix("/v /etc/munge").starts_with("install its package"));
    }
}
