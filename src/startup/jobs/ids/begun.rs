//! Whether the last slurmctld has read the saved state. If not, it has not accepted a job, and no ID is skipped.
//!
//! Before it reads the jobs, slurmctld always replaces `last_config_lite` (Slurm 24.11 to 25.05, `read_config.c`,
//! dump_config_state_lite). So the identity of that file at the start of slurmctld is recorded. A record of an earlier boot is
//! ignored, because a power failure may have undone the replacement.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::super::notes::Notes;
use crate::state_disk;

const RECORD_FILE: &str = "slurminit.started_with";
const REPLACED_FILE: &str = "last_config_lite";

/// Records that slurmctld is about to start with this next ID.
pub(super) fn note(notes: &Notes, state: &Path, next: u32) {
    // On a full disk slurmctld could not replace the file, so its identity would prove nothing.
    let has_free_space = || state_disk::check_free_space(state).map_err(anyhow::Error::from);
    let written = notes.write_text(RECORD_FILE, &text(state, next)).and_then(|()| has_free_space());
    // Without the record, IDs may be skipped, which is harmless.
    let _ = written.or_else(|_| notes.remove(RECORD_FILE));
}

/// Whether no slurmctld has read the state since [`note`].
pub(super) fn is_unread(notes: &Notes, state: &Path, next: u32) -> bool {
    notes.text(RECORD_FILE).is_ok_and(|recorded| recorded.is_some_and(|recorded| recorded == text(state, next)))
}

fn text(state: &Path, next: u32) -> String {
    let replaced_file = match state.join(REPLACED_FILE).symlink_metadata() {
        Ok(file) => format!("{} {}.{:09}", file.ino(), file.mtime(), file.mtime_nsec()),
        Err(_) => "none".to_owned(),
    };
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    format!("{next} {replaced_file} {boot}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_no_ids_until_slurmctld_has_read_the_state() {
        let state = tempfile::tempdir().unwrap();
        let (state, notes) = (state.path(), Notes::open_as_slurm(state.path()).unwrap());
        assert!(!is_unread(&notes, state, 7));
        for _ in 0..2 {
            note(&notes, state, 7);
            assert!(is_unread(&notes, state, 7) && !is_unread(&notes, state, 8));
            std::fs::write(state.join("new"), "").unwrap();
            std::fs::rename(state.join("new"), state.join(REPLACED_FILE)).unwrap();
            assert!(!is_unread(&notes, state, 7));
        }
    }
}
