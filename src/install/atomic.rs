//! Replaces files atomically: no reader sees half a file, and a full disk or a crash does not lose the old one.
//!
//! A sync takes 4 ms or more. A new container has no old file to lose: if a power cut damages a new file, the file differs from what the next start
//! renders, and is rewritten. So [`replace`] syncs only if there is an old file.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

use super::Owner;
use sys::trusted_path;
use sys::trusted_path::{Dir, is_ours};

/// Replaces `name` in `dir` with `content` and `mode`. If root owns a file with this content, only its mode is set. The old file is kept as
/// `NAME.previous`. Returns whether the file was written.
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
    let install = |new: &NewFile| {
        if old.is_some() {
            new.file.sync_all()?;
            keep_previous(dir, name)?;
        }
        dir.rename(&new.name, name)
    };
    let written = write_beside(dir, name, content, mode, None)
        .and_then(|new| install(&new).inspect_err(|_| drop(dir.remove(&new.name))));
    match written {
        // A file that is a mount point or on a read-only mount belongs to the operator, so its owner is not checked.
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

/// The file that is to be replaced.
struct ExistingFile {
    /// The open file and its content; `None` if it cannot be read, is not a regular file, or is a link that root does not own.
    readable: Option<(File, Vec<u8>)>,
}

fn old(dir: &Dir, name: &str) -> io::Result<Option<ExistingFile>> {
    let found = match dir.metadata_of(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found?,
    };
    if found.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let is_operators_link = found.is_symlink() && is_ours(found.uid());
    let file = if is_operators_link { dir.open_linked(name) } else { dir.open_file(name) };
    let readable =
        file.and_then(|file| Ok((trusted_path::read_whole(&file)?, file))).map(|(bytes, file)| (file, bytes));
    Ok(Some(ExistingFile { readable: readable.ok() }))
}

/// Replaces `name` with `content`, `mode` and `owner` (user and group), without keeping a copy.
pub(super) fn replace_as(dir: &Dir, name: &str, content: &[u8], mode: u32, owner: (u32, u32)) -> io::Result<()> {
    stage_as(dir, name, content, mode, owner)?.commit()
}

/// The new version of a file, already on disk beside the old one. Dropping it without [`Staged::commit`] removes it.
#[derive(Debug)]
pub(super) struct Staged<'a> {
    dir: &'a Dir,
    name: &'a str,
    new: NewFile,
}

/// Prepares to replace `name` without keeping a copy. The new file has the owner and the mode of the old one.
pub(super) fn stage<'a>(dir: &'a Dir, name: &'a str, content: &[u8]) -> io::Result<Staged<'a>> {
    let old = dir.metadata_of(name)?;
    stage_as(dir, name, content, old.permissions().mode() & 0o7777, (old.uid(), old.gid()))
}

fn stage_as<'a>(dir: &'a Dir, name: &'a str, content: &[u8], mode: u32, owner: (u32, u32)) -> io::Result<Staged<'a>> {
    let staged = Staged { dir, name, new: write_beside(dir, name, content, mode, Some(owner))? };
    staged.new.file.sync_all()?;
    Ok(staged)
}

impl Staged<'_> {
    /// Replaces the old file.
    pub(super) fn commit(self) -> io::Result<()> {
        self.dir.rename(&self.new.name, self.name)?;
        self.dir.sync()
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        // After a commit there is nothing to remove.
        let _ = self.dir.remove(&self.new.name);
    }
}

/// Replaces a secret without keeping a copy. The owner is set before the file gets its name. Not synced: see [`sync`].
pub(super) fn replace_secret(
    dir: &Dir,
    name: &str,
    content: &[u8],
    mode: u32,
    owner: Option<&Owner>,
) -> io::Result<()> {
    let new = write_beside(dir, name, content, mode, owner.and_then(Owner::ids))?;
    dir.rename(&new.name, name).inspect_err(|_| drop(dir.remove(&new.name)))
}

/// Makes the file and its name survive a crash.
pub(super) fn sync(dir: &Dir, name: &str) -> io::Result<()> {
    dir.open_file(name)?.sync_all()?;
    dir.sync()
}

/// A file that still has its temporary name.
#[derive(Debug)]
struct NewFile {
    name: String,
    file: File,
}

/// Writes a new file in the same directory; removes it on error.
fn write_beside(dir: &Dir, name: &str, content: &[u8], mode: u32, owner: Option<(u32, u32)>) -> io::Result<NewFile> {
    let new = format!("{name}.new");
    // A start that was killed, or another user, may have left a file of this name.
    dir.remove(&new)?;
    let write = || {
        let mut file = dir.create(&new, mode)?;
        // The mode comes first: changing it after the owner would need CAP_FOWNER.
        let found = file.metadata()?;
        if let Some((user, group)) = owner.filter(|ids| *ids != (found.uid(), found.gid())) {
            fchown(&file, Some(user), Some(group))?;
        }
        file.write_all(content)?;
        Ok(file)
    };
    let file = write().inspect_err(|_: &io::Error| drop(dir.remove(&new)))?;
    Ok(NewFile { name: new, file })
}

/// Adds the name NAME.previous for the old file; the name `name` remains until the rename.
fn keep_previous(dir: &Dir, name: &str) -> io::Result<()> {
    let previous = format!("{name}.previous");
    dir.remove(&previous)?;
    match dir.link(name, &previous) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Without hard links, the file is copied.
        Err(_) => {
            let bytes = dir.read(name)?;
            dir.create(&previous, 0o644)?.write_all(&bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::chown;
    use std::path::Path;

    use nix::mount::{MsFlags, mount};

    use super::*;
    use crate::private_mount;

    const NAME: &str = "gres.conf";

    fn open(directory: &Path) -> Dir {
        Dir::open_unchecked(directory).unwrap()
    }

    #[test]
    fn file_of_another_user_with_same_content_is_used_only_if_it_is_mounted() {
        let directory = tempfile::tempdir().unwrap();
        let (file, new) = (directory.path().join(NAME), directory.path().join(format!("{NAME}.new")));
        fs::write(&file, "text").unwrap();
        chown(&file, Some(1234), None).unwrap();
        // This name cannot be used for the new file.
        fs::create_dir(&new).unwrap();
        assert!(replace(&open(directory.path()), NAME, b"text", 0o644).is_err());
        fs::remove_dir(&new).unwrap();

        private_mount::unshare_mounts();
        mount(Some(&file), &file, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        assert!(!replace(&open(directory.path()), NAME, b"text", 0o644).unwrap());
        let error = replace(&open(directory.path()), NAME, b"other", 0o644).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), new.exists()), ("text", false));
    }

    #[test]
    fn file_without_link_is_copied_and_missing_file_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let dir = open(directory.path());
        keep_previous(&dir, NAME).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        // A directory cannot have a hard link, and its content cannot be read.
        fs::create_dir(directory.path().join(NAME)).unwrap();
        assert!(keep_previous(&dir, NAME).is_err());
    }
}
