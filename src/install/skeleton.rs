//! The files of /etc/skel, which are copied into new home directories: shells read `~/.bashrc` and `~/.profile`.

use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use sys::trusted_path::{self, Dir};

const SKELETON: &str = "/etc/skel";
/// The maximum depth of the tree that is copied.
const MAX_DEPTH: u32 = 8;

/// Copies /etc/skel into a new, root-owned directory, and changes the owner of the copies to `owner`. Copies only
/// regular files and directories.
///
/// # Errors
/// A file cannot be read or written.
pub(super) fn copy(root: &Path, home: &Dir, owner: (u32, u32)) -> io::Result<()> {
    match trusted_path::open(root, Path::new(SKELETON)) {
        Ok(skeleton) => copy_directory(&skeleton, home, MAX_DEPTH)?,
        Err(error) if error.is_missing() => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    home.chown_contents(owner, 0, &mut Vec::new())
}

fn copy_directory(from: &Dir, to: &Dir, depth: u32) -> io::Result<()> {
    for name in from.names()? {
        let Some(name) = name.to_str() else { continue };
        let metadata = from.metadata_of(name)?;
        if metadata.is_file() {
            to.create(name, metadata.mode() & 0o777)?.write_all(&from.read(name)?)?;
        } else if metadata.is_dir() && depth > 0 {
            copy_directory(&from.child(name)?.0, &to.child(name)?.0, depth - 1)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::chown;

    use super::*;

    fn copy_into_new_home(root: &Path) -> io::Result<()> {
        let home = root.join("home");
        fs::create_dir(&home)?;
        copy(root, &Dir::open_unchecked(&home)?, (1001, 1001))
    }

    #[test]
    fn copies_limited_depth() {
        let root = tempfile::tempdir().unwrap();
        let path = |depth: u32| (1..=depth).map(|level| format!("{level}/")).collect::<String>();
        fs::create_dir_all(root.path().join("etc/skel").join(path(MAX_DEPTH + 1))).unwrap();
        fs::write(root.path().join("etc/skel").join(path(MAX_DEPTH)).join("file"), "text").unwrap();
        copy_into_new_home(root.path()).unwrap();
        let deepest = root.path().join("home").join(path(MAX_DEPTH));
        let names: Vec<_> = fs::read_dir(&deepest).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["file"]);
        assert_eq!(fs::metadata(deepest).unwrap().uid(), 1001);
    }

    #[test]
    fn missing_skeleton_is_no_error_but_untrusted_one_is() {
        let root = tempfile::tempdir().unwrap();
        copy_into_new_home(root.path()).unwrap();
        fs::remove_dir(root.path().join("home")).unwrap();
        fs::create_dir_all(root.path().join("etc/skel")).unwrap();
        chown(root.path().join("etc"), Some(1234), None).unwrap();
        assert!(copy_into_new_home(root.path()).is_err());
    }
}
