//! The directory of images. Each image is a directory with its files (`rootfs`) and its record (`image.json`).
//!
//! A user who can change an image decides what the jobs in it run. So an image is used only if root or the user of the job owns the directory, the
//! image, its `rootfs` and its record, and no other user can write there. Each of these is checked, because the owner of the directory may have
//! changed.

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
/// The prefix of the names of directories that are not images: unfinished imports, and images that are being removed or replaced.
const UNFINISHED: &str = ".unfinished-";
/// The age at which an unfinished directory of another machine is considered abandoned.
const ABANDONED: std::time::Duration = std::time::Duration::from_secs(86_400);
/// The maximum size of a record, in bytes.
const MAX_RECORD: u64 = 1 << 20;
/// The maximum depth of an image's directory: that of the tree, and a few levels above it.
const MAX_DEPTH: usize = 210;

/// Counts the names of unfinished directories that this process has generated.
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
    /// The reasons why further images, or the whole directory, are untrusted.
    pub untrusted: Vec<ImageError>,
}

/// The prefix of the lock files of pulls; the image's name follows.
const PULL: &str = ".pull-";
/// The maximum size of a failed pull's message that a waiting process reads, in bytes.
const MAX_MESSAGE: u64 = 4096;

/// The outcome of [`Store::turn`].
pub(crate) enum Turn {
    /// No other process is pulling the image, so the caller may pull it.
    Ours(PullLock),
    /// Another process has pulled the image, or has failed to. Contains its error, if known.
    Passed(Option<String>),
}

/// The right to pull an image. If the process that has this right dies, the next waiting process gets it.
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
    /// The directory cannot be opened, or users other than root and this one could replace the images in it.
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

    /// Opens the directory, and creates it if it is missing. At the container's start, slurminit creates the shared directory as root, before any
    /// user can.
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
                // A new volume may be writable by all users (Kubernetes' `emptyDir`). The files in it keep their owners, so files of other
                // users are never used.
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

    /// Finds an image; `None` if no image has this name, or if the image is damaged.
    ///
    /// # Errors
    /// The directory cannot be read, or another user could change the image.
    pub fn find(&self, name: &ImageName) -> Result<Option<ImageRecord>, ImageError> {
        // A store without the image is not checked, because another store may have the image.
        if !self.has(name) {
            return Ok(None);
        }
        self.open()?.map_or(Ok(None), |directory| self.record(&directory, name))
    }

    /// Whether anything with this name exists, trusted or not.
    pub fn has(&self, name: &ImageName) -> bool {
        !is_missing(&self.path.join(name.as_str()))
    }

    /// Reads the record of an image; `None` if the image is missing or damaged. The image's directory, its root file system and its record must
    /// each belong to root or this user, and no other user may have write permission: the store may have belonged to another user when they were
    /// created. The contents of the root file system need no check, because only its owner could create them.
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
    /// No image has this name, the directory is untrusted, or the image cannot be removed.
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

    /// Waits until no other process is pulling this image. Calls `waiting` before it waits.
    ///
    /// # Errors
    /// The directory is untrusted or cannot be written to, or its file system has no locks.
    pub(crate) fn turn(&self, name: &ImageName, waiting: impl FnOnce()) -> Result<Turn, ImageError> {
        let directory = self.create()?;
        let name = format!("{PULL}{name}");
        let fault = |error: nix::Error| ImageError::io(self.path.join(&name), error);
        // NFS grants an exclusive lock only on a file that is open for writing.
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
        let mut message = Vec::new();
        // On NFS the content of the removed file may be gone.
        let _ = (&mut *file).take(MAX_MESSAGE).read_to_end(&mut message);
        Ok(Turn::Passed((!message.is_empty()).then(|| String::from_utf8_lossy(&message).into_owned())))
    }

    /// Creates a directory for a new image. Removes the directories that killed imports and interrupted removals left.
    pub(crate) fn begin(&self) -> Result<(OwnedFd, Unfinished), ImageError> {
        let directory = self.create()?;
        // Without this lock, another import could remove the new directory before it is locked itself. On NFS, only
        // imports on this machine honor this lock.
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
                // A leftover that cannot be removed, for example with another user's files, must not prevent this import.
                let _ = remove_entry(directory, &name, MAX_DEPTH);
            }
        }
        Ok(())
    }

    /// Renames a complete image to its final name. With `replaces`, an existing image is replaced; otherwise it is an error. rename(2) replaces only
    /// an empty directory, so it never overwrites an image. RENAME_NOREPLACE is not needed; NFS, CephFS, Lustre and 9p do not support it.
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

    /// Removes the directory with the unfinished name, if it exists: a failed import, or the image that was replaced.
    pub(crate) fn discard(&self, directory: &OwnedFd, unfinished: &Unfinished) -> Result<(), ImageError> {
        remove_entry(directory, OsStr::new(&unfinished.name), MAX_DEPTH).map_err(|error| self.io(error))
    }
}

/// The start of the names of this machine's unfinished directories.
fn own_unfinished() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default();
    format!("{UNFINISHED}{}-", name.to_string_lossy().replace('/', "-"))
}

/// A new name for an unfinished directory, which no other process on any machine with this store generates.
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

/// Fails if a user other than root and this one can change this open file or directory of the image.
fn require_own_content(file: &OwnedFd, path: &Path, name: &ImageName) -> Result<(), ImageError> {
    let status = fstat(file).map_err(|error| ImageError::io(path, error))?;
    let (uid, mode) = (status.st_uid, status.st_mode & 0o7777);
    if !trusted_path::is_ours(uid) {
        let fix = format!(
            "remove the image (`slurminit image remove {name}` as the owner of the images directory), and import it again"
        );
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::mpsc;

    use super::*;

    fn tools() -> ImageName {
        "tools".parse().unwrap()
    }

    /// The lock, if the caller may pull the image.
    fn lock(turn: Turn) -> PullLock {
        match turn {
            Turn::Ours(lock) => lock,
            Turn::Passed(why) => panic!("passed: {why:?}"),
        }
    }

    #[test]
    fn waiting_process_gets_outcome_of_pull_or_its_turn() {
        let directory = crate::tests::scratch();
        let store = Store::shared(directory.path().join("images"));
        let first = || lock(store.turn(&tools(), || unreachable!("no other process pulls")).unwrap());
        // The outcome for another process that waits while this one pulls.
        let waiter = |end: &dyn Fn(PullLock)| {
            let pull = first();
            let (waits, is_waiting) = mpsc::channel();
            let other = store.clone();
            let thread = std::thread::spawn(move || other.turn(&tools(), || waits.send(()).unwrap()).unwrap());
            is_waiting.recv().unwrap();
            end(pull);
            thread.join().unwrap()
        };
        let passed = waiter(&|pull| pull.release(None));
        assert!(matches!(passed, Turn::Passed(None)));
        let failed = waiter(&|pull| pull.release(Some("no such image".to_owned())));
        assert!(matches!(failed, Turn::Passed(Some(why)) if why == "no such image"));
        let long = waiter(&|pull| pull.release(Some(format!("x{}", "ä".repeat(3000)))));
        assert!(matches!(long, Turn::Passed(Some(why)) if why.starts_with("xä")), "the limit may split a character");
        // The process that pulled has died.
        let died = waiter(&|pull| drop(pull));
        lock(died).release(None);
        first().release(None);
        assert_eq!(crate::tests::entries(store.path()), 0);
    }

    #[test]
    fn lock_of_a_pull_follows_no_link() {
        let directory = crate::tests::scratch();
        let store = Store::shared(directory.path().join("images"));
        store.create().unwrap();
        symlink("target", store.path().join(".pull-tools")).unwrap();
        let error = store.turn(&tools(), || unreachable!("no other process pulls")).map(lock).err().unwrap();
        assert!(matches!(error, ImageError::Io { .. }), "{error:?}");
        assert!(!store.path().join("target").exists());
    }
}
