//! slurminit's own files in slurmctld's directory (`StateSaveLocation`).
//!
//! That directory belongs to the user slurm, who can forge its contents. So root opens it without following links and
//! only once, and reads only job IDs, array tasks and the cluster's name from it. These determine only the next job ID, which jobs count as
//! already started, which cluster is looked up in the accounting database, and the text of log lines.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use sys::trusted_path;
use sys::trusted_path::Dir;

/// Maximum number of bytes to read. slurminit's own files are not longer.
const MAX_READ: u64 = 1 << 20;
/// The number of bytes to which a growing file is shortened. This happens each time the same number of bytes was added, so the
/// file can always be read in full.
const KEPT_BYTES: usize = 512 << 10;
/// The name of a file while [`Notes::write_text`] writes it.
const TEMPORARY_FILE: &str = "slurminit.new";

/// The text of slurm.conf, and its StateSaveLocation (`state` if there is no slurm.conf, Slurm's default if it is not set
/// there). Does not query slurmctld.
pub(super) fn conf_and_state(slurm_conf: &Path, state: &Path) -> (String, PathBuf) {
    let conf = std::fs::read_to_string(slurm_conf).unwrap_or_default();
    let state = plan::state_directory(&conf, state);
    (conf, state)
}

#[derive(Debug)]
pub(super) struct Notes(Dir);

impl Notes {
    /// Opens the notes as root. Fails unless only root controls where the path leads.
    pub(super) fn open_as_root(state: &Path) -> anyhow::Result<Self> {
        Ok(Self(trusted_path::open(Path::new("/"), state)?))
    }

    /// Opens the notes in slurmctld's state directory as slurmctld's user.
    pub(super) fn open_as_slurm(state: &Path) -> anyhow::Result<Self> {
        Ok(Self(Dir::open_unchecked(state).with_context(|| state.display().to_string())?))
    }

    /// The IDs in a file, in ascending order; `None` if the file is missing. Anything else in it is ignored.
    pub(super) fn ids(&self, name: &str) -> anyhow::Result<Option<BTreeSet<u32>>> {
        let text = self.text(name)?;
        Ok(text.map(|text| text.split_whitespace().filter_map(|id| id.parse().ok()).collect()))
    }

    /// The end of a file, at most [`MAX_READ`] bytes; `None` if the file is missing.
    pub(super) fn text(&self, name: &str) -> anyhow::Result<Option<String>> {
        let mut file = match self.0.open_file(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.with_context(|| self.display_path(name))?,
        };
        let begin = file.metadata().map_or(0, |file| file.len().saturating_sub(MAX_READ));
        file.seek(SeekFrom::Start(begin)).with_context(|| self.display_path(name))?;
        let mut bytes = Vec::new();
        file.take(MAX_READ).read_to_end(&mut bytes).with_context(|| self.display_path(name))?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Opens a growing file that starts with the last lines of the existing file of this name.
    pub(super) fn growing_file(self, name: &'static str) -> anyhow::Result<GrowingFile> {
        let file = self.continue_file(name)?;
        Ok(GrowingFile { notes: self, name, file, added: 0 })
    }

    /// Starts a new file with the last lines of the old one. The descriptor stays valid, whatever the user slurm does
    /// to the name.
    fn continue_file(&self, name: &str) -> anyhow::Result<File> {
        let former = self.text(name)?.unwrap_or_default();
        let kept = former.len().saturating_sub(KEPT_BYTES);
        let kept = former.get(kept..).and_then(|text| text.split_once('\n')).map_or("", |(_, lines)| lines);
        let kept = if former.len() <= KEPT_BYTES { &former } else { kept };
        let new = format!("{name}.new");
        let write = || {
            self.0.remove(&new)?;
            let mut file = self.0.create(&new, 0o644)?;
            file.write_all(kept.as_bytes())?;
            self.0.rename(&new, name)?;
            Ok(file)
        };
        write().map_err(|error: std::io::Error| anyhow::Error::new(error).context(self.display_path(name)))
    }

    /// Atomically creates or replaces a file, with these IDs as its content.
    pub(super) fn write(&self, name: &str, ids: impl IntoIterator<Item = u32>) -> anyhow::Result<()> {
        self.write_text(name, &ids.into_iter().map(|id| format!("{id}\n")).collect::<String>())
    }

    /// Atomically creates or replaces a file, with this text as its content.
    pub(super) fn write_text(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let write = || {
            self.0.remove(TEMPORARY_FILE)?;
            let mut file = self.0.create(TEMPORARY_FILE, 0o644)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            self.0.rename(TEMPORARY_FILE, name)
        };
        // After an error, for example on a full disk, the incomplete file is removed.
        write().inspect_err(|_| drop(self.0.remove(TEMPORARY_FILE))).with_context(|| self.display_path(name))
    }

    pub(super) fn remove(&self, name: &str) -> anyhow::Result<()> {
        self.0.remove(name).with_context(|| self.display_path(name))
    }

    fn display_path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

/// A text file from which the oldest lines are removed when it becomes too long.
#[derive(Debug)]
pub(super) struct GrowingFile {
    notes: Notes,
    name: &'static str,
    file: File,
    /// Bytes added since the file was opened, or since the last attempt to shorten it.
    added: usize,
}

impl GrowingFile {
    /// Adds a line. On a full disk the line is lost.
    pub(super) fn add(&mut self, line: &str) {
        let _ = self.file.write_all(line.as_bytes());
        self.added += line.len();
        if self.added >= KEPT_BYTES {
            self.added = 0;
            // If this fails, the file grows until the next attempt.
            if let Ok(file) = self.notes.continue_file(self.name) {
                self.file = file;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KEPT_BYTES, MAX_READ, Notes};

    #[test]
    fn growing_file_keeps_last_lines() {
        let state = tempfile::tempdir().unwrap();
        let notes = Notes::open_as_slurm(state.path()).unwrap();
        let path = state.path().join("notes");
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        notes.continue_file("notes").unwrap_err();
        std::fs::remove_file(&path).unwrap();
        let mut file = notes.growing_file("notes").unwrap();
        let line = |number: usize| format!("{number:099}\n");
        for number in 0..30_000 {
            file.add(&line(number));
            let size = std::fs::metadata(&path).unwrap().len();
            assert!(size <= MAX_READ, "{size}");
        }
        let text = Notes::open_as_slurm(state.path()).unwrap().text("notes").unwrap().unwrap();
        assert!(text.len() >= KEPT_BYTES - 100 && text.ends_with(&line(29_999)), "{}", text.len());
        assert!(text.lines().all(|line| line.len() == 99));
    }

    #[test]
    fn reads_written_ids() {
        let state = tempfile::tempdir().unwrap();
        let notes = Notes::open_as_slurm(state.path()).unwrap();
        assert_eq!(notes.ids("slurminit.scripts").unwrap(), None);
        notes.write("slurminit.scripts", [12, 7]).unwrap();
        assert_eq!(notes.ids("slurminit.scripts").unwrap(), Some([7, 12].into()));
        notes.remove("slurminit.scripts").unwrap();
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0);
    }

    #[test]
    fn does_not_follow_links() {
        let (state, outside) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(outside.path(), "5").unwrap();
        let notes = Notes::open_as_slurm(state.path()).unwrap();
        for name in ["slurminit.next_job_id", super::TEMPORARY_FILE] {
            std::os::unix::fs::symlink(outside.path(), state.path().join(name)).unwrap();
        }
        assert!(notes.ids("slurminit.next_job_id").is_err());
        notes.write("slurminit.next_job_id", [9]).unwrap();
        assert_eq!(std::fs::read_to_string(outside.path()).unwrap(), "5");
        assert_eq!(notes.ids("slurminit.next_job_id").unwrap(), Some([9].into()));
    }

    #[test]
    fn reads_only_ids_from_forged_file() {
        let state = tempfile::tempdir().unwrap();
        let notes = Notes::open_as_slurm(state.path()).unwrap();
        let forged = "5\n\u{1b}[2J\n99999999999\n-3\n6 lost; all is well\n";
        std::fs::write(state.path().join("slurminit.scripts"), forged).unwrap();
        assert_eq!(notes.ids("slurminit.scripts").unwrap(), Some([5, 6].into()));
        let long = std::fs::File::create(state.path().join("slurminit.scripts")).unwrap();
        long.set_len(MAX_READ << 10).unwrap();
        assert_eq!(notes.ids("slurminit.scripts").unwrap(), Some([].into()));
        std::fs::remove_file(state.path().join("slurminit.scripts")).unwrap();
        nix::unistd::mkfifo(&state.path().join("slurminit.scripts"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(notes.ids("slurminit.scripts").is_err());
    }
}
