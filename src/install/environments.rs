//! Writes the users' login environments to the directory from which slurmd reads them.
//!
//! The directory is in slurmctld's state directory (`StateSaveLocation/env_cache`), whose owner could replace it by a link. So the files are
//! written as SlurmUser instead of root: through a link, they reach only paths that SlurmUser can write anyway.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::{InstallError, Owner};
use plan::accounts::LoginFiles;
use sys::under;

/// The name of the directory in StateSaveLocation (Slurm 24.11, `env.c`).
const DIRECTORY: &str = "env_cache";
/// The temporary name of a file that is being written. It cannot be a user name, because those in LoginFiles do not begin with a dot.
const NEW: &str = ".new";

/// Reads the system files that define login environments. A missing or unreadable file counts as empty.
pub fn read_login_files(root: &Path) -> LoginFiles {
    let read = |path: &str| {
        let bytes = fs::read(under(root, Path::new(path))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    LoginFiles {
        passwd: read("/etc/passwd"),
        login_defs: read("/etc/login.defs"),
        environment: format!("{}\n{}", read("/etc/environment"), read("/etc/default/locale")),
    }
}

/// Writes each user's environment below `state`, and removes the files of users that no longer exist. Switches this process to `owner` permanently:
/// call it last.
///
/// # Errors
/// This process cannot become `owner`, or a file cannot be written or removed.
pub fn install_environments(state: &Path, root: &Path, owner: &Owner, files: &LoginFiles) -> Result<(), InstallError> {
    owner.become_user()?;
    let directory = state.join(DIRECTORY);
    write_all(&under(root, &directory), &files.environments()).map_err(|error| InstallError::write(&directory, error))
}

fn write_all(directory: &Path, environments: &BTreeMap<&str, String>) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(|name| environments.contains_key(name)) {
            fs::remove_file(entry.path())?;
        }
    }
    let new = directory.join(NEW);
    for (name, text) in environments {
        let path = directory.join(name);
        if fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
            continue;
        }
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        // No sync: the next start rewrites files that a crash has lost or damaged.
        fs::rename(&new, &path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(directory: &Path) -> BTreeMap<String, String> {
        let entry = |entry: io::Result<fs::DirEntry>| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap())
        };
        fs::read_dir(directory).unwrap().map(entry).collect()
    }

    #[test]
    fn writes_file_for_each_user_and_removes_stale_ones() {
        let state = tempfile::tempdir().unwrap();
        let directory = state.path().join(DIRECTORY);
        for users in [vec![("alice", "A=1\n"), ("bob", "B=1\n")], vec![("alice", "A=2\n")], vec![]] {
            let wanted: BTreeMap<&str, String> = users.iter().map(|(name, text)| (*name, (*text).to_owned())).collect();
            write_all(&directory, &wanted).unwrap();
            let expected = users.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
            assert_eq!(written(&directory), expected);
        }
    }

    #[test]
    fn ignores_partial_file_of_interrupted_write() {
        let state = tempfile::tempdir().unwrap();
        let directory = state.path().join(DIRECTORY);
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(".new"), "half").unwrap();
        write_all(&directory, &BTreeMap::from([("alice", "A=1\n".to_owned())])).unwrap();
        assert_eq!(written(&directory), BTreeMap::from([("alice".to_owned(), "A=1\n".to_owned())]));
    }
}
