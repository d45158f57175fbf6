//! The status file that PID 1 publishes, replaced atomically at every change.
//!
//! Reading it costs PID 1 nothing, and no reader can disturb PID 1. The file is in the run directory, on a tmpfs.

mod news;

pub use news::StatusWatcher;

use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::logs::warn;
use machine::Snapshot;
use model::message;
use sys::proc;
use sys::proc::Stat;
use sys::trusted_path;
use sys::trusted_path::Dir;

/// The file's name in the run directory.
pub const FILE: &str = "status.json";
/// The file's temporary name while it is written.
const NEW: &str = "status.json.new";

/// The size that even a file on a full disk has, in bytes.
const PAGE: usize = 4096;

/// The contents of the status file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The version of slurminit that wrote the file.
    pub version: String,
    /// The PID of slurminit, to detect a file left by a dead process.
    pub pid: u32,
    /// When slurminit started, in milliseconds of the monotonic clock.
    pub started_ms: u64,
    /// The start time of slurminit in clock ticks since boot. Together with the PID it identifies the process.
    #[serde(default)]
    pub start_ticks: Option<u64>,
    /// The state of the container and all units.
    #[serde(flatten)]
    pub snapshot: Snapshot,
}

/// Milliseconds of the monotonic clock.
pub fn monotonic_ms() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or(nix::sys::time::TimeSpec::new(0, 0));
    u64::try_from(now.tv_sec() * 1000 + now.tv_nsec() / 1_000_000).unwrap_or_default()
}

impl Status {
    /// Whether the process that wrote the status is alive. After a restart of the container another process, even the
    /// caller, may have its PID. PID 1 itself is always alive.
    pub fn is_process_alive(&self) -> bool {
        let has_started = |stat: &Stat| self.pid == 1 || self.start_ticks.is_none_or(|ticks| ticks == stat.start);
        self.pid != std::process::id() && live_process_stat(self.pid).is_some_and(|stat| has_started(&stat))
    }
}

/// Whether the process exists; another user's does too, even if it may not be signalled.
pub fn is_alive(pid: u32) -> bool {
    live_process_stat(pid).is_some()
}

/// Reads `/proc/PID/stat` of a process that is not a zombie. A PID 1 other than slurminit may leave zombies unreaped.
fn live_process_stat(pid: u32) -> Option<Stat> {
    proc::stat(i32::try_from(pid).ok()?).filter(|stat| !stat.is_dead())
}

/// Writes the status file when the snapshot has changed.
#[derive(Debug)]
pub(super) struct Publisher {
    directory: Option<PathBuf>,
    started_ms: u64,
    start_ticks: Option<u64>,
    last: Option<Snapshot>,
    is_error_reported: bool,
}

impl Publisher {
    /// A plain init may run as any user and publishes nothing.
    pub(super) fn new(directory: &Path, is_enabled: bool) -> Self {
        let directory = is_enabled.then(|| directory.to_owned());
        if let Some(directory) = &directory {
            // If the directory cannot be created, the first write reports the error.
            let _ = trusted_path::make(Path::new("/"), directory, &mut Vec::new());
        }
        let start_ticks = live_process_stat(std::process::id()).map(|stat| stat.start);
        Self { directory, started_ms: monotonic_ms(), start_ticks, last: None, is_error_reported: false }
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
            start_ticks: self.start_ticks,
            snapshot: snapshot.clone(),
        };
        if let Err(error) = replace(directory, &status) {
            let file = directory.join(FILE);
            // An outdated status must not pass for the current one. The next event tries again.
            let _ = run_directory(directory).and_then(|run| run.remove(FILE));
            if !self.is_error_reported {
                warn(&message!(
                    "status-not-written",
                    "{file}: {error}; `status` and `health` will not work; make {directory} writable",
                    file = file.display(),
                    error = error,
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
        Ok(()) => run.rename(NEW, FILE),
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
            run.remove(NEW)?;
            overwrite(&run, text)
        }
        Err(error) => Err(error),
    }
}

/// The disk is full, so reuse the page that the file already occupies. A reader may see a half-written file and has to
/// read again.
fn overwrite(run: &Dir, mut text: Vec<u8>) -> std::io::Result<()> {
    let file = run.open_to_write(FILE)?;
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    if text.len() > length.next_multiple_of(PAGE) {
        return Err(std::io::ErrorKind::StorageFull.into());
    }
    // JSON permits trailing blanks.
    text.resize(text.len().max(length), b' ');
    file.write_all_at(&text, 0)
}

/// The status file's content, if the slurminit that wrote it is alive.
pub fn of_running_slurminit(directory: &Path) -> Option<Status> {
    read(directory).ok().filter(Status::is_process_alive)
}

/// Reads the status file.
///
/// # Errors
/// The file is missing, or was not written by this version of slurminit.
pub fn read(directory: &Path) -> std::io::Result<Status> {
    Ok(serde_json::from_slice(&std::fs::read(directory.join(FILE))?)?)
}
