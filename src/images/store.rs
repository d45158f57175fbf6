//! The directory of images. Each image is a directory with its files (`rootfs`) and its record (`image.json`).

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::fcntl::{Flock, FlockArg, OFlag, RenameFlags, openat, renameat2};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::geteuid;

use super::tree::{names, remove_entry};
use super::{ImageError, ImageName, ImageRecord};

/// The files of an image.
pub(crate) const ROOTFS: &str = "rootfs";
/// The record of an image.
pub(crate) const RECORD: &str = "image.json";
/// The prefix of directories of incomplete imports and interrupted removals.
const UNFINISHED: &str = ".unfinished-";
/// The longest record.
const MAX_RECORD: u64 = 1 << 20;
/// The maximum depth of an image's tree, including its parent directories.
const MAX_DEPTH: usize = 210;

/// The imports of this process.
static IMPORTS: AtomicU32 = AtomicU32::new(0);

/// A directory of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    path: PathBuf,
    is_shared: bool,
}

/// The directory of an import. The lock distinguishes it from a directory that a killed import left.
pub(crate) struct Unfinished {
    pub(crate) name: String,
    pub(crate) directory: Flock<OwnedFd>,
}

impl Store {
    /// The images of all users, which root imports.
    pub fn shared(path: PathBuf) -> Self {
        Self { path, is_shared: true }
    }

    /// The images that a user imports.
    pub fn of_user(home: &Path) -> Self {
        Self { path: home.join(".local/share/slurminit/images"), is_shared: false }
    }

    /// The path.
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

    /// Opens the directory. `None` if it is missing, or if other users than root and this one could replace its images.
    fn open(&self) -> Result<Option<OwnedFd>, ImageError> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let directory = match nix::fcntl::open(&self.path, flags, Mode::empty()) {
            Err(nix::Error::ENOENT | nix::Error::ENOTDIR) => return Ok(None),
            directory => directory.map_err(|error| self.io(error))?,
        };
        let status = fstat(&directory).map_err(|error| self.io(error))?;
        let is_ours = status.st_uid == 0 || status.st_uid == geteuid().as_raw();
        Ok((is_ours && status.st_mode & 0o022 == 0).then_some(directory))
    }

    /// Opens the directory, and creates it if it is missing.
    fn create(&self) -> Result<OwnedFd, ImageError> {
        if geteuid().is_root() {
            let untrusted = |error: sys::trusted_path::UntrustedPath| self.io(error);
            let (mut directory, _) =
                sys::trusted_path::make(Path::new("/"), &self.path, &mut Vec::new()).map_err(untrusted)?;
            directory.restrict_to_root(&mut Vec::new()).map_err(|error| self.io(error))?;
        } else {
            DirBuilder::new().recursive(true).mode(0o755).create(&self.path).map_err(|error| self.io(error))?;
        }
        let error = || self.io(io::Error::other("other users may write to this directory; choose another one"));
        self.open()?.ok_or_else(error)
    }

    /// All images, by name, without damaged ones.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> Result<Vec<ImageRecord>, ImageError> {
        let Some(directory) = self.open()? else { return Ok(Vec::new()) };
        let mut all: Vec<String> = names(&directory)
            .map_err(|error| self.io(error))?
            .into_iter()
            .filter_map(|name| name.into_string().ok())
            .collect();
        all.sort();
        let names = all.iter().filter_map(|name| name.parse::<ImageName>().ok());
        Ok(names.filter_map(|name| record(&directory, &name)).collect())
    }

    /// An image, or `None` if there is none of this name.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn find(&self, name: &ImageName) -> Result<Option<ImageRecord>, ImageError> {
        Ok(self.open()?.and_then(|directory| record(&directory, name)))
    }

    /// Where the files of an image are.
    pub fn rootfs(&self, name: &ImageName) -> PathBuf {
        self.path.join(name.as_str()).join(ROOTFS)
    }

    /// Removes an image.
    ///
    /// # Errors
    /// There is none of this name, or it cannot be removed.
    pub fn remove(&self, name: &ImageName) -> Result<(), ImageError> {
        let missing = || ImageError::Missing { name: name.clone(), path: self.path.clone() };
        let directory = self.open()?.ok_or_else(missing)?;
        // After the renaming it is not an image any more, even if the removal is interrupted.
        let unfinished = format!("{UNFINISHED}{}-{name}", std::process::id());
        match renameat2(&directory, name.as_str(), &directory, unfinished.as_str(), RenameFlags::RENAME_NOREPLACE) {
            Err(nix::Error::ENOENT) => return Err(missing()),
            renamed => renamed.map_err(|error| self.io(error))?,
        }
        remove_entry(&directory, OsStr::new(&unfinished), MAX_DEPTH).map_err(|error| self.io(error))
    }

    /// Creates a directory for a new image, and removes those of killed imports.
    pub(crate) fn begin(&self) -> Result<(OwnedFd, Unfinished), ImageError> {
        let directory = self.create()?;
        self.remove_unfinished(&directory)?;
        let number = IMPORTS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{UNFINISHED}{}-{number}", std::process::id());
        nix::sys::stat::mkdirat(&directory, name.as_str(), Mode::from_bits_truncate(0o755))
            .map_err(|error| self.io(error))?;
        let opened = open_child(&directory, &name).map_err(|error| self.io(error))?;
        let locked = Flock::lock(opened, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| self.io(error))?;
        Ok((directory, Unfinished { name, directory: locked }))
    }

    fn remove_unfinished(&self, directory: &OwnedFd) -> Result<(), ImageError> {
        for name in names(directory).map_err(|error| self.io(error))? {
            let Some(text) = name.to_str().filter(|name| name.starts_with(UNFINISHED)) else { continue };
            let Ok(opened) = open_child(directory, text) else { continue };
            if let Ok(_lock) = Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
                remove_entry(directory, &name, MAX_DEPTH).map_err(|error| self.io(error))?;
            }
        }
        Ok(())
    }

    /// Renames a complete image to its final name.
    pub(crate) fn publish(
        &self,
        directory: &OwnedFd,
        unfinished: &Unfinished,
        name: &ImageName,
        replaces: bool,
    ) -> Result<(), ImageError> {
        let rename = |flags| renameat2(directory, unfinished.name.as_str(), directory, name.as_str(), flags);
        match rename(RenameFlags::RENAME_NOREPLACE) {
            Err(nix::Error::EEXIST) if replaces => rename(RenameFlags::RENAME_EXCHANGE).map_err(|error| self.io(error)),
            Err(nix::Error::EEXIST) => Err(ImageError::Exists(name.clone())),
            renamed => renamed.map_err(|error| self.io(error)),
        }
    }

    /// Removes the directory with the unfinished name: a failed import, or the image that was replaced.
    pub(crate) fn discard(&self, directory: &OwnedFd, unfinished: &Unfinished) -> Result<(), ImageError> {
        remove_entry(directory, OsStr::new(&unfinished.name), MAX_DEPTH).map_err(|error| self.io(error))
    }
}

fn open_child(directory: &OwnedFd, name: &str) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    openat(directory, name, flags, Mode::empty())
}

fn record(directory: &OwnedFd, name: &ImageName) -> Option<ImageRecord> {
    let image = open_child(directory, name.as_str()).ok()?;
    let file = super::copy::open(&image, OsStr::new(RECORD)).ok()?;
    let mut text = String::new();
    std::fs::File::from(file).take(MAX_RECORD).read_to_string(&mut text).ok()?;
    let record: ImageRecord = serde_json::from_str(&text).ok()?;
    Some(ImageRecord { name: name.to_string(), ..record })
}
