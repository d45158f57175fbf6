//! An open directory. Operations go through its descriptor and by name, so no path is resolved twice.

mod access;

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::dir::Dir as Listing;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, mkdirat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{UnlinkatFlags, geteuid, linkat, symlinkat, unlinkat};

use super::UntrustedPath;

/// Whether files of this user are as trustworthy as root's: the user is root, or the one that this process runs as.
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

    /// Metadata at the time of opening, or of the last [`Self::set_owner_and_mode`].
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub(super) fn is_dir(&self) -> bool {
        self.metadata.is_dir()
    }

    pub(super) fn is_link(&self) -> bool {
        self.metadata.is_symlink()
    }

    /// Whether only root can have created this entry, even if others may add names: it belongs to root, and is not a hard link to
    /// another of root's files.
    pub(super) fn is_placed_by_root(&self) -> bool {
        is_ours(self.metadata.uid()) && (self.metadata.is_dir() || self.metadata.nlink() == 1)
    }

    /// Whether the entry belongs to another user. A hard link to one of root's files belongs to root.
    pub(super) fn is_foreign(&self) -> bool {
        !is_ours(self.metadata.uid())
    }

    pub(super) fn foreign(&self) -> UntrustedPath {
        UntrustedPath::Foreign { path: self.path.clone(), uid: self.metadata.uid() }
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

    /// Opens the entry of this name. If the entry is a link, opens the link itself.
    pub(super) fn open_entry(&self, name: &OsStr) -> nix::Result<Self> {
        Self::open(&self.file, Path::new(name), OFlag::O_NOFOLLOW, self.path.join(name))
    }

    pub(super) fn read_link(&self, name: &OsStr) -> nix::Result<PathBuf> {
        readlinkat(&self.file, name).map(PathBuf::from)
    }

    /// Creates a directory. Fails if another process creates the same name at that moment, because that process cannot be trusted.
    pub(super) fn make(&self, name: &OsStr) -> nix::Result<Self> {
        mkdirat(&self.file, name, Mode::from_bits_truncate(0o755))?;
        let made = self.open_entry(name)?;
        if made.is_dir() && made.metadata.uid() == geteuid().as_raw() { Ok(made) } else { Err(nix::Error::EEXIST) }
    }

    /// The subdirectory of this name, created if missing, and whether it was created. Links of any owner are refused.
    ///
    /// # Errors
    /// An entry of this name is not a directory, or the directory cannot be created.
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
    ///
    /// # Errors
    /// It cannot be read.
    pub fn reopened(&self) -> nix::Result<File> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        openat(&self.file, ".", flags, Mode::empty()).map(File::from)
    }

    /// Changes the mode of an entry that is not a link. Use this only in a directory in which others cannot replace the entry
    /// ([`Self::require_ours`]).
    ///
    /// # Errors
    /// The system call fails.
    pub fn chmod_entry(&self, name: &str, mode: u32) -> io::Result<()> {
        Ok(fchmodat(&self.file, name, Mode::from_bits_truncate(mode), FchmodatFlags::FollowSymlink)?)
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
    /// It does not exist, is not a regular file, or cannot be read.
    pub fn open_file(&self, name: impl AsRef<Path>) -> io::Result<File> {
        self.open_regular(name, OFlag::O_RDONLY)
    }

    /// Opens the target of a link. Use this only for links that root made.
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
    /// As for [`Self::open_file`], or the file is too long.
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

    /// Opens an existing regular file for reading and writing.
    ///
    /// # Errors
    /// The file does not exist, is not regular, or cannot be opened for writing.
    pub fn open_to_write(&self, name: &str) -> io::Result<File> {
        self.open_regular(name, OFlag::O_RDWR)
    }

    /// Like [`Self::open_to_write`], but creates a missing file with `mode`, open only for writing.
    ///
    /// # Errors
    /// The name exists but is not a regular file, or the file cannot be opened or created.
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

    /// Creates a symbolic link.
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

    /// Removes an empty directory.
    ///
    /// # Errors
    /// The system call fails.
    pub fn remove_directory(&self, name: impl AsRef<OsStr>) -> nix::Result<()> {
        unlinkat(&self.file, name.as_ref(), UnlinkatFlags::RemoveDir)
    }

    /// Makes the entries survive a crash.
    ///
    /// # Errors
    /// The sync fails.
    pub fn sync(&self) -> io::Result<()> {
        self.reopened()?.sync_all()
    }
}
