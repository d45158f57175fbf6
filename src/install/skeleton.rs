//! The files of /etc/skel, which are copied into new home directories: shells read `~/.bashrc` and `~/.profile`.

use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use sys::trusted_path::{self, Dir};

const SKELETON: &str = "/etc/skel";
/// The maximum depth of the tree that is copied.
const MAX_DEPTH: u32 = 8;

/// Copies /etc/skel into a new directory of root's, and gives the copies to the owner. Links are left out.
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
