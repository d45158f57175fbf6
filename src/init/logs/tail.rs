//! The last lines of slurminit and of each daemon and service, for `slurminit logs` and for reports about failures.
//!
//! All lines are in one memfd, which is not mapped. It costs PID 1 one descriptor, and the container at most
//! [`RING_BYTES`] bytes for each name. It needs no disk, so a read-only root or a full /run does not matter.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use nix::sys::memfd::{MFdFlags, memfd_create};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// The size of the ring buffer of each name.
pub(super) const RING_BYTES: u64 = 64 * 1024;
/// The number of bytes that are kept of a line; the log contains the complete line.
const MAX_LINE_BYTES: usize = 4096;

/// The maximum number of batches queued for a follower that does not read. Each batch contains at most a quarter of a ring and one line.
const MAX_QUEUED_BATCHES: usize = 16;

/// One ring buffer per name, one after the other in the file.
#[derive(Debug, Default)]
pub(super) struct Tails {
    file: Option<File>,
    rings: Vec<Ring>,
}

#[derive(Debug)]
struct Ring {
    name: String,
    /// The number of bytes ever written.
    written: u64,
    /// How many of these were written by earlier processes with this name.
    previous_processes_end: u64,
    followers: Vec<Follower>,
}

/// A client that receives each new line.
#[derive(Debug)]
struct Follower {
    lines: Sender<Vec<u8>>,
    /// How many lines were dropped since the last batch that was queued.
    dropped_lines: usize,
}

impl Follower {
    /// Passes lines on without blocking. Returns whether the follower is still connected.
    fn send(&mut self, lines: &[u8]) -> bool {
        let chunk = match self.dropped_lines {
            0 => lines.to_vec(),
            count => [format!("... lines left out: {count}; the reader was too slow\n").as_bytes(), lines].concat(),
        };
        match self.lines.try_send(chunk) {
            Ok(()) => self.dropped_lines = 0,
            Err(TrySendError::Full(_)) => self.dropped_lines += lines.iter().filter(|byte| **byte == b'\n').count(),
            Err(TrySendError::Closed(_)) => return false,
        }
        true
    }
}

impl Tails {
    /// Creates an empty ring buffer for each name.
    ///
    /// # Errors
    /// The kernel cannot create a memfd.
    pub(super) fn create_rings(&mut self, names: impl Iterator<Item = String>) -> std::io::Result<()> {
        self.file = Some(File::from(memfd_create("slurminit logs", MFdFlags::MFD_CLOEXEC)?));
        let ring = |name| Ring { name, written: 0, previous_processes_end: 0, followers: Vec::new() };
        self.rings = names.map(ring).collect();
        Ok(())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.rings.iter().any(|ring| ring.name == name)
    }

    /// Adds complete lines. The caller has shortened each with [`cut`]; together they must be smaller than a ring.
    pub(super) fn add(&mut self, name: &str, lines: &[u8]) {
        let Some((file, start, ring)) = self.ring_mut(name) else { return };
        let at = ring.written % RING_BYTES;
        let until_end = usize::try_from(RING_BYTES - at).unwrap_or_default();
        let (head, rest) = lines.split_at(lines.len().min(until_end));
        // If no memory is free, the lines are not kept.
        let written = file.write_all_at(head, start + at).and_then(|()| file.write_all_at(rest, start));
        if written.is_ok() {
            ring.written += lines.len() as u64;
        }
        ring.followers.retain_mut(|follower| follower.send(lines));
    }

    /// Returns a channel that receives the new lines of `name`; `None` if the lines of this name are not kept.
    pub(super) fn follow(&mut self, name: &str) -> Option<Receiver<Vec<u8>>> {
        let (lines, receiver) = channel(MAX_QUEUED_BATCHES);
        let (_, _, ring) = self.ring_mut(name)?;
        // A disconnected follower is otherwise detected only at the next line, which may never come.
        ring.followers.retain(|follower| !follower.lines.is_closed());
        ring.followers.push(Follower { lines, dropped_lines: 0 });
        Some(receiver)
    }

    /// Marks the start of a new process with this name: earlier lines are from its predecessors.
    pub(super) fn begin_process(&mut self, name: &str) {
        if let Some((_, _, ring)) = self.ring_mut(name) {
            ring.previous_processes_end = ring.written;
        }
    }

    /// The last lines, oldest first, with their newlines: all, or only those of the last process.
    pub(super) fn read(&self, name: &str, last_process: bool) -> Vec<u8> {
        let index = self.rings.iter().position(|ring| ring.name == name);
        let ring = index.and_then(|index| self.rings.get(index));
        let (Some(file), Some(index), Some(ring)) = (&self.file, index, ring) else { return Vec::new() };
        let start = if last_process { ring.previous_processes_end } else { 0 };
        let from = start.max(ring.written.saturating_sub(RING_BYTES));
        let (ring_offset, at, length) = (index as u64 * RING_BYTES, from % RING_BYTES, ring.written - from);
        let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
        let (head, rest) = bytes.split_at_mut(usize::try_from(length.min(RING_BYTES - at)).unwrap_or_default());
        if file.read_exact_at(head, ring_offset + at).and_then(|()| file.read_exact_at(rest, ring_offset)).is_err() {
            return Vec::new();
        }
        if from > start {
            // The beginning of the oldest line may have been overwritten.
            let first_complete_line = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
            bytes.drain(..first_complete_line);
        }
        bytes
    }

    fn ring_mut(&mut self, name: &str) -> Option<(&File, u64, &mut Ring)> {
        let index = self.rings.iter().position(|ring| ring.name == name)?;
        Some((self.file.as_ref()?, index as u64 * RING_BYTES, self.rings.get_mut(index)?))
    }
}

/// Appends a line to `lines`, truncated to the length that is kept.
pub(super) fn cut(line: &[u8], lines: &mut Vec<u8>) {
    match line.get(..MAX_LINE_BYTES) {
        Some(head) if line.len() > MAX_LINE_BYTES => {
            lines.extend_from_slice(head);
            lines.extend_from_slice(b"...\n");
        }
        _ => lines.extend_from_slice(line),
    }
}

/// The last `count` lines of the text.
pub(super) fn last_lines(text: &[u8], count: usize) -> &[u8] {
    let ends = text.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(index, _)| index);
    // The newline before the first requested line.
    let before = ends.into_iter().nth(count);
    before.and_then(|end| text.get(end + 1..)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tails() -> Tails {
        let mut tails = Tails::default();
        tails.create_rings(["a", "b"].into_iter().map(str::to_owned)).unwrap();
        tails
    }

    #[test]
    fn separates_lines_by_name_and_process() {
        let mut tails = tails();
        tails.add("a", b"1\n");
        tails.add("b", b"2\n");
        tails.begin_process("a");
        tails.add("a", b"3\n");
        tails.add("other", b"4\n");
        assert_eq!(tails.read("a", false), b"1\n3\n");
        assert_eq!(tails.read("a", true), b"3\n");
        assert_eq!(tails.read("b", true), b"2\n");
        assert_eq!(tails.read("other", false), b"");
    }

    #[test]
    fn follower_gets_new_lines_and_count_of_dropped_ones() {
        let mut tails = tails();
        tails.add("a", b"before\n");
        assert!(tails.follow("other").is_none());
        let mut receiver = tails.follow("a").unwrap();
        tails.add("a", b"1\n");
        tails.begin_process("a");
        tails.add("b", b"of another\n");
        for _ in 0..MAX_QUEUED_BATCHES + 2 {
            tails.add("a", b"2\n3\n");
        }
        assert_eq!(receiver.try_recv().unwrap(), b"1\n");
        tails.add("a", b"4\n");
        let mut last = Vec::new();
        while let Ok(lines) = receiver.try_recv() {
            last = lines;
        }
        assert_eq!(String::from_utf8(last).unwrap(), "... lines left out: 6; the reader was too slow\n4\n");
        drop(receiver);
        tails.add("a", b"5\n");
        assert!(tails.rings[0].followers.is_empty());
        assert!(tails.read("a", false).ends_with(b"4\n5\n"), "a slow follower removes no line from the ring");
    }

    #[test]
    fn last_lines_returns_at_most_count_lines() {
        for (count, expected) in [(0, ""), (1, "c\n"), (2, "b\nc\n"), (3, "a\nb\nc\n"), (9, "a\nb\nc\n")] {
            assert_eq!(last_lines(b"a\nb\nc\n", count), expected.as_bytes(), "{count}");
        }
        assert_eq!(last_lines(b"", 3), b"");
    }

    proptest! {
        /// Keeps as many whole lines from the end of the output as fit.
        #[test]
        fn keeps_end_of_output(lengths in proptest::collection::vec(0..6_000_usize, 1..60)) {
            let mut tails = tails();
            let mut all = Vec::new();
            for (index, length) in lengths.iter().enumerate() {
                let line = [format!("{index} ").as_bytes(), &b"x".repeat(*length), b"\n"].concat();
                let mut short = Vec::new();
                cut(&line, &mut short);
                tails.add("b", &short);
                if line.len() > MAX_LINE_BYTES {
                    all.extend([&line[..MAX_LINE_BYTES], b"...\n"].concat());
                } else {
                    all.extend(line);
                }
            }
            let kept = tails.read("b", false);
            prop_assert!(all.ends_with(&kept));
            let before = all.len() - kept.len();
            prop_assert!(before == 0 || all[before - 1] == b'\n');
            prop_assert!(kept.len() as u64 <= RING_BYTES);
            prop_assert!(before == 0 || kept.len() + MAX_LINE_BYTES + 4 >= RING_BYTES as usize);
            prop_assert_eq!(tails.read("a", false), b"");
        }
    }

    #[test]
    fn keeps_last_64_kib_of_each_name() {
        let mut tails = tails();
        let line = [vec![b'x'; 1023], b"\n".to_vec()].concat();
        for _ in 0..70 {
            tails.add("a", &line);
            tails.add("b", b"y\n");
        }
        // The oldest line is not whole.
        assert_eq!([tails.read("a", false).len(), tails.read("b", false).len()], [63 * 1024, 140]);
    }
}
