//! An open directory. Operations go through its descriptor and by name, so no path is resolved twice.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use nix::dir::Dir as Listing;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, geteuid, linkat, symlinkat, unlinkat};

use super::{RepairedPath, UntrustedPath, WalkMode};

const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Whether files of this user are as trustworthy as root's: they belong to root, or to the user we run as.
pub fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// An entry opened by name with `O_PATH`, for inspection and further operations. Usually a directory.
#[derive(Debug)]
pub struct Dir {
    file: File,
    metadata: Metadata,
    path: PathBuf,
}

impl Dir {
    fn open(at: impl AsFd, name: &Path, flags: OFlag, path: PathBuf) -> nix::Result<Self> {
        let file = File::from(openat(at, name, flags | OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?);
        let metadata = file.metadata().map_err(|_| nix::Error::last())?;
        Ok(Self { file, metadata, path })
    }

    /// The start of a walk: the root directory, which is trusted without a check.
    pub(super) fn open_root(root: &Path) -> nix::Result<Self> {
        Self::open(AT_FDCWD, root, OFlag::O_DIRECTORY, PathBuf::from("/"))
    }

    /// Opens a directory without a check of its owner, mode or parents.
    ///
    /// # Errors
    /// It does not exist or is not a directory.
    pub fn open_unchecked(path: &Path) -> io::Result<Self> {
        Ok(Self::open(AT_FDCWD, path, OFlag::O_DIRECTORY, path.to_owned())?)
    }

    /// The path, below the root of the walk.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Metadata at the time of opening, with owner and mode.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub(super) fn is_dir(&self) -> bool {
        self.metadata.is_dir()
    }

    pub(super) fn is_link(&self) -> bool {
        self.metadata.is_symlink()
    }

    /// Whether only root can have created this entry, even if others may add names: it belongs to root, and is not a
    /// hard link to another file of root's.
    pub(super) fn is_placed_by_root(&self) -> bool {
        is_ours(self.metadata.uid()) && (self.metadata.is_dir() || self.metadata.nlink() == 1)
    }

    pub(super) fn foreign(&self) -> UntrustedPath {
        UntrustedPath::Foreign { path: self.path.clone(), uid: self.metadata.uid() }
    }

    /// Whether others may add names here without being able to remove root's (`/tmp`). If they can remove those too,
    /// this is an error.
    pub(super) fn check_writers(&self, walk_mode: &mut WalkMode<'_>) -> Result<bool, UntrustedPath> {
        let (uid, mode) = (self.metadata.uid(), self.metadata.mode() & 0o7777);
        let is_open = mode & OTHERS_WRITE != 0;
        if is_ours(uid) && !is_open {
            return Ok(false);
        }
        if self.is_read_only() {
            return Ok(false);
        }
        match walk_mode {
            WalkMode::Anywhere => Ok(true),
            _ if !is_ours(uid) => Err(self.foreign()),
            _ if mode & STICKY != 0 => Ok(true),
            WalkMode::Repair(repaired) if self.set_mode(mode & !OTHERS_WRITE).is_ok() => {
                repaired.push(RepairedPath::Closed { path: self.path.clone(), mode });
                // Others may have created the existing entries.
                Ok(true)
            }
            _ => Err(UntrustedPath::Open { path: self.path.clone(), mode }),
        }
    }

    /// Fails if anyone but root could change the contents.
    ///
    /// # Errors
    /// It belongs to another user, or others may write to it.
    pub fn require_ours(&self) -> Result<(), UntrustedPath> {
        match self.check_writers(&mut WalkMode::Strict)? {
            false => Ok(()),
            true => Err(UntrustedPath::Open { path: self.path.clone(), mode: self.metadata.mode() & 0o7777 }),
        }
    }

    fn flags(&self) -> FsFlags {
        fstatvfs(&self.file).map_or(FsFlags::empty(), |found| found.flags())
    }

    /// Whether the directory is on a read-only mount.
    pub fn is_read_only(&self) -> bool {
        self.flags().contains(FsFlags::ST_RDONLY)
    }

    /// Whether the directory is on a mount with `noexec`.
    pub fn is_noexec(&self) -> bool {
        self.flags().contains(FsFlags::ST_NOEXEC)
    }

    /// Opens the entry of this name; of a link, the link itself.
    pub(super) fn open_entry(&self, name: &OsStr) -> nix::Result<Self> {
        Self::open(&self.file, Path::new(name), OFlag::O_NOFOLLOW, self.path.join(name))
    }

    pub(super) fn read_link(&self, name: &OsStr) -> nix::Result<PathBuf> {
        readlinkat(&self.file, name).map(PathBuf::from)
    }

    /// Creates a directory. If another process creates the same name at that moment, this fails: that process is not to
    /// be trusted.
    pub(super) fn make(&self, name: &OsStr) -> nix::Result<Self> {
        mkdirat(&self.file, name, Mode::from_bits_truncate(0o755))?;
        let made = self.open_entry(name)?;
        if made.is_dir() && made.metadata.uid() == geteuid().as_raw() { Ok(made) } else { Err(nix::Error::EEXIST) }
    }

    /// The subdirectory of this name, created if missing. Links of any owner are refused.
    ///
    /// # Errors
    /// Something else has this name, or it cannot be created.
    pub fn child(&self, name: &str) -> Result<(Self, bool), UntrustedPath> {
        let path = self.path.join(name);
        let (child, made) = match self.open_entry(OsStr::new(name)) {
            Err(nix::Error::ENOENT) => (self.make(OsStr::new(name)), true),
            found => (found, false),
        };
        let child = child.map_err(|error| UntrustedPath::io(&path, error))?;
        if child.is_link() {
            return Err(UntrustedPath::Link { path });
        }
        if !child.is_dir() {
            return Err(UntrustedPath::io(&path, nix::Error::ENOTDIR));
        }
        Ok((child, made))
    }

    /// Opens the directory once more, to list it or to change owner and mode.
    fn reopened(&self) -> nix::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        openat(&self.file, ".", flags, Mode::empty()).map(File::from)
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.reopened()?.set_permissions(Permissions::from_mode(mode))
    }

    /// Sets `owner` (user and group; `None` leaves it unchanged) and `mode`. The directory belongs to root in between,
    /// so that CHOWN is the only capability needed. Returns whether others could write there until now.
    ///
    /// # Errors
    /// The system call fails.
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
    /// The system call fails.
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

    /// Sets the sticky bit of a world-writable directory of root, so that users cannot remove each other's files.
    pub fn ensure_sticky_bit(&self, repaired: &mut Vec<RepairedPath>) {
        let mode = self.metadata.mode() & 0o7777;
        let is_sticky_missing = is_ours(self.metadata.uid()) && mode & OTHERS_WRITE != 0 && mode & STICKY == 0;
        if is_sticky_missing && self.set_mode(mode | STICKY).is_ok() {
            repaired.push(RepairedPath::Sticky { path: self.path.clone(), mode });
        }
    }

    pub(super) fn chown(&self, (user, group): (u32, u32)) -> nix::Result<()> {
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        fchownat(&self.file, "", Some(user), Some(group), AtFlags::AT_EMPTY_PATH)
    }

    /// Changes the owner of an entry; of a link, the owner of the link itself.
    ///
    /// # Errors
    /// The system call fails.
    pub fn chown_entry(&self, name: &str, (user, group): (u32, u32)) -> io::Result<()> {
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        Ok(fchownat(&self.file, name, Some(user), Some(group), AtFlags::AT_SYMLINK_NOFOLLOW)?)
    }

    /// The names of all entries.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut listing = Listing::from_fd(self.reopened()?.into())?;
        let entries: nix::Result<Vec<_>> = listing.iter().collect();
        let names = entries?.into_iter().map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
        Ok(names.filter(|name| name != "." && name != "..").collect())
    }

    /// The metadata of an entry.
    ///
    /// # Errors
    /// It does not exist or cannot be inspected.
    pub fn metadata_of(&self, name: &str) -> io::Result<Metadata> {
        Ok(self.open_entry(OsStr::new(name))?.metadata)
    }

    /// Opens a regular file; refuses links, pipes and devices.
    ///
    /// # Errors
    /// It does not exist or cannot be read.
    pub fn open_file(&self, name: impl AsRef<Path>) -> io::Result<File> {
        self.open_regular(name, OFlag::O_RDONLY)
    }

    /// Opens the target of a link. Only for links that root made.
    ///
    /// # Errors
    /// It does not exist or cannot be read.
    pub fn open_linked(&self, name: &str) -> io::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        Ok(File::from(openat(&self.file, name, flags, Mode::empty())?))
    }

    /// Reads a whole regular file.
    ///
    /// # Errors
    /// As for [`Self::open_file`].
    pub fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        super::read_whole(&self.open_file(name)?)
    }

    /// Creates a file with exactly `mode`, whatever the umask.
    ///
    /// # Errors
    /// The name exists, or the file cannot be created.
    pub fn create(&self, name: &str, mode: u32) -> io::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.file, name, flags, Mode::from_bits_truncate(mode))?);
        file.set_permissions(Permissions::from_mode(mode))?;
        Ok(file)
    }

    /// Opens an existing regular file for writing.
    ///
    /// # Errors
    /// It does not exist or cannot be written.
    pub fn open_to_write(&self, name: &str) -> io::Result<File> {
        self.open_regular(name, OFlag::O_RDWR)
    }

    /// Like [`Self::open_to_write`], but creates a missing file.
    ///
    /// # Errors
    /// It is not a regular file, or cannot be created.
    pub fn open_or_create(&self, name: &str, mode: u32) -> io::Result<File> {
        match self.open_to_write(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.create(name, mode),
            outcome => outcome,
        }
    }

    fn open_regular(&self, name: impl AsRef<Path>, access: OFlag) -> io::Result<File> {
        let flags = access | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.file, name.as_ref(), flags, Mode::empty())?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
    }

    /// Renames an entry within the directory.
    ///
    /// # Errors
    /// The system call fails.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.file, from, &self.file, to)?)
    }

    /// Makes a link.
    ///
    /// # Errors
    /// The name exists, or the system call fails.
    pub fn symlink(&self, target: &str, name: &str) -> io::Result<()> {
        Ok(symlinkat(target, &self.file, name)?)
    }

    /// Adds a hard link within the directory.
    ///
    /// # Errors
    /// The system call fails; some file systems have no hard links.
    pub fn link(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(linkat(&self.file, from, &self.file, to, AtFlags::empty())?)
    }

    /// Removes a file, link, pipe or socket, if it exists.
    ///
    /// # Errors
    /// The system call fails.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        match unlinkat(&self.file, name.as_ref(), UnlinkatFlags::NoRemoveDir) {
            Err(nix::Error::ENOENT) => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    pub(super) fn remove_directory(&self, name: &OsStr) -> nix::Result<()> {
        unlinkat(&self.file, name, UnlinkatFlags::RemoveDir)
    }

    /// Makes the entries survive a crash.
    ///
    /// # Errors
    /// The sync fails.
    pub fn sync(&self) -> io::Result<()> {
        self.reopened()?.sync_all()
    }
}
