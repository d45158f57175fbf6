//! Allows only one container per state directory. Two would overwrite each other's saved jobs, and use job IDs twice.
//!
//! The lock is flock(2) on a file that only root can open, so no user in the container can take it. The kernel releases the lock when the last
//! process that has the file open has ended, for whatever reason: no lock is ever stale. On NFS, the server manages the lock. A server that
//! does not answer must not block PID 1, so a thread takes the lock and is abandoned at a deadline.

use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

use crate::trusted_path;
use crate::trusted_path::{Dir, RepairedPath};
use model::printable;

/// The file's name in the state directory.
pub const FILE: &str = "slurminit.lock";
/// The timeout for taking the locks. Only a network file system needs more than microseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of bytes to read from the lock file. A host name has at most 64.
const MAX_LENGTH: u64 = 256;
const MODE: u32 = 0o600;

/// The locks of the state directories, held as long as this value exists.
#[derive(Debug, Default)]
pub struct StateLock {
    files: Vec<Flock<File>>,
    /// A warning for each directory that could not be locked.
    pub warnings: Vec<String>,
    /// Repairs made to the parents of the directories.
    pub repaired: Vec<RepairedPath>,
}

/// Why the container must not start.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message describes the variant")]
pub enum StateInUse {
    #[error(
        "state directory in use by another container: {}, host name {holder}; stop that container, run your command in it with docker exec, or use another volume",
        path.display()
    )]
    Locked { path: PathBuf, holder: String },
    #[error(
        "state directories not locked within {} s: {directories}; check the file server (NFSv3 also needs lockd)",
        LOCK_TIMEOUT.as_secs()
    )]
    Timeout { directories: String },
}

impl StateLock {
    /// Locks `state`, which is created if missing, and `others`, which may belong to other users and are skipped if missing.
    pub fn take(state: PathBuf, others: Vec<PathBuf>) -> Result<Self, StateInUse> {
        let directories = std::iter::once(&state).chain(&others).map(|path| path.display().to_string());
        let directories = directories.collect::<Vec<_>>().join(", ");
        let (sender, receiver) = channel();
        std::thread::spawn(move || sender.send(lock_all(&state, &others)));
        receiver.recv_timeout(LOCK_TIMEOUT).unwrap_or(Err(StateInUse::Timeout { directories }))
    }

    /// The locked files. A lock lasts across an exec if its file stays open.
    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.files.iter().map(|file| &**file)
    }
}

fn lock_all(state: &Path, others: &[PathBuf]) -> Result<StateLock, StateInUse> {
    let mut lock = StateLock::default();
    let mut repaired = Vec::new();
    // The owner of the directory itself is not changed here: the preparation changes it, after checking the previous owner.
    let dir = trusted_path::make(Path::new("/"), state, &mut repaired).map(|(dir, _)| dir);
    lock.repaired = repaired;
    lock.add(state, dir.map_err(io::Error::from))?;
    for path in others {
        match trusted_path::open(Path::new("/"), path) {
            Err(untrusted) if untrusted.is_missing() => {}
            dir => lock.add(path, dir.map_err(io::Error::from))?,
        }
    }
    Ok(lock)
}

impl StateLock {
    fn add(&mut self, path: &Path, dir: io::Result<Dir>) -> Result<(), StateInUse> {
        let locked = dir.and_then(|dir| open(&dir)).map(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock));
        let error = match locked {
            Ok(Ok(file)) => {
                self.files.push(write_host(file));
                return Ok(());
            }
            Ok(Err((file, nix::Error::EWOULDBLOCK))) => {
                return Err(StateInUse::Locked { path: path.to_owned(), holder: read_host(&file) });
            }
            Ok(Err((_, errno))) => errno.into(),
            Err(error) => error,
        };
        self.warnings.push(format!(
            "cannot lock the state directory {}: {error}; never start a second container with this directory",
            path.display()
        ));
        Ok(())
    }
}

/// Opens the lock file. It must belong to root: any process that can open it can hold the lock. An existing regular file is never
/// replaced, because another process may hold its lock, and a lock on a removed file excludes no process.
fn open(dir: &Dir) -> io::Result<File> {
    if dir.metadata_of(FILE).is_ok_and(|found| !found.is_file()) {
        dir.remove(FILE)?;
    }
    let file = dir.open_or_create(FILE, MODE)?;
    let metadata = file.metadata()?;
    if !trusted_path::is_ours(metadata.uid()) {
        fchown(&file, Some(0), Some(0))?;
    }
    if metadata.permissions().mode() & 0o7777 != MODE {
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    Ok(file)
}

/// Writes the host name into the file, for the error message of a second container. On a full disk the file stays empty.
fn write_host(mut file: Flock<File>) -> Flock<File> {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let _ = file.set_len(0).and_then(|()| write!(file, "{}", host.to_string_lossy()));
    file
}

fn read_host(file: &File) -> String {
    let mut bytes = Vec::new();
    let _ = file.take(MAX_LENGTH).read_to_end(&mut bytes);
    match printable::line(String::from_utf8_lossy(&bytes).trim()) {
        name if name.is_empty() => "unknown".to_owned(),
        name => name.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    fn take(state: &Path, others: &[&Path]) -> Result<StateLock, StateInUse> {
        StateLock::take(state.to_owned(), others.iter().map(|path| (*path).to_owned()).collect())
    }

    #[test]
    fn refuses_second_holder_of_either_directory_and_names_first() {
        let root = tempfile::tempdir().unwrap();
        let [state, own, missing, third] = ["state", "own", "missing", "third"].map(|name| root.path().join(name));
        fs::create_dir(&own).unwrap();
        let first = take(&state, &[&own, &missing]).unwrap();
        assert_eq!((first.files().count(), first.warnings.len()), (2, 0));
        let host = nix::unistd::gethostname().unwrap().to_string_lossy().into_owned();
        for refused in [take(&state, &[]).unwrap_err(), take(&third, &[&own]).unwrap_err()] {
            assert!(matches!(refused, StateInUse::Locked { holder, .. } if holder == host));
        }
        drop(first);
        assert_eq!(take(&state, &[&own]).unwrap().files().count(), 2);
    }

    #[test]
    fn replaces_link_and_restricts_mode_of_lock_file() {
        let root = tempfile::tempdir().unwrap();
        let (state, victim) = (root.path().join("state"), root.path().join("victim"));
        fs::create_dir(&state).unwrap();
        fs::write(&victim, "safe").unwrap();
        symlink(&victim, state.join(FILE)).unwrap();
        let lock = take(&state, &[]).unwrap();
        assert!(take(&state, &[]).is_err());
        assert_eq!(fs::read_to_string(victim).unwrap(), "safe");
        drop(lock);
        fs::set_permissions(state.join(FILE), Permissions::from_mode(0o666)).unwrap();
        let _lock = take(&state, &[]).unwrap();
        assert_eq!(fs::metadata(state.join(FILE)).unwrap().permissions().mode() & 0o7777, 0o600);
    }

    #[test]
    fn names_holder_by_the_printable_content_of_the_lock_file() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(FILE);
        for (content, expected) in [("", "unknown"), (" \n", "unknown"), ("node1\n", "node1"), ("a\x1bb", "a\\x1bb")] {
            fs::write(&file, content).unwrap();
            let held = Flock::lock(File::open(&file).unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
            let refused = take(root.path(), &[]).unwrap_err();
            assert!(matches!(&refused, StateInUse::Locked { holder, .. } if holder == expected), "{refused:?}");
            drop(held);
        }
        let host = nix::unistd::gethostname().unwrap().to_string_lossy().into_owned();
        fs::write(&file, "x".repeat(1000)).unwrap();
        let _lock = take(root.path(), &[]).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), host);
    }

    #[test]
    fn lock_file_of_another_user_becomes_roots_and_directory_of_one_is_not_locked() {
        let root = tempfile::tempdir().unwrap();
        let [state, other] = ["state", "other/state"].map(|name| root.path().join(name));
        [&state, &other].iter().for_each(|path| fs::create_dir_all(path).unwrap());
        fs::write(state.join(FILE), "").unwrap();
        chown(state.join(FILE), Some(1234), Some(1234)).unwrap();
        chown(other.parent().unwrap(), Some(1234), None).unwrap();
        let lock = take(&state, &[&other]).unwrap();
        let owner = fs::metadata(state.join(FILE)).unwrap();
        assert_eq!((owner.uid(), owner.gid(), lock.files().count()), (0, 0, 1));
        let [warning] = lock.warnings.as_slice() else { panic!("{:?}", lock.warnings) };
        assert!(warning.contains(other.to_str().unwrap()) && warning.contains("1234"), "{warning}");
    }
}
