//! Allows only one slurminit per run directory. A second one (`docker exec CONTAINER slurminit run`) would replace the sockets and files of
//! the first.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::parent_id;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

use crate::trusted_path;
use crate::trusted_path::RepairedPath;

pub mod state;

const FILE: &str = "lock";
/// The maximum length of the PID in bytes.
const MAX_LENGTH: u64 = 20;

/// The lock of a run directory, held as long as this value exists. The kernel releases it when the process dies.
#[derive(Debug, Default)]
pub struct Lock {
    file: Option<Flock<File>>,
    /// Repairs made to the run directory and its parents.
    pub repaired: Vec<RepairedPath>,
}

/// Another slurminit holds the lock.
#[derive(Debug, thiserror::Error)]
#[error(
    "slurminit already runs this cluster (pid {pid}); run your command without slurminit, or see `slurminit status`"
)]
pub struct AlreadyRunning {
    pid: String,
}

impl Lock {
    /// Takes the lock. If the lock file cannot be opened or locked, the result holds no lock. If the run directory is not usable, the
    /// preparation reports why the cluster cannot start.
    pub fn take(run: &Path) -> Result<Self, AlreadyRunning> {
        let mut repaired = Vec::new();
        let mut open = || {
            let (mut run, _) = trusted_path::make(Path::new("/"), run, &mut repaired)?;
            run.restrict_to_root(&mut repaired)?;
            if run.metadata_of(FILE).is_ok_and(|found| !found.is_file() || !trusted_path::is_ours(found.uid())) {
                run.remove(FILE)?;
            }
            run.open_or_create(FILE, 0o600)
        };
        let file: std::io::Result<File> = open();
        let file = match file.map(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock)) {
            Ok(Ok(file)) => write_pid(file),
            Ok(Err((file, nix::Error::EWOULDBLOCK))) => return Err(AlreadyRunning { pid: read_pid(&file) }),
            Ok(Err(_)) | Err(_) => None,
        };
        Ok(Self { file, repaired })
    }

    /// The lock's file. The lock survives an exec that leaves the file open.
    pub fn file(&self) -> Option<&File> {
        self.file.as_deref()
    }
}

/// Writes the holder's PID into the file.
fn write_pid(mut file: Flock<File>) -> Option<Flock<File>> {
    let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
    Some(file)
}

fn read_pid(file: &File) -> String {
    let mut text = String::new();
    let _ = file.take(MAX_LENGTH).read_to_string(&mut text);
    // The holder writes its PID after it has taken the lock, and cannot write it to a full disk.
    if text.trim().is_empty() { "unknown".to_owned() } else { text.trim().to_owned() }
}

/// The PID of a slurminit that uses this run directory and did not start this process.
pub fn holder_other_than_parent(root: &Path, run: &Path) -> Option<String> {
    let file = trusted_path::open(root, run).ok()?.open_file(FILE).ok()?;
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Err((file, nix::Error::EWOULDBLOCK)) => Some(read_pid(&file)).filter(|pid| *pid != parent_id().to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn holds_one_lock_per_run_directory_until_holder_ends() {
        let root = tempfile::tempdir().unwrap();
        let run = root.path().join("run");
        let first = Lock::take(&run).unwrap();
        let own = std::process::id().to_string();
        assert_eq!(Lock::take(&run).unwrap_err().pid, own);
        // The lock holder is reported unless it is the parent of this process.
        assert_eq!(holder_other_than_parent(root.path(), Path::new("/run")), Some(own));
        fs::write(run.join(FILE), parent_id().to_string()).unwrap();
        assert_eq!(holder_other_than_parent(root.path(), Path::new("/run")), None, "the parent is the holder");
        fs::write(run.join(FILE), "").unwrap();
        assert_eq!(Lock::take(&run).unwrap_err().pid, "unknown");
        drop(first);
        assert_eq!(holder_other_than_parent(root.path(), Path::new("/run")), None);
        Lock::take(&run).unwrap();
    }

    #[test]
    fn does_not_write_through_link_in_place_of_lock_file() {
        let root = tempfile::tempdir().unwrap();
        let (run, victim) = (root.path().join("run"), root.path().join("victim"));
        fs::create_dir(&run).unwrap();
        fs::write(&victim, "safe").unwrap();
        std::os::unix::fs::symlink(&victim, run.join(FILE)).unwrap();
        let _lock = Lock::take(&run).unwrap();
        assert!(Lock::take(&run).is_err());
        assert_eq!(fs::read_to_string(victim).unwrap(), "safe");
    }
}
