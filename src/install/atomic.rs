//! Replacing a file so that a reader, a full disk or a crash never meets half of one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::Owner;

/// Replaces `path` with `content`, mode 0644, unless that is its content. The old file is kept as `NAME.previous`. The
/// caller syncs the directory. Returns whether anything was written.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<bool> {
    match fs::read(path) {
        Ok(old) if old == content => {
            if fs::metadata(path)?.permissions().mode() & 0o7777 != 0o644 {
                fs::set_permissions(path, fs::Permissions::from_mode(0o644))?;
            }
            return Ok(false);
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let new = write_beside(path, content, 0o644, None)?;
    let outcome = keep_previous(path).and_then(|()| fs::rename(&new, path));
    outcome.inspect_err(|_| drop(fs::remove_file(&new)))?;
    Ok(true)
}

/// Replaces a secret, which gets its owner before its name and of which no copy is kept.
pub(super) fn replace_secret(path: &Path, content: &[u8], owner: Option<&Owner>) -> io::Result<()> {
    let new = write_beside(path, content, 0o400, owner)?;
    fs::rename(&new, path).inspect_err(|_| drop(fs::remove_file(&new)))?;
    sync_directory(path.parent().unwrap_or(Path::new("/")))
}

/// Makes a rename in `directory` survive a crash.
pub(super) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Writes and syncs a new file in the same directory; nothing is left of it after an error.
fn write_beside(path: &Path, content: &[u8], mode: u32, owner: Option<&Owner>) -> io::Result<PathBuf> {
    let new = sibling(path, ".new");
    // A start that was killed may have left one; create_new then also refuses a symbolic link.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        if let Some(owner) = owner {
            owner.own(&file)?;
        }
        // The umask may have taken bits away.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(content)?;
        file.sync_all()
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

fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}
