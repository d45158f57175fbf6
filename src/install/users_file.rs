//! Writes files to a directory of the user, such as the one with compose.yaml.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use super::{InstallError, atomic};
use sys::trusted_path;
use sys::trusted_path::Dir;

/// Replaces `path` with `text` unless the content is the same; returns whether the file was written. An existing file keeps its owner and mode. If
/// this process is root, as with sudo or in a container, a new file is given to its directory's owner, who is usually another user. If `path` is
/// a symbolic link to a file, that file is replaced, and the link is kept.
///
/// # Errors
/// The file cannot be read or written; it stays unchanged.
pub fn replace_users_file(path: &Path, text: &str) -> Result<bool, InstallError> {
    let target = match fs::canonicalize(path) {
        Ok(target) => target,
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(InstallError::Read { path: path.to_owned(), error }),
    };
    match trusted_path::read(&target) {
        Ok(old) if old == text.as_bytes() => return Ok(false),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(InstallError::Read { path: path.to_owned(), error });
        }
        _ => {}
    }
    let write = || {
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let name = target.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
        let directory = Dir::open_unchecked(parent)?;
        // A link without a target is replaced by a new file, which must not get the link's mode (0777).
        let old = directory.metadata_of(name).ok().filter(|old| !old.is_symlink());
        let (mode, owner) = match old {
            Some(old) => (old.permissions().mode() & 0o777, (old.uid(), old.gid())),
            None => {
                let directory = directory.metadata();
                // Only root can change a file's owner.
                let is_root = nix::unistd::geteuid().is_root();
                let own = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
                (0o644, if is_root { (directory.uid(), directory.gid()) } else { own })
            }
        };
        atomic::replace_as(&directory, name, text.as_bytes(), mode, owner)
    };
    write().map_err(|error| InstallError::write(path, error))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_content_and_keeps_link_and_mode() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("real"), directory.path().join("link"));
        fs::write(&file, "A=1\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        assert!(replace_users_file(&link, "A=2\n").unwrap());
        assert!(!replace_users_file(&link, "A=2\n").unwrap());
        assert_eq!(fs::read_to_string(&file).unwrap(), "A=2\n");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
        assert!(link.is_symlink());
        let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }

    #[test]
    fn new_file_belongs_to_owner_of_directory() {
        let directory = tempfile::tempdir().unwrap();
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(directory.path(), Some(1234), Some(1235)).unwrap();
        }
        std::os::unix::fs::symlink("missing", directory.path().join("link")).unwrap();
        for name in ["new", "link"] {
            let file = directory.path().join(name);
            assert!(replace_users_file(&file, "x").unwrap());
            let (new, old) = (fs::symlink_metadata(&file).unwrap(), fs::metadata(directory.path()).unwrap());
            assert_eq!((new.uid(), new.is_file()), (old.uid(), true), "{name}");
            assert_eq!(new.permissions().mode() & 0o777, 0o644, "{name}");
        }
    }
}
