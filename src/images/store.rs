//! The directory of images. Each image is a directory with its files (`rootfs`) and its record (`image.json`).
//!
//! A user who can change an image decides what the jobs in it run. So an image is used only if root or the user of the job owns the directory, the
//! image, its files and its record, and no other user can write there. Each of these is checked, because the owner of the directory may have changed.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::fcntl::{Flock, FlockArg, OFlag, RenameFlags, openat, renameat, renameat2};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use sys::trusted_path;

use super::tree::{names, open_directory, remove_entry};
use super::{ImageError, ImageName, ImageRecord};

/// The name of the directory with an image's files.
pub(crate) const ROOTFS: &str = "rootfs";
/// The name of the file with an image's record.
pub(crate) const RECORD: &str = "image.json";
/// The prefix of directories of incomplete imports and interrupted removals.
const UNFINISHED: &str = ".unfinished-";
/// The age at which an unfinished directory of another machine counts as abandoned.
const ABANDONED: std::time::Duration = std::time::Duration::from_secs(86_400);
/// The maximum size of a record, in bytes.
const MAX_RECORD: u64 = 1 << 20;
/// The maximum depth of an image's tree, including its parent directories.
const MAX_DEPTH: usize = 210;

/// The number of imports of this process so far.
static IMPORTS: AtomicU32 = AtomicU32::new(0);

/// A directory of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    path: PathBuf,
    is_shared: bool,
}

/// The images in a directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// The usable images.
    pub images: Vec<ImageRecord>,
    /// Why the other images cannot be used.
    pub untrusted: Vec<ImageError>,
}

/// The prefix of the files that pulls lock, before the name of the image.
const PULL: &str = ".pull-";
/// The longest message of a failed pull, in bytes.
const MAX_MESSAGE: u64 = 4096;

/// The outcome of [`Store::turn`].
pub(crate) enum Turn {
    /// The caller must pull the image.
    Ours(PullLock),
    /// Another process has pulled, or has failed with this error.
    Passed(Option<String>),
}

/// The right to pull an image. If its process dies, the next waiting process gets it.
pub(crate) struct PullLock {
    file: Flock<File>,
    name: String,
    directory: OwnedFd,
}

impl PullLock {
    /// Passes the error, if any, to the waiting processes, and ends their wait: a later pull uses another file.
    pub(crate) fn release(mut self, error: Option<String>) {
        let _ = error.map(|error| self.file.write_all(error.as_bytes()));
        let _ = unlinkat(&self.directory, self.name.as_str(), UnlinkatFlags::NoRemoveDir);
    }
}

/// The directory of an import. The lock distinguishes it from a directory that a killed import left.
pub(crate) struct Unfinished {
    pub(crate) name: String,
    pub(crate) directory: Flock<OwnedFd>,
}

impl Store {
    /// The images for all users, which root imports.
    pub fn shared(path: PathBuf) -> Self {
        Self { path, is_shared: true }
    }

    /// The images that a user imports.
    pub fn of_user(home: &Path) -> Self {
        Self { path: home.join(".local/share/slurminit/images"), is_shared: false }
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the images are for all users.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    fn io(&self, error: impl Into<io::Error>) -> ImageError {
        ImageError::io(&self.path, error)
    }

    /// Opens the directory; `None` if it is missing.
    ///
    /// # Errors
    /// Users other than root and this one could replace the images in it: another user owns the directory or one of its parents.
    fn open(&self) -> Result<Option<OwnedFd>, ImageError> {
        let opened = trusted_path::open(Path::new("/"), &self.path)
            .and_then(|directory| directory.require_own_content().map(|()| directory));
        match opened {
            Ok(directory) => Ok(Some(directory.reopened().map_err(|error| self.io(error))?.into())),
            // If the directory is missing, the owners of its parents do not matter.
            Err(_) if is_missing(&self.path) => Ok(None),
            Err(error) => Err(ImageError::untrusted_directory(error)),
        }
    }

    /// Opens the directory, and creates it if it is missing. Root creates the directory for all users before any of them can.
    ///
    /// # Errors
    /// It cannot be created, or users other than root and this one could replace the images in it.
    pub fn create(&self) -> Result<OwnedFd, ImageError> {
        match self.path.parent().zip(self.path.file_name().and_then(OsStr::to_str)) {
            Some((parent, name)) if self.is_shared && geteuid().is_root() => {
                let parent = match trusted_path::open(Path::new("/"), parent) {
                    Err(error) if error.is_missing() => {
                        trusted_path::make(Path::new("/"), parent, &mut Vec::new()).map(|(parent, _)| parent)
                    }
                    parent => parent,
                };
                let made = parent.and_then(|parent| parent.child(name));
                let (mut directory, _) = made.map_err(ImageError::untrusted_directory)?;
                // A new volume may be open to all (Kubernetes' `emptyDir`). Its files keep their owners, so files of other users are never used.
                if trusted_path::is_ours(directory.metadata().uid()) {
                    directory.restrict_to_root(&mut Vec::new()).map_err(|error| self.io(error))?;
                }
            }
            // The files that a user imports may be private.
            _ => {
                let mode = if self.is_shared { 0o755 } else { 0o700 };
                DirBuilder::new().recursive(true).mode(mode).create(&self.path).map_err(|error| self.io(error))?;
            }
        }
        self.open()?.ok_or_else(|| self.io(nix::Error::ENOENT))
    }

    /// All images in the order of their names, without damaged ones.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> Result<Listing, ImageError> {
        let mut listing = Listing::default();
        let directory = match self.open() {
            Ok(None) => return Ok(listing),
            Err(error) if error.is_untrusted() => {
                listing.untrusted.push(error);
                return Ok(listing);
            }
            directory => directory?,
        };
        let Some(directory) = directory else { return Ok(listing) };
        let mut all: Vec<String> = names(&directory)
            .map_err(|error| self.io(error))?
            .into_iter()
            .filter_map(|name| name.into_string().ok())
            .collect();
        all.sort();
        for name in all.iter().filter_map(|name| name.parse::<ImageName>().ok()) {
            match self.record(&directory, &name) {
                Ok(record) => listing.images.extend(record),
                Err(error) => listing.untrusted.push(error),
            }
        }
        Ok(listing)
    }

    /// Finds an image; `None` if no image has this name.
    ///
    /// # Errors
    /// The directory cannot be read, or another user could change the image.
    pub fn find(&self, name: &ImageName) -> Result<Option<ImageRecord>, ImageError> {
        // The image may still be in another store.
        if !self.has(name) {
            return Ok(None);
        }
        self.open()?.map_or(Ok(None), |directory| self.record(&directory, name))
    }

    /// Whether there is anything of this name, trusted or not.
    pub fn has(&self, name: &ImageName) -> bool {
        !is_missing(&self.path.join(name.as_str()))
    }

    /// Reads the record of an image. The image, its files and its record must each belong to root or this user: the directory may have belonged to
    /// another user when they were created. Everything in the files was created by the owner of their directory.
    fn record(&self, directory: &OwnedFd, name: &ImageName) -> Result<Option<ImageRecord>, ImageError> {
        let path = self.path.join(name.as_str());
        let check = |file: &OwnedFd, path: &Path| require_own_content(file, path, name);
        let Ok(image) = open_directory(directory, OsStr::new(name.as_str())) else { return Ok(None) };
        check(&image, &path)?;
        let Ok(rootfs) = open_directory(&image, OsStr::new(ROOTFS)) else { return Ok(None) };
        check(&rootfs, &path.join(ROOTFS))?;
        let Ok(file) = super::copy::open(&image, OsStr::new(RECORD)) else { return Ok(None) };
        check(&file, &path.join(RECORD))?;
        let mut text = String::new();
        if File::from(file).take(MAX_RECORD).read_to_string(&mut text).is_err() {
            return Ok(None);
        }
        Ok(ImageRecord::parse(&text, name))
    }

    /// The directory of an image's files.
    pub fn rootfs(&self, name: &ImageName) -> PathBuf {
        self.path.join(name.as_str()).join(ROOTFS)
    }

    /// Removes an image.
    ///
    /// # Errors
    /// No image has this name, or it cannot be removed.
    pub fn remove(&self, name: &ImageName) -> Result<(), ImageError> {
        let missing = || ImageError::Missing { name: name.clone(), path: self.path.clone() };
        let directory = self.open()?.ok_or_else(missing)?;
        // Once renamed, the directory is no longer an image, even if the removal is interrupted.
        let unfinished = unfinished_name();
        match renameat(&directory, name.as_str(), &directory, unfinished.as_str()) {
            Err(nix::Error::ENOENT) => return Err(missing()),
            renamed => renamed.map_err(|error| self.io(error))?,
        }
        remove_entry(&directory, OsStr::new(&unfinished), MAX_DEPTH).map_err(|error| self.io(error))
    }

    /// Waits until no other process pulls this image, and calls `waiting` first if one does.
    ///
    /// # Errors
    /// The directory cannot be written to, or its file system has no locks.
    pub(crate) fn turn(&self, name: &ImageName, waiting: impl FnOnce()) -> Result<Turn, ImageError> {
        let directory = self.create()?;
        let name = format!("{PULL}{name}");
        let fault = |error: nix::Error| ImageError::io(self.path.join(&name), error);
        // NFS locks only files that are open for writing.
        let flags = OFlag::O_CREAT | OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let opened = openat(&directory, name.as_str(), flags, Mode::from_bits_truncate(0o600)).map_err(fault)?;
        let mut file = match Flock::lock(File::from(opened), FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((file, nix::Error::EWOULDBLOCK)) => {
                waiting();
                Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| fault(error))?
            }
            Err((_, error)) => return Err(fault(error)),
        };
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let linked = openat(&directory, name.as_str(), flags, Mode::empty()).and_then(fstat);
        let own = fstat(&*file).map_err(fault)?;
        if linked.is_ok_and(|linked| (linked.st_dev, linked.st_ino) == (own.st_dev, own.st_ino)) {
            return Ok(Turn::Ours(PullLock { file, name, directory }));
        }
        let mut message = String::new();
        // On NFS the content of the removed file may be gone.
        let _ = (&mut *file).take(MAX_MESSAGE).read_to_string(&mut message);
        Ok(Turn::Passed((!message.is_empty()).then_some(message)))
    }

    /// Creates a directory for a new image, and removes those of killed imports.
    pub(crate) fn begin(&self) -> Result<(OwnedFd, Unfinished), ImageError> {
        let directory = self.create()?;
        // Otherwise another import could remove the new directory before it is locked. On NFS this lock fails.
        let copy = directory.try_clone().map_err(|error| self.io(error))?;
        let _turn = Flock::lock(copy, FlockArg::LockExclusive);
        self.remove_unfinished(&directory)?;
        let name = unfinished_name();
        nix::sys::stat::mkdirat(&directory, name.as_str(), Mode::from_bits_truncate(0o755))
            .map_err(|error| self.io(error))?;
        let opened = open_directory(&directory, OsStr::new(&name)).map_err(|error| self.io(error))?;
        let locked = Flock::lock(opened, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| self.io(error))?;
        Ok((directory, Unfinished { name, directory: locked }))
    }

    fn remove_unfinished(&self, directory: &OwnedFd) -> Result<(), ImageError> {
        let own = own_unfinished();
        for name in names(directory).map_err(|error| self.io(error))? {
            let Some(text) = name.to_str().filter(|name| name.starts_with(UNFINISHED)) else { continue };
            let Ok(opened) = open_directory(directory, &name) else { continue };
            // On NFS, a lock that another machine holds on a directory is not visible here.
            if !text.starts_with(&own) && !is_abandoned(&opened) {
                continue;
            }
            if let Ok(_lock) = Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
                remove_entry(directory, &name, MAX_DEPTH).map_err(|error| self.io(error))?;
            }
        }
        Ok(())
    }

    /// Renames a complete image to its final name. rename(2) replaces only an empty directory, so an existing image is kept without RENAME_NOREPLACE,
    /// which NFS, CephFS, Lustre and 9p do not support.
    pub(crate) fn publish(
        &self,
        directory: &OwnedFd,
        unfinished: &Unfinished,
        name: &ImageName,
        replaces: bool,
    ) -> Result<(), ImageError> {
        let (new, name_text) = (unfinished.name.as_str(), name.as_str());
        loop {
            match renameat(directory, new, directory, name_text) {
                Err(nix::Error::EEXIST | nix::Error::ENOTEMPTY | nix::Error::ENOTDIR) if replaces => {}
                Err(nix::Error::EEXIST | nix::Error::ENOTEMPTY | nix::Error::ENOTDIR) => {
                    return Err(ImageError::Exists(name.clone()));
                }
                renamed => return renamed.map_err(|error| self.io(error)),
            }
            match renameat2(directory, new, directory, name_text, RenameFlags::RENAME_EXCHANGE) {
                Err(nix::Error::EINVAL | nix::Error::ENOSYS | nix::Error::ENOENT) => {}
                renamed => return renamed.map_err(|error| self.io(error)),
            }
            // For an instant there is no image of this name.
            let former = unfinished_name();
            match renameat(directory, name_text, directory, former.as_str()) {
                Ok(()) | Err(nix::Error::ENOENT) => {}
                Err(error) => return Err(self.io(error)),
            }
            let published = renameat(directory, new, directory, name_text);
            if published.is_err() {
                // This has no effect if another import has taken the name.
                let _ = renameat(directory, former.as_str(), directory, name_text);
            }
            remove_entry(directory, OsStr::new(&former), MAX_DEPTH).map_err(|error| self.io(error))?;
            match published {
                Err(nix::Error::EEXIST | nix::Error::ENOTEMPTY) => {}
                published => return published.map_err(|error| self.io(error)),
            }
        }
    }

    /// Removes the directory with the unfinished name: a failed import, or the image that was replaced.
    pub(crate) fn discard(&self, directory: &OwnedFd, unfinished: &Unfinished) -> Result<(), ImageError> {
        remove_entry(directory, OsStr::new(&unfinished.name), MAX_DEPTH).map_err(|error| self.io(error))
    }
}

/// The start of the names of this machine's unfinished directories.
fn own_unfinished() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    format!("{UNFINISHED}{}-", name.to_string_lossy().replace('/', "-"))
}

/// A name that no other process on any machine with this store has.
fn unfinished_name() -> String {
    let number = IMPORTS.fetch_add(1, Ordering::Relaxed);
    let start = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_micros();
    format!("{}{}-{number}-{start:x}", own_unfinished(), std::process::id())
}

/// Whether a directory is too old for an import that is still running.
fn is_abandoned(directory: &OwnedFd) -> bool {
    let modified = fstat(directory).map(|status| status.st_mtime).unwrap_or_default();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    u64::try_from(modified).is_ok_and(|modified| now.saturating_sub(modified) > ABANDONED.as_secs())
}

/// Fails if a user other than root and this one can change an open part of the image.
fn require_own_content(file: &OwnedFd, path: &Path, name: &ImageName) -> Result<(), ImageError> {
    let status = fstat(file).map_err(|error| ImageError::io(path, error))?;
    let (uid, mode) = (status.st_uid, status.st_mode & 0o7777);
    if !trusted_path::is_ours(uid) {
        let fix =
            format!("remove it (`slurminit image remove {name}` as the owner of the directory), and import it again");
        return Err(ImageError::Foreign { path: path.to_owned(), uid, fix });
    }
    if mode & 0o022 != 0 {
        return Err(ImageError::Open { path: path.to_owned(), mode });
    }
    Ok(())
}

fn is_missing(path: &Path) -> bool {
    let missing = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    std::fs::symlink_metadata(path).is_err_and(|error| missing.contains(&error.kind()))
}
