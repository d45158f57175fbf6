//! Replacing a file so that a reader or a full disk never meets half of one, and a crash never costs the old one.
//!
//! A sync takes 4 ms and more, and a new container has no old file to lose: what a power cut leaves of a first file differs
//! from what the next start renders, and is written again. So only a replacement is synced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use super::{Owner, sibling};

/// Replaces `path` with `content` and `mode`, unless that is its content. The old file is kept as `NAME.previous`.
/// Returns whether anything was written.
pub(super) fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<bool> {
    let replaces = match fs::read(path) {
        Ok(old) if old == content => {
            if fs::metadata(path)?.permissions().mode() & 0o7777 != mode {
                fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
            }
            return Ok(false);
        }
        Ok(_) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    let new = write_beside(path, content, mode, None)?;
    let install = || {
        if replaces {
            File::open(&new)?.sync_all()?;
            keep_previous(path)?;
        }
        fs::rename(&new, path)
    };
    install().inspect_err(|_| drop(fs::remove_file(&new)))?;
    if replaces {
        sync_directory(path)?;
    }
    Ok(true)
}

/// Replaces `path` with `content`, with `mode` and `owner` (user and group), and keeps no copy.
pub(super) fn replace_as(path: &Path, content: &[u8], mode: u32, owner: (u32, u32)) -> io::Result<()> {
    let new = write_beside(path, content, mode, None)?;
    let install = || {
        let file = File::open(&new)?;
        let metadata = file.metadata()?;
        if (metadata.uid(), metadata.gid()) != owner {
            fchown(&file, Some(owner.0), Some(owner.1))?;
        }
        file.sync_all()?;
        fs::rename(&new, path)
    };
    install().inspect_err(|_| drop(fs::remove_file(&new)))?;
    sync_directory(path)
}

/// A new text of a file that is there, on the disk beside it, with the file's own owner and mode. Dropped without
/// [`Staged::commit`], it is gone.
#[derive(Debug)]
pub(super) struct Staged {
    path: PathBuf,
    new: PathBuf,
}

/// Prepares the replacement of `path`, of which no copy is kept.
pub(super) fn stage(path: &Path, content: &[u8]) -> io::Result<Staged> {
    let old = fs::metadata(path)?;
    let new = write_beside(path, content, old.permissions().mode() & 0o7777, None)?;
    let staged = Staged { path: path.to_owned(), new };
    let file = File::open(&staged.new)?;
    let metadata = file.metadata()?;
    if (metadata.uid(), metadata.gid()) != (old.uid(), old.gid()) {
        fchown(&file, Some(old.uid()), Some(old.gid()))?;
    }
    file.sync_all()?;
    Ok(staged)
}

impl Staged {
    /// Puts it in the place of the old file.
    pub(super) fn commit(self) -> io::Result<()> {
        fs::rename(&self.new, &self.path)?;
        sync_directory(&self.path)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Nothing is there after a commit.
        let _ = fs::remove_file(&self.new);
    }
}

/// Replaces a secret, which gets its owner before its name and of which no copy is kept. It is not synced: see [`sync`].
pub(super) fn replace_secret(path: &Path, content: &[u8], owner: Option<&Owner>) -> io::Result<()> {
    let new = write_beside(path, content, 0o400, owner)?;
    fs::rename(&new, path).inspect_err(|_| drop(fs::remove_file(&new)))
}

/// Makes the file and its name survive a crash.
pub(super) fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    sync_directory(path)
}

/// Makes the name of `path` survive a crash.
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Writes a new file in the same directory; nothing is left of it after an error.
fn write_beside(path: &Path, content: &[u8], mode: u32, owner: Option<&Owner>) -> io::Result<PathBuf> {
    let new = sibling(path, ".new");
    // A start that was killed may have left one; create_new then also refuses a symbolic link.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        // The umask may have taken bits away. Before it is given away: after that it would take CAP_FOWNER.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        if let Some(owner) = owner {
            owner.own(&file)?;
        }
        file.write_all(content)
    };
    write().inspect_err(|_| drop(fs::remove_file(&new)))?;
    Ok(new)
}

/// Gives the old file a second name; `path` itself stays until the rename.
fn keep_previous(path: &Path) -> io::Result<()> {
    let previous = sibling(path, ".previous");
    match fs::remove_file(&previous) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    match fs::hard_link(path, &previous) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Some file systems have no hard links.
        Err(_) => fs::copy(path, &previous).map(drop),
    }
}
