//! Whether slurmctld can save its state. If it cannot, it keeps running and loses its changes when it exits.
//!
//! Checks the disk, and tries to write to it.

use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

use config::Paths;
use sys::trusted_path;
use sys::trusted_path::Dir;

/// Required free space in addition to a second copy of the state, in bytes: the state may have grown since the last
/// save.
const RESERVE: u64 = 256 << 10;
/// Name of the file of a test write.
const TEST_FILE: &str = "slurminit.trial";
/// The suffix of slurmctld's older copies, which the next save replaces.
const OLD_SUFFIX: &str = ".old";

/// Why slurmctld cannot save its state.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message states it")]
pub enum CannotSave {
    #[error(
        "slurmctld cannot save its jobs: disk full: {} has {free_kib} KiB free, but {needed_kib} KiB are needed; free some space",
        path.display()
    )]
    Full { path: PathBuf, free_kib: u64, needed_kib: u64 },
    #[error("slurmctld cannot save its jobs: no inodes left on the disk of {}; remove files there", path.display())]
    NoInodes { path: PathBuf },
    #[error("slurmctld cannot save its jobs: {}: {why}; make sure that there is space and that the directory is writable", path.display())]
    Io { path: PathBuf, why: io::Error },
}

/// slurmctld's state directory, according to the installed slurm.conf.
pub fn directory(paths: &Paths) -> PathBuf {
    let conf = std::fs::read_to_string(paths.slurm.join("slurm.conf")).unwrap_or_default();
    plan::state_directory(&conf, &paths.state.join("slurmctld"))
}

/// Checks that there is space to save. Writes nothing, so any user may call it.
///
/// # Errors
/// There is too little space, or no inode is left. If this cannot be determined, no error is returned.
pub fn check_free_space(state: &Path) -> Result<(), CannotSave> {
    let Ok(disk) = statvfs(state) else { return Ok(()) };
    let path = || state.to_owned();
    let free = disk.blocks_available().saturating_mul(disk.fragment_size());
    let needed = size(state) + RESERVE;
    if free < needed {
        return Err(CannotSave::Full { path: path(), free_kib: free >> 10, needed_kib: needed >> 10 });
    }
    // Some file systems do not count inodes.
    match disk.files() > 0 && disk.files_available() == 0 {
        true => Err(CannotSave::NoInodes { path: path() }),
        false => Ok(()),
    }
}

/// Like [`check_free_space`], and tries to write as much as a save would. Only root and slurmctld's user can do this.
///
/// # Errors
/// There is too little space, no inode is left, or the directory cannot be written.
pub fn try_to_save(state: &Path) -> Result<(), CannotSave> {
    check_free_space(state)?;
    let write = || -> io::Result<()> {
        let dir = trusted_path::open(Path::new("/"), state)?;
        dir.remove(TEST_FILE)?;
        let mut file = dir.create(TEST_FILE, 0o600)?;
        let written = io::copy(&mut io::Read::take(io::repeat(0), size(state) + RESERVE), &mut file);
        let written = written.and_then(|_| file.flush()).and_then(|()| file.sync_all());
        dir.remove(TEST_FILE).and(written)
    };
    write().map_err(|why| CannotSave::Io { path: state.to_owned(), why })
}

/// The size of a save, in bytes: all files in the directory except the older copies.
fn size(state: &Path) -> u64 {
    let Ok(dir) = Dir::open_unchecked(state) else { return 0 };
    let names = dir.names().unwrap_or_default().into_iter().filter_map(|name| name.into_string().ok());
    let files = names.filter(|name| !name.ends_with(OLD_SUFFIX)).filter_map(|name| dir.metadata_of(&name).ok());
    files.filter(std::fs::Metadata::is_file).map(|file| file.size()).sum()
}

#[cfg(test)]
mod tests {
    use nix::mount::MsFlags;

    use super::*;
    use crate::private_mount::tmpfs;

    #[test]
    fn writes_and_removes_trial_file() {
        let state = tempfile::tempdir().unwrap();
        std::fs::write(state.path().join("job_state"), [0; 99]).unwrap();
        std::fs::write(state.path().join("job_state.old"), [0; 999]).unwrap();
        assert_eq!(size(state.path()), 99);
        try_to_save(state.path()).unwrap();
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 2);
        check_free_space(&state.path().join("missing")).unwrap();
        assert!(matches!(try_to_save(&state.path().join("missing")), Err(CannotSave::Io { .. })));
    }

    #[test]
    fn second_copy_of_state_and_reserve_must_fit() {
        let state = tempfile::tempdir().unwrap();
        tmpfs(state.path(), MsFlags::empty(), "size=320k");
        check_free_space(state.path()).unwrap();
        try_to_save(state.path()).unwrap();
        std::fs::write(state.path().join("job_state"), [0; 36 << 10]).unwrap();
        let error = try_to_save(state.path()).unwrap_err();
        assert!(matches!(error, CannotSave::Full { free_kib: 284, needed_kib: 292, .. }), "{error}");
    }

    #[test]
    fn disk_without_free_inodes_is_full() {
        let state = tempfile::tempdir().unwrap();
        tmpfs(state.path(), MsFlags::empty(), "size=1m,nr_inodes=2");
        check_free_space(state.path()).unwrap();
        std::fs::write(state.path().join("job_state"), "").unwrap();
        assert!(matches!(check_free_space(state.path()), Err(CannotSave::NoInodes { .. })));
    }
}
