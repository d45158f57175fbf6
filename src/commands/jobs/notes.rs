//! slurminit's own files in slurmctld's directory (`StateSaveLocation`).
//!
//! That directory is slurm's, and slurm can forge what lies in it. So root goes there without following a link, never goes the
//! path twice, and takes nothing but job ids from what it reads: they decide where ids go on, and what a line of the log says.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::Path;

use anyhow::Context as _;

use crate::walk::{self, Dir};

/// No file of ours is nearly as long; of a longer one that somebody else has put there, this much is read.
const LONGEST: u64 = 1 << 20;
/// The name of one that is being written.
const NEW: &str = "slurminit.new";

/// The directory, open.
#[derive(Debug)]
pub(super) struct Notes(Dir);

impl Notes {
    /// As root, who goes there only where nobody else decides what the path leads to.
    pub(super) fn of_slurm(state: &Path) -> anyhow::Result<Self> {
        Ok(Self(walk::open(Path::new("/"), state)?))
    }

    /// As slurmctld's own user.
    pub(super) fn ours(state: &Path) -> anyhow::Result<Self> {
        Ok(Self(Dir::of_the_user(state).with_context(|| state.display().to_string())?))
    }

    /// The ids in a file, in their order; `None` where there is none. What is no id is left out.
    pub(super) fn ids(&self, name: &str) -> anyhow::Result<Option<BTreeSet<u32>>> {
        let file = match self.0.open_file(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.with_context(|| self.place(name))?,
        };
        let mut bytes = Vec::new();
        file.take(LONGEST).read_to_end(&mut bytes).with_context(|| self.place(name))?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Some(text.split_whitespace().filter_map(|id| id.parse().ok()).collect()))
    }

    /// Replaces a file, whatever has its name, by one with these ids: whole or not at all.
    pub(super) fn write(&self, name: &str, ids: impl IntoIterator<Item = u32>) -> anyhow::Result<()> {
        let lines: String = ids.into_iter().map(|id| format!("{id}\n")).collect();
        let write = || {
            self.0.remove(NEW)?;
            let mut file = self.0.create(NEW, 0o644)?;
            file.write_all(lines.as_bytes())?;
            file.sync_all()?;
            self.0.rename(NEW, name)
        };
        write().with_context(|| self.place(name))
    }

    pub(super) fn remove(&self, name: &str) -> anyhow::Result<()> {
        self.0.remove(name).with_context(|| self.place(name))
    }

    fn place(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, Notes};

    #[test]
    fn what_is_written_is_read() {
        let state = tempfile::tempdir().unwrap();
        let notes = Notes::ours(state.path()).unwrap();
        assert_eq!(notes.ids("slurminit.scripts").unwrap(), None);
        notes.write("slurminit.scripts", [12, 7]).unwrap();
        assert_eq!(notes.ids("slurminit.scripts").unwrap(), Some([7, 12].into()));
        notes.remove("slurminit.scripts").unwrap();
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_is_neither_read_nor_written_through() {
        let (state, outside) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(outside.path(), "5").unwrap();
        let notes = Notes::ours(state.path()).unwrap();
        for name in ["slurminit.next_job_id", super::NEW] {
            std::os::unix::fs::symlink(outside.path(), state.path().join(name)).unwrap();
        }
        assert!(notes.ids("slurminit.next_job_id").is_err());
        notes.write("slurminit.next_job_id", [9]).unwrap();
        assert_eq!(std::fs::read_to_string(outside.path()).unwrap(), "5");
        assert_eq!(notes.ids("slurminit.next_job_id").unwrap(), Some([9].into()));
    }

    #[test]
    fn what_slurm_forges_is_ids_or_nothing() {
        let state = tempfile::tempdir().unwrap();
        let notes = Notes::ours(state.path()).unwrap();
        let forged = "5\n\u{1b}[2J\n99999999999\n-3\n6 lost; all is well\n";
        std::fs::write(state.path().join("slurminit.scripts"), forged).unwrap();
        assert_eq!(notes.ids("slurminit.scripts").unwrap(), Some([5, 6].into()));
        let long = std::fs::File::create(state.path().join("slurminit.scripts")).unwrap();
        long.set_len(LONGEST << 10).unwrap();
        assert_eq!(notes.ids("slurminit.scripts").unwrap(), Some([].into()));
        std::fs::remove_file(state.path().join("slurminit.scripts")).unwrap();
        nix::unistd::mkfifo(&state.path().join("slurminit.scripts"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(notes.ids("slurminit.scripts").is_err());
    }
}
