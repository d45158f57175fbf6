//! The status file that PID 1 publishes, replaced atomically at every change, or overwritten if the disk is full.
//!
//! Reading it costs PID 1 nothing, and no reader can disturb PID 1. The file is in the run directory, which should be on a tmpfs.

use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::logs::warn;
use machine::{STATUS_FILE, Snapshot, Status};
use model::message;
use model::process_id::ProcessId;
use sys::trusted_path;
use sys::trusted_path::Dir;
use sys::{monotonic_ms, proc};

/// The file's temporary name while it is written.
const NEW: &str = "status.json.new";

/// The unit of disk space that a file occupies, in bytes.
const PAGE: usize = 4096;

/// Writes the status file when the snapshot has changed.
#[derive(Debug)]
pub(super) struct Publisher {
    directory: Option<PathBuf>,
    started_ms: u64,
    process: ProcessId,
    last: Option<Snapshot>,
    is_error_reported: bool,
}

impl Publisher {
    /// `is_enabled` is false for a plain init, which may run as any user and publishes nothing.
    pub(super) fn new(directory: &Path, is_enabled: bool) -> Self {
        let directory = is_enabled.then(|| directory.to_owned());
        if let Some(directory) = &directory {
            // If the directory cannot be created, the first write reports the error.
            let _ = trusted_path::make(Path::new("/"), directory, &mut Vec::new());
        }
        let process = proc::own_id();
        Self { directory, started_ms: monotonic_ms(), process, last: None, is_error_reported: false }
    }

    pub(super) fn publish(&mut self, snapshot: Snapshot) {
        let Some(directory) = &self.directory else { return };
        if self.last.as_ref() == Some(&snapshot) {
            return;
        }
        let status = Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process: self.process,
            started_ms: self.started_ms,
            snapshot: snapshot.clone(),
        };
        if let Err(error) = replace(directory, &status) {
            let file = directory.join(STATUS_FILE);
            // An outdated status must not be mistaken for the current one. The next event retries the write.
            let _ = run_directory(directory).and_then(|run| run.remove(STATUS_FILE));
            if !self.is_error_reported {
                warn(&message!(
                    "status-not-written",
                    "cannot write {file}: {error}; `slurminit status` and `slurminit health` will not work; \
                     {directory} must have free space and be writable by root only",
                    file = file.display(),
                    error,
                    directory = directory.display()
                ));
            }
            self.is_error_reported = true;
            return;
        }
        self.is_error_reported = false;
        self.last = Some(snapshot);
    }
}

/// The run directory, if only root can write to it.
fn run_directory(path: &Path) -> std::io::Result<Dir> {
    let run = trusted_path::open(Path::new("/"), path)?;
    run.require_ours()?;
    Ok(run)
}

fn replace(directory: &Path, status: &Status) -> std::io::Result<()> {
    let (run, text) = (run_directory(directory)?, serde_json::to_vec(status)?);
    run.remove(NEW)?;
    match run.create(NEW, 0o644)?.write_all(&text) {
        Ok(()) => run.rename(NEW, STATUS_FILE),
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
            run.remove(NEW)?;
            overwrite(&run, text)
        }
        Err(error) => Err(error),
    }
}

/// Overwrites the file in place because the disk is full: the new text must fit into the pages that the file already
/// occupies. A reader may see a half-written file and has to read again.
fn overwrite(run: &Dir, mut text: Vec<u8>) -> std::io::Result<()> {
    let file = run.open_to_write(STATUS_FILE)?;
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    if text.len() > length.next_multiple_of(PAGE) {
        return Err(std::io::ErrorKind::StorageFull.into());
    }
    // JSON permits trailing spaces.
    text.resize(text.len().max(length), b' ');
    file.write_all_at(&text, 0)
}
