//! The head of `job_state`, as Slurm 22.05 to 24.11 write it (`job_mgr.c`, dump_all_job_state; numbers are big-endian):
//! the length of a string and `PROTOCOL_VERSION\0`, the version (16 bits), the time (64), the next id (32), and the time of the
//! last backfill cycle (64), which the jobs follow. `node_state` begins with the same string, version and time.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;

const MAGIC: &[u8] = b"\x00\x00\x00\x11PROTOCOL_VERSION\0";
const VERSION: usize = MAGIC.len();
const NUMBER: usize = VERSION + 2 + 8;
const END: usize = NUMBER + 4 + 8;

/// The file that slurmctld will read, and the number in it.
#[derive(Debug)]
pub(super) struct Saved {
    pub(super) next: u32,
    bytes: Vec<u8>,
}

/// Reads it. If slurmctld died before its first save, the result is a file without jobs.
pub(super) fn read(state: &Path) -> anyhow::Result<Saved> {
    // slurmctld reads the older file if the newer is missing, which happens for a moment at each save.
    let found = ["job_state", "job_state.old"].iter().find_map(|name| fs::read(state.join(name)).ok());
    let bytes = match found {
        Some(bytes) => bytes,
        None => without_jobs(&fs::read(state.join("node_state")).context("no job_state and no node_state")?)?,
    };
    let next = number(&bytes).context("job_state begins otherwise than that of Slurm 22.05 to 24.11")?;
    Ok(Saved { next, bytes })
}

fn number(bytes: &[u8]) -> Option<u32> {
    if !bytes.starts_with(MAGIC) || bytes.len() < END {
        return None;
    }
    Some(u32::from_be_bytes(bytes.get(NUMBER..NUMBER + 4)?.try_into().ok()?))
}

fn without_jobs(nodes: &[u8]) -> anyhow::Result<Vec<u8>> {
    anyhow::ensure!(nodes.starts_with(MAGIC), "node_state begins otherwise than that of Slurm 22.05 to 24.11");
    let mut bytes = nodes.get(..NUMBER).context("node_state is cut off")?.to_vec();
    bytes.extend(1_u32.to_be_bytes());
    bytes.extend(0_u64.to_be_bytes());
    Ok(bytes)
}

impl Saved {
    /// Replaces the file by one with another number.
    pub(super) fn write(mut self, state: &Path, next: u32) -> anyhow::Result<()> {
        self.bytes.splice(NUMBER..NUMBER + 4, next.to_be_bytes());
        let new = state.join("job_state.slurminit");
        let mut file = File::create(&new).with_context(|| new.display().to_string())?;
        file.write_all(&self.bytes)?;
        file.sync_all()?;
        fs::rename(&new, state.join("job_state")).context("job_state cannot be replaced")
    }
}

#[cfg(test)]
mod tests {
    use super::{Saved, number, read};

    /// The beginning of a file written by Slurm 24.11.5.
    const HEAD: &[u8] = b"\0\0\0\x11PROTOCOL_VERSION\0\x2a\x00\0\0\0\0\x6b\x02\x0a\x11\0\0\0\x05\0\0\0\0\0\0\0\0";

    #[test]
    fn the_number_is_raised_and_nothing_else() {
        let state = tempfile::tempdir().unwrap();
        std::fs::write(state.path().join("job_state"), [HEAD, b"jobs"].concat()).unwrap();
        let saved: Saved = read(state.path()).unwrap();
        assert_eq!(saved.next, 5);
        saved.write(state.path(), 0x0102_0304).unwrap();
        let bytes = std::fs::read(state.path().join("job_state")).unwrap();
        assert_eq!(number(&bytes), Some(0x0102_0304));
        let is_same = |at: usize| bytes[at] == [HEAD, b"jobs"].concat()[at] || (31..35).contains(&at);
        assert!(bytes.len() == HEAD.len() + 4 && (0..bytes.len()).all(is_same));
    }

    #[test]
    fn without_saved_jobs_there_is_a_file_without_any() {
        let state = tempfile::tempdir().unwrap();
        assert!(read(state.path()).is_err());
        std::fs::write(state.path().join("node_state"), [&HEAD[..31], b"nodes"].concat()).unwrap();
        read(state.path()).unwrap().write(state.path(), 9).unwrap();
        assert_eq!(read(state.path()).unwrap().next, 9);
        assert_eq!(std::fs::read(state.path().join("job_state")).unwrap().len(), HEAD.len());
    }

    #[test]
    fn a_file_of_another_form_is_left_alone() {
        for bytes in [&b""[..], b"\0\0\0\x11PROTOCOL", b"something else, which is long enough for a whole head"] {
            assert_eq!(number(bytes), None);
        }
    }
}
