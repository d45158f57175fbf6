//! Replacing a file so that a reader or a full disk never meets half of one, and a crash never costs the old one.
//!
//! A sync takes 4 ms and more, and a new container has no old file to lose: what a power cut leaves of a first file differs
//! from what the next start renders, and is written again. So only a replacement is synced.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

use super::Owner;
use crate::walk::{self, Dir, is_ours};

/// Replaces `name` in `dir` with `content` and `mode`, unless that is its content and nobody else can write it. The old
/// file is kept as `NAME.previous`. Returns whether anything was written.
pub(super) fn replace(dir: &Dir, name: &str, content: &[u8], mode: u32) -> io::Result<bool> {
    let old = old(dir, name)?;
    let same = old.as_ref().and_then(|old| old.readable.as_ref()).filter(|(_, bytes)| bytes == content);
    if let Some((file, _)) = same {
        let metadata = file.metadata()?;
        if is_ours(metadata.uid()) {
            if metadata.permissions().mode() & 0o7777 != mode {
                file.set_permissions(Permissions::from_mode(mode))?;
            }
            return Ok(false);
        }
    }
    let install = |new: &New| {
        if old.is_some() {
            new.file.sync_all()?;
            keep_previous(dir, name)?;
        }
        dir.rename(&new.name, name)
    };
    let written = write_beside(dir, name, content, mode, None)
        .and_then(|new| install(&new).inspect_err(|_| drop(dir.remove(&new.name))));
    match written {
        // A file that is a mount of its own, or on a read-only one, is the operator's, whosesoever it is.
        Err(error) if same.is_some() && is_mounted(&error) => return Ok(false),
        outcome => outcome?,
    }
    if old.is_some() {
        dir.sync()?;
    }
    Ok(true)
}

fn is_mounted(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::ReadOnlyFilesystem)
}

/// What is there before.
struct Old {
    /// The file and its content. A pipe is not read, nor what a link leads to that is not root's.
    readable: Option<(File, Vec<u8>)>,
}

fn old(dir: &Dir, name: &str) -> io::Result<Option<Old>> {
    let found = match dir.metadata_of(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    if found.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let is_operators_link = found.is_symlink() && is_ours(found.uid());
    let file = if is_operators_link { dir.open_linked(name) } else { dir.open_file(name) };
    let readable = file.and_then(|file| Ok((walk::read_whole(&file)?, file))).map(|(bytes, file)| (file, bytes));
    Ok(Some(Old { readable: readable.ok() }))
}

/// Replaces `name` with `content`, with `mode` and `owner` (user and group), and keeps no copy.
pub(super) fn replace_as(dir: &Dir, name: &str, content: &[u8], mode: u32, owner: (u32, u32)) -> io::Result<()> {
    let new = write_beside(dir, name, content, mode, None)?;
    let install = || {
        let metadata = new.file.metadata()?;
        if (metadata.uid(), metadata.gid()) != owner {
            fchown(&new.file, Some(owner.0), Some(owner.1))?;
        }
        new.file.sync_all()?;
        dir.rename(&new.name, name)
    };
    install().inspect_err(|_| drop(dir.remove(&new.name)))?;
    dir.sync()
}

/// A new text of a file that is there, on the disk beside it, with the file's own owner and mode. Dropped without
/// [`Staged::commit`], it is gone.
#[derive(Debug)]
pub(super) struct Staged<'a> {
    dir: &'a Dir,
    name: &'a str,
    new: New,
}

/// Prepares the replacement of `name`, of which no copy is kept.
pub(super) fn stage<'a>(dir: &'a Dir, name: &'a str, content: &[u8]) -> io::Result<Staged<'a>> {
    let old = dir.metadata_of(name)?;
    let new = write_beside(dir, name, content, old.permissions().mode() & 0o7777, None)?;
    let staged = Staged { dir, name, new };
    let file = &staged.new.file;
    let metadata = file.metadata()?;
    if (metadata.uid(), metadata.gid()) != (old.uid(), old.gid()) {
        fchown(file, Some(old.uid()), Some(old.gid()))?;
    }
    file.sync_all()?;
    Ok(staged)
}

impl Staged<'_> {
    /// Puts it in the place of the old file.
    pub(super) fn commit(self) -> io::Result<()> {
        self.dir.rename(&self.new.name, self.name)?;
        self.dir.sync()
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        // Nothing is there after a commit.
        let _ = self.dir.remove(&self.new.name);
    }
}

/// Replaces a secret, which gets its owner before its name and of which no copy is kept. It is not synced: see [`sync`].
pub(super) fn replace_secret(dir: &Dir, name: &str, content: &[u8], owner: Option<&Owner>) -> io::Result<()> {
    let new = write_beside(dir, name, content, 0o400, owner)?;
    dir.rename(&new.name, name).inspect_err(|_| drop(dir.remove(&new.name)))
}

/// Makes the file and its name survive a crash.
pub(super) fn sync(dir: &Dir, name: &str) -> io::Result<()> {
    dir.open_file(name)?.sync_all()?;
    dir.sync()
}

/// A file that has not got its name yet.
#[derive(Debug)]
struct New {
    name: String,
    file: File,
}

/// Writes a new file in the same directory; nothing is left of it after an error.
fn write_beside(dir: &Dir, name: &str, content: &[u8], mode: u32, owner: Option<&Owner>) -> io::Result<New> {
    let new = format!("{name}.new");
    // A start that was killed may have left one, and others something else where they may.
    dir.remove(&new)?;
    let write = || {
        let mut file = dir.create(&new, mode)?;
        // After its mode: once it is given away, that would take CAP_FOWNER.
        if let Some(owner) = owner {
            owner.own(&file)?;
        }
        file.write_all(content)?;
        Ok(file)
    };
    let file = write().inspect_err(|_: &io::Error| drop(dir.remove(&new)))?;
    Ok(New { name: new, file })
}

/// Gives the old file a second name; `name` itself stays until the rename.
fn keep_previous(dir: &Dir, name: &str) -> io::Result<()> {
    let previous = format!("{name}.previous");
    dir.remove(&previous)?;
    match dir.link(name, &previous) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Some file systems have no hard links.
        Err(_) => {
            let bytes = dir.read(name)?;
            dir.create(&previous, 0o644)?.write_all(&bytes)
        }
    }
}
