//! The status that PID 1 publishes: a file that is replaced whole whenever something changes.
//!
//! EDGE. Reading it costs PID 1 nothing, and no reader can hurt it. It lies in the run directory, which is memory.

mod news;

pub use news::News;

use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::machine::Snapshot;
use crate::walk::{self, Dir};

/// The file's name in the run directory.
pub const FILE: &str = "status.json";
/// What it is called until it is whole.
const NEW: &str = "status.json.new";

/// What a file on a full disk has in any case, in bytes.
const PAGE: usize = 4096;

/// What the file holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The version of the slurminit that wrote it.
    pub version: String,
    /// Its process, to tell a living one from a file that was left behind.
    pub pid: u32,
    /// When it started, in milliseconds of the monotonic clock.
    pub started_ms: u64,
    /// The state of everything.
    #[serde(flatten)]
    pub snapshot: Snapshot,
}

/// Milliseconds of the monotonic clock.
pub fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or(nix::sys::time::TimeSpec::new(0, 0));
    u64::try_from(now.tv_sec() * 1000 + now.tv_nsec() / 1_000_000).unwrap_or_default()
}

/// Writes the file when there is news.
#[derive(Debug)]
pub(super) struct Publisher {
    directory: Option<PathBuf>,
    started_ms: u64,
    last: Option<Snapshot>,
    complained: bool,
}

impl Publisher {
    /// `off` is for a plain init, which may be any user and writes nothing.
    pub(super) fn new(directory: &Path, off: bool) -> Self {
        let directory = (!off).then(|| directory.to_owned());
        if let Some(directory) = &directory {
            // If it cannot be made, the first write says so.
            let _ = walk::make(Path::new("/"), directory, &mut Vec::new());
        }
        Self { directory, started_ms: monotonic_ms(), last: None, complained: false }
    }

    pub(super) fn publish(&mut self, snapshot: Snapshot) {
        let Some(directory) = &self.directory else { return };
        if self.last.as_ref() == Some(&snapshot) {
            return;
        }
        let status = Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started_ms: self.started_ms,
            snapshot: snapshot.clone(),
        };
        if let Err(error) = replace(directory, &status) {
            let file = directory.join(FILE);
            // A state that is no more must not pass for the present one. The next event tries again.
            let _ = run_directory(directory).and_then(|run| run.remove(FILE));
            if !self.complained {
                warn!(
                    "{}: {error}; `status` and `health` will not work; make {} writable",
                    file.display(),
                    directory.display()
                );
            }
            self.complained = true;
            return;
        }
        self.complained = false;
        self.last = Some(snapshot);
    }
}

/// The run directory, if it is root's alone.
fn run_directory(path: &Path) -> std::io::Result<Dir> {
    let run = walk::open(Path::new("/"), path)?;
    run.require_ours()?;
    Ok(run)
}

fn replace(directory: &Path, status: &Status) -> std::io::Result<()> {
    let (run, text) = (run_directory(directory)?, serde_json::to_vec(status)?);
    run.remove(NEW)?;
    match run.create(NEW, 0o644)?.write_all(&text) {
        Ok(()) => run.rename(NEW, FILE),
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
            run.remove(NEW)?;
            overwrite(&run, text)
        }
        Err(error) => Err(error),
    }
}

/// The disk is full: the page that the file has will do. A reader may see it half written, and has to look again.
fn overwrite(run: &Dir, mut text: Vec<u8>) -> std::io::Result<()> {
    let file = run.open_to_write(FILE)?;
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    if text.len() > length.next_multiple_of(PAGE) {
        return Err(std::io::ErrorKind::StorageFull.into());
    }
    // Blanks at the end of JSON mean nothing.
    text.resize(text.len().max(length), b' ');
    file.write_all_at(&text, 0)
}

/// Reads the file.
///
/// # Errors
/// It is not there, or no slurminit of this version wrote it.
pub fn read(directory: &Path) -> std::io::Result<Status> {
    Ok(serde_json::from_slice(&std::fs::read(directory.join(FILE))?)?)
}
