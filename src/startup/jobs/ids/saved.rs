//! The head of `job_state`, as Slurm 23.02 to 26.05 write it (`job_mgr.c`, dump_all_job_state; numbers are big-endian): the length of a
//! string (32 bits) and `PROTOCOL_VERSION\0`, the version (16 bits), the time (64 bits), the next ID (32 bits), and the time of the last
//! backfill cycle (64 bits). The jobs follow. `node_state` begins with the same string, version and time.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;

const MAGIC: &[u8] = b"\x00\x00\x00\x11PROTOCOL_VERSION\0";
const VERSION: usize = MAGIC.len();
const TIME: usize = VERSION + 2;
const NEXT_ID: usize = TIME + 8;
const END: usize = NEXT_ID + 4 + 8;
/// The protocol versions whose files begin like this: those of 23.02 to 26.05 (`slurm_protocol_common.h`). A file of another
/// version is left unchanged.
const VERSIONS: RangeInclusive<u8> = 39..=45;

/// The protocol version of 24.11, which every supported release can read.
const VERSION_OF_EMPTY: u8 = 42;
/// The end of the head in a state without jobs: the next ID is 1, and there was no backfill cycle.
const WITHOUT_JOBS: [u8; END - NEXT_ID] = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];

const NAME: &str = "job_state";
/// slurmctld reads this file if the newer one is missing, which happens for a moment at each save.
const OLDER: &str = "job_state.old";
/// The file as slurmctld wrote it, before its next ID was raised.
const COPY: &str = "job_state.slurminit.old";

/// The file that slurmctld will read, and the next job ID in it.
#[derive(Debug)]
pub(super) struct SavedState {
    pub(super) next: u32,
    bytes: Vec<u8>,
    /// The file that was read; `None` for a state without jobs that slurmctld has not written.
    file: Option<PathBuf>,
}

/// Reads `job_state`, or else `job_state.old`. If slurmctld died before it first saved its jobs, returns a state without jobs; `None` if
/// slurmctld has never saved anything.
pub(super) fn read(state: &Path) -> anyhow::Result<Option<SavedState>> {
    // An older file may replace a missing file, but never an unreadable one.
    let read = |name: &str| match fs::read(state.join(name)) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some).with_context(|| format!("cannot read {name}")),
    };
    for name in [NAME, OLDER] {
        if let Some(bytes) = read(name)? {
            return Ok(Some(SavedState { next: next_id(&bytes, name)?, bytes, file: Some(state.join(name)) }));
        }
    }
    let Some(nodes) = read("node_state")? else { return Ok(None) };
    Ok(Some(SavedState { bytes: state_without_jobs(&nodes)?, ..empty() }))
}

/// A state without jobs, for a directory to which slurmctld has saved nothing.
pub(super) fn empty() -> SavedState {
    let mut bytes = [MAGIC, &[VERSION_OF_EMPTY, 0], &now().as_secs().to_be_bytes()].concat();
    bytes.extend(WITHOUT_JOBS);
    SavedState { next: 1, bytes, file: None }
}

fn next_id(bytes: &[u8], name: &str) -> anyhow::Result<u32> {
    check_header(bytes, name)?;
    let id = bytes.get(NEXT_ID..NEXT_ID + 4).filter(|_| bytes.len() >= END).and_then(|id| id.try_into().ok());
    id.map(u32::from_be_bytes).with_context(|| format!("{name} is truncated"))
}

/// Fails unless the file has a known format.
fn check_header(bytes: &[u8], name: &str) -> anyhow::Result<()> {
    anyhow::ensure!(bytes.starts_with(MAGIC), "{name} is not a Slurm state file; left unchanged");
    match bytes.get(VERSION..TIME) {
        Some([version, 0]) if VERSIONS.contains(version) => Ok(()),
        Some([major, minor]) => {
            anyhow::bail!("{name} has the unknown protocol version {major}.{minor}; left unchanged")
        }
        _ => anyhow::bail!("{name} is truncated"),
    }
}

fn state_without_jobs(nodes: &[u8]) -> anyhow::Result<Vec<u8>> {
    check_header(nodes, "node_state")?;
    let mut bytes = nodes.get(..NEXT_ID).context("node_state is truncated")?.to_vec();
    bytes.extend(WITHOUT_JOBS);
    Ok(bytes)
}

#[expect(clippy::disallowed_methods, reason = "slurmctld saves the time of the wall clock")]
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

impl SavedState {
    /// Whether slurmctld wrote the file within this time. Slurm's time is in whole seconds.
    pub(super) fn was_written_within(&self, age: Duration) -> bool {
        let bytes = self.bytes.get(TIME..NEXT_ID).and_then(|time| time.try_into().ok());
        let written = Duration::from_secs(bytes.map_or(0, u64::from_be_bytes));
        self.file.is_some() && now().as_secs() <= (written + age).as_secs() + 1
    }

    /// Replaces the file with one that has another next ID, and keeps a copy. If there is no space or quota for that, overwrites only the ID in
    /// the file.
    pub(super) fn write(mut self, state: &Path, next: u32) -> anyhow::Result<()> {
        self.bytes.splice(NEXT_ID..NEXT_ID + 4, next.to_be_bytes());
        match self.replace(state) {
            Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                let file = self
                    .file
                    .as_ref()
                    .context("the disk is full or its quota is used up, and no job was ever saved")?;
                let file = File::options().write(true).open(file).with_context(|| file.display().to_string())?;
                file.write_all_at(&next.to_be_bytes(), NEXT_ID as u64)?;
                Ok(file.sync_all()?)
            }
            replaced => replaced.with_context(|| format!("{} cannot be replaced", state.join(NAME).display())),
        }
    }

    fn replace(&self, state: &Path) -> std::io::Result<()> {
        let new = state.join("job_state.slurminit");
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(&self.bytes)?;
            file.sync_all()
        };
        write().inspect_err(|_| drop(fs::remove_file(&new)))?;
        if let Some(file) = &self.file {
            let _ = fs::remove_file(state.join(COPY));
            // Some file systems do not support hard links.
            fs::hard_link(file, state.join(COPY)).or_else(|_| fs::copy(file, state.join(COPY)).map(drop))?;
        }
        fs::rename(&new, state.join(NAME))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Start of a state file written by Slurm 24.11.5.
    const HEAD: &[u8] = b"\0\0\0\x11PROTOCOL_VERSION\0\x2a\x00\0\0\0\0\x6b\x02\x0a\x11\0\0\0\x05\0\0\0\0\0\0\0\0";

    fn saved(state: &Path) -> SavedState {
        read(state).unwrap().unwrap()
    }

    #[test]
    fn raises_next_job_id_and_keeps_copy() {
        let state = tempfile::tempdir().unwrap();
        let original = [HEAD, b"jobs"].concat();
        for _ in 0..2 {
            fs::write(state.path().join(NAME), &original).unwrap();
            assert_eq!(saved(state.path()).next, 5);
            saved(state.path()).write(state.path(), 0x0102_0304).unwrap();
            let bytes = fs::read(state.path().join(NAME)).unwrap();
            assert_eq!(next_id(&bytes, NAME).unwrap(), 0x0102_0304);
            let is_same = |at: usize| bytes[at] == original[at] || (31..35).contains(&at);
            assert!(bytes.len() == original.len() && (0..bytes.len()).all(is_same));
            assert_eq!(fs::read(state.path().join(COPY)).unwrap(), original);
        }
    }

    #[test]
    fn starts_from_node_state_without_saved_jobs() {
        let state = tempfile::tempdir().unwrap();
        assert!(read(state.path()).unwrap().is_none(), "slurmctld has saved no state");
        empty().write(state.path(), 7).unwrap();
        assert_eq!((saved(state.path()).next, fs::read(state.path().join(NAME)).unwrap().len()), (7, HEAD.len()));
        fs::remove_file(state.path().join(NAME)).unwrap();
        fs::write(state.path().join("node_state"), [&HEAD[..31], b"nodes"].concat()).unwrap();
        saved(state.path()).write(state.path(), 9).unwrap();
        assert_eq!(saved(state.path()).next, 9);
        assert_eq!(fs::read(state.path().join(NAME)).unwrap().len(), HEAD.len());
    }

    #[test]
    fn older_file_replaces_only_missing_file() {
        let state = tempfile::tempdir().unwrap();
        fs::write(state.path().join(OLDER), HEAD).unwrap();
        assert_eq!(saved(state.path()).file, Some(state.path().join(OLDER)));
        // A directory cannot be read, not even by root.
        fs::create_dir(state.path().join(NAME)).unwrap();
        assert!(read(state.path()).unwrap_err().to_string().contains("cannot read job_state"));
    }

    #[test]
    fn refuses_unknown_format_and_version() {
        let version = |major, minor| [MAGIC, &[major, minor], &HEAD[TIME..]].concat();
        for version in [version(39, 0), version(45, 0)] {
            assert_eq!(next_id(&version, NAME).unwrap(), 5);
        }
        let others = [b"".to_vec(), MAGIC.to_vec(), HEAD[..40].to_vec(), vec![b'x'; 99]];
        for bytes in others.into_iter().chain([version(38, 0), version(46, 0), version(42, 1)]) {
            next_id(&bytes, NAME).unwrap_err();
        }
    }

    #[test]
    fn detects_recent_save_by_slurmctld() {
        let state = tempfile::tempdir().unwrap();
        let now = now().as_secs();
        let at = |time: u64| {
            let bytes = [&HEAD[..TIME], &time.to_be_bytes(), &HEAD[NEXT_ID..]].concat();
            fs::write(state.path().join(NAME), bytes).unwrap();
            saved(state.path()).was_written_within(Duration::from_secs(100))
        };
        assert!(at(now) && at(now - 50) && !at(now - 200));
    }

    #[test]
    fn on_full_disk_only_next_id_is_overwritten() {
        let state = tempfile::tempdir().unwrap();
        let (file, new) = (state.path().join(NAME), state.path().join("job_state.slurminit"));
        // The disk has space for one copy.
        crate::private_mount::tmpfs(state.path(), nix::mount::MsFlags::empty(), "size=64k");
        let original = [HEAD, &[b'x'; 40 << 10]].concat();
        fs::write(&file, &original).unwrap();
        saved(state.path()).write(state.path(), 0x0102_0304).unwrap();
        let expected = [&original[..NEXT_ID], &[1, 2, 3, 4], &original[NEXT_ID + 4..]].concat();
        assert!(fs::read(&file).unwrap() == expected, "the next ID is the only change");
        assert!(!new.exists() && !state.path().join(COPY).exists());
        // A state without jobs has no file to overwrite.
        let error = SavedState { file: None, ..saved(state.path()) }.write(state.path(), 9).unwrap_err().to_string();
        assert!(error.contains("no job was ever saved"), "{error}");

        // Another error leaves the file unchanged.
        fs::create_dir(&new).unwrap();
        assert!(saved(state.path()).write(state.path(), 7).is_err());
        assert_eq!(saved(state.path()).next, 0x0102_0304);
    }
}
