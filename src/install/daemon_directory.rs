//! A directory that the operator sets for a daemon in slurm.conf: StateSaveLocation or SlurmdSpoolDir.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::directories::{finding, make_owned};
use super::{InstallError, Owner};
use config::{Config, DaemonName};
use model::inventory::Finding;
use sys::lock;
use sys::trusted_path;
use sys::trusted_path::Dir;
use sys::under;

/// Files that identify a directory with slurmctld's state, regardless of its owner.
const STATE_FILES: [&str; 3] = ["clustername", "job_state", "node_state"];
/// A directory in the root of a new ext4 file system.
const LOST_AND_FOUND: &str = "lost+found";

/// Makes sure that `daemon`'s user can write to the directory. A missing directory is created, unless the user can create it. An empty directory, or
/// one with slurmctld's state, is given to the user. A directory with other files stays unchanged, which is an error. Returns findings about repairs.
///
/// # Errors
/// The user does not exist, or cannot write there and the directory cannot be given to this user.
pub fn make_daemon_directory(
    config: &Config,
    root: &Path,
    path: &Path,
    daemon: DaemonName,
) -> Result<Vec<Finding>, InstallError> {
    if is_usable_by(daemon, config, root, path)? {
        return Ok(Vec::new());
    }
    let owner = Owner::of(daemon, config, path)?;
    let mut repaired = Vec::new();
    let (dir, is_new) = trusted_path::make(root, path, &mut repaired)?;
    let is_free = is_new || may_change_owner(&dir).map_err(|error| InstallError::directory(path, error))?;
    if !is_free && !owner.owns(dir.metadata()) {
        return Err(InstallError::Occupied { path: path.to_owned(), uid: dir.metadata().uid() });
    }
    make_owned((dir, is_new), &owner, 0o700, &mut repaired)?;
    Ok(repaired.iter().map(finding).collect())
}

/// Whether `daemon`'s user can write to the directory, or create it.
///
/// # Errors
/// The user does not exist.
pub fn is_usable_by(daemon: DaemonName, config: &Config, root: &Path, path: &Path) -> Result<bool, InstallError> {
    Ok(is_usable(&Owner::of(daemon, config, path)?, &under(root, path)))
}

/// Whether the user owns the directory, or could create it in a parent that the user owns: daemons create only the last part of a path. Root can
/// write to every directory.
fn is_usable(owner: &Owner, path: &Path) -> bool {
    let is_root = owner.ids().is_some_and(|(user, _)| user == 0);
    let is_writable =
        |path: &Path| std::fs::metadata(path).is_ok_and(|found| found.is_dir() && (is_root || owner.owns(&found)));
    let is_missing = std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    is_writable(path) || is_missing && path.parent().is_some_and(is_writable)
}

/// Whether the directory contains slurmctld's state, or nothing but lost+found and the lock that this start has taken.
fn may_change_owner(dir: &Dir) -> io::Result<bool> {
    let names = dir.names()?;
    let has_state = || STATE_FILES.iter().any(|name| names.iter().any(|found| found == name));
    Ok(names.iter().all(|name| name == LOST_AND_FOUND || name == lock::state::FILE) || has_state())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn create(before: &[&str]) -> (Result<Vec<Finding>, InstallError>, bool) {
        let root = tempfile::tempdir().unwrap();
        for directory in before {
            fs::create_dir_all(root.path().join(directory)).unwrap();
        }
        // Without root privileges no owner changes, so every directory belongs to the user.
        let result =
            make_daemon_directory(&Config::default(), root.path(), Path::new("/srv/a/state"), DaemonName::Slurmd);
        (result, root.path().join("srv/a/state").is_dir())
    }

    #[test]
    fn creates_a_missing_directory_with_its_parents() {
        // The daemon itself creates the last part of a path.
        for (before, is_made) in
            [(&[][..], true), (&["srv"], true), (&["srv/a"], false), (&["srv/a/state/other"], true)]
        {
            let (result, exists) = create(before);
            assert!(result.unwrap().is_empty(), "{before:?}");
            assert_eq!(exists, is_made, "{before:?}");
        }
    }

    #[test]
    fn only_empty_or_state_directory_may_change_owner() {
        for (content, expected) in [
            (&[][..], true),
            (&[LOST_AND_FOUND, lock::state::FILE], true),
            (&["clustername", "x"], true),
            (&["x"], false),
        ] {
            let root = tempfile::tempdir().unwrap();
            content.iter().for_each(|name| fs::write(root.path().join(name), "").unwrap());
            let dir = Dir::open_unchecked(root.path()).unwrap();
            assert_eq!(may_change_owner(&dir).unwrap(), expected, "{content:?}");
        }
    }
}
