//! Who may change a directory and its content: checks and corrections.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};

use nix::fcntl::AtFlags;
use nix::unistd::{Gid, Uid, fchownat, geteuid};

use super::super::{RepairedPath, UntrustedPath, WalkMode};
use super::{Dir, is_ours};
use crate::acl;

const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

impl Dir {
    /// Whether others may have added names here: in a sticky directory such as `/tmp`, in a directory that this call corrects, or, with
    /// [`WalkMode::Anywhere`], in any directory of another user or to which others may write. In the other modes, a directory in which others
    /// can replace root's entries is an error. A read-only mount is safe for any owner.
    pub(in super::super) fn check_writers(&self, walk_mode: &mut WalkMode<'_>) -> Result<bool, UntrustedPath> {
        let (uid, mode) = (self.metadata.uid(), self.metadata.mode() & 0o7777);
        let is_open = mode & OTHERS_WRITE != 0;
        if is_ours(uid) && !is_open {
            return Ok(false);
        }
        if self.is_read_only() {
            return Ok(false);
        }
        match walk_mode {
            WalkMode::Anywhere { .. } => Ok(true),
            _ if !is_ours(uid) => Err(self.foreign()),
            _ if mode & STICKY != 0 => Ok(true),
            WalkMode::Fix(repaired) if self.set_mode(mode & !OTHERS_WRITE).is_ok() => {
                repaired.push(RepairedPath::Closed { path: self.path.clone(), mode });
                // Others may have created the existing entries.
                Ok(true)
            }
            _ => Err(UntrustedPath::Open { path: self.path.clone(), mode }),
        }
    }

    /// Fails if anyone but root could change the contents. A directory on a read-only mount passes.
    ///
    /// # Errors
    /// It belongs to another user, or others may write to it.
    pub fn require_ours(&self) -> Result<(), UntrustedPath> {
        match self.check_writers(&mut WalkMode::Strict)? {
            false => Ok(()),
            true => Err(UntrustedPath::Open { path: self.path.clone(), mode: self.metadata.mode() & 0o7777 }),
        }
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.reopened()?.set_permissions(Permissions::from_mode(mode))
    }

    /// Sets `owner` (user and group; `None` leaves it unchanged) and `mode`. A wrong group alone is not corrected. The directory belongs to root
    /// in between, so that CAP_CHOWN is the only capability needed. Returns `false` if nothing was changed, and otherwise whether others could
    /// write there until now.
    ///
    /// # Errors
    /// A system call fails or has no effect.
    pub fn set_owner_and_mode(
        &mut self,
        owner: Option<(u32, u32)>,
        mode: u32,
        repaired: &mut Vec<RepairedPath>,
    ) -> io::Result<bool> {
        let (uid, old_mode) = (self.metadata.uid(), self.metadata.mode() & 0o7777);
        let is_owner = owner.is_none_or(|(user, _)| uid == user);
        if is_owner && old_mode == mode {
            return Ok(false);
        }
        let directory = self.reopened()?;
        if old_mode != mode {
            if owner.is_some() && uid != 0 {
                fchown(&directory, Some(0), None)?;
            }
            directory.set_permissions(Permissions::from_mode(mode))?;
        }
        if let Some((user, group)) = owner {
            if directory.metadata()?.uid() != user {
                fchown(&directory, Some(user), Some(group))?;
            }
        }
        self.metadata = directory.metadata()?;
        if !is_owner && self.metadata.uid() == uid {
            // Some network file systems report success without doing anything.
            return Err(nix::Error::EPERM.into());
        }
        let (was_foreign, was_open) = (!is_owner && !is_ours(uid), old_mode & OTHERS_WRITE != 0);
        if was_foreign {
            repaired.push(RepairedPath::OwnerChanged { path: self.path.clone(), uid, new_uid: self.metadata.uid() });
        } else if was_open {
            repaired.push(RepairedPath::Closed { path: self.path.clone(), mode: old_mode });
        }
        Ok(was_foreign || was_open)
    }

    /// Makes root the only user who can write here. Returns whether a change was necessary.
    ///
    /// # Errors
    /// A system call fails or has no effect.
    pub fn restrict_to_root(&mut self, repaired: &mut Vec<RepairedPath>) -> io::Result<bool> {
        let (uid, old_mode) = (self.metadata.uid(), self.metadata.mode() & 0o7777);
        // A mode that another user chose could lock the daemons out.
        let mode = if is_ours(uid) { old_mode & !(OTHERS_WRITE | STICKY) } else { 0o755 };
        let is_open = old_mode & OTHERS_WRITE != 0;
        // A read-only mount is safe for any owner.
        if is_ours(uid) && !is_open || self.is_read_only() {
            return Ok(false);
        }
        self.set_owner_and_mode(geteuid().is_root().then_some((0, 0)), mode, repaired)
    }

    /// Fails unless the directory belongs to root or to this process's user, and no other user may write there. Unlike
    /// [`Self::require_ours`], a read-only mount is no exception: the owner may be able to write to the content through another mount.
    ///
    /// # Errors
    /// It belongs to another user, or others may write to it.
    pub fn require_own_content(&self) -> Result<(), UntrustedPath> {
        let (uid, mode) = (self.metadata.uid(), self.metadata.mode() & 0o7777);
        if !is_ours(uid) {
            return Err(self.foreign());
        }
        if mode & OTHERS_WRITE != 0 {
            return Err(UntrustedPath::Open { path: self.path.clone(), mode });
        }
        Ok(())
    }

    /// Makes the kernel deny all users but the creator access to everything that is created here ([`acl::close_new_entries`]). Returns
    /// whether the file system supports this.
    ///
    /// # Errors
    /// The system call fails.
    pub fn close_new_entries(&self) -> io::Result<bool> {
        acl::close_new_entries(&self.file)
    }

    /// Whether only the owner can enter the directory. If an access list of [`Self::close_new_entries`] ensures this, also sets the
    /// mode to 0700.
    ///
    /// # Errors
    /// The system call fails.
    pub fn is_closed(&self) -> io::Result<bool> {
        if self.metadata.mode() & 0o077 == 0 {
            return Ok(true);
        }
        let is_closed = acl::is_owner_only(&self.file)?;
        if is_closed {
            self.set_mode(0o700)?;
        }
        Ok(is_closed)
    }

    /// Sets the sticky bit of a root-owned directory to which others can write, so that users cannot remove each other's files.
    pub fn ensure_sticky_bit(&self, repaired: &mut Vec<RepairedPath>) {
        let mode = self.metadata.mode() & 0o7777;
        let is_sticky_missing = is_ours(self.metadata.uid()) && mode & OTHERS_WRITE != 0 && mode & STICKY == 0;
        if is_sticky_missing && self.set_mode(mode | STICKY).is_ok() {
            repaired.push(RepairedPath::Sticky { path: self.path.clone(), mode });
        }
    }

    /// Lets users write to a root-owned directory for temporary files.
    pub fn open_to_users(&self, repaired: &mut Vec<RepairedPath>) {
        let mode = self.metadata.mode() & 0o7777;
        if is_ours(self.metadata.uid()) && mode & OTHERS_WRITE == 0 && self.set_mode(0o1777).is_ok() {
            repaired.push(RepairedPath::Opened { path: self.path.clone(), mode });
        }
    }

    pub(in super::super) fn chown(&self, (user, group): (u32, u32)) -> nix::Result<()> {
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        fchownat(&self.file, "", Some(user), Some(group), AtFlags::AT_EMPTY_PATH)
    }

    /// Changes the owner of an entry. If the entry is a link, changes the owner of the link itself.
    ///
    /// # Errors
    /// The system call fails.
    pub fn chown_entry(&self, name: &str, (user, group): (u32, u32)) -> io::Result<()> {
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        Ok(fchownat(&self.file, name, Some(user), Some(group), AtFlags::AT_SYMLINK_NOFOLLOW)?)
    }
}
