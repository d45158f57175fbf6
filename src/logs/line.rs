//! From the bytes of a daemon's pipe to lines with a level.

use crate::config::Level;

/// A longer line is cut into pieces of this many bytes.
const LONGEST: usize = 4 << 20;

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
pub struct LineSplitter {
    partial: Vec<u8>,
}

impl LineSplitter {
    /// Takes the next bytes and hands each line that is complete, without its end, to `line`.
    pub fn push(&mut self, mut bytes: &[u8], mut line: impl FnMut(&[u8])) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (head, tail) = bytes.split_at(end);
            if self.partial.is_empty() {
                line(head);
            } else {
                self.partial.extend_from_slice(head);
                line(&std::mem::take(&mut self.partial));
            }
            bytes = tail.get(1..).unwrap_or_default();
        }
        self.partial.extend_from_slice(bytes);
        if self.partial.len() >= LONGEST {
            line(&std::mem::take(&mut self.partial));
        }
    }

    /// The stream has ended: hands on what came without an end of line.
    pub fn finish(&mut self, line: impl FnOnce(&[u8])) {
        if !self.partial.is_empty() {
            line(&std::mem::take(&mut self.partial));
        }
    }
}

/// Takes the daemon's own name and its word for the level off the front of a line: `slurmd: error: no` is an error
/// that says `no`. Slurm's words are from `src/common/log.c`, munge's from `src/libcommon/log.c`.
pub fn parse_daemon_line<'a>(name: &str, line: &'a [u8]) -> (Level, &'a [u8]) {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = line.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b": ")).unwrap_or(line);
    const WORDS: [(&[u8], Level); 15] = [
        (b"fatal: ", Level::Error),
        (b"error: ", Level::Error),
        (b"Error: ", Level::Error),
        (b"Emergency: ", Level::Error),
        (b"Alert: ", Level::Error),
        (b"Critical: ", Level::Error),
        (b"warning: ", Level::Warn),
        (b"Warning: ", Level::Warn),
        (b"Notice: ", Level::Info),
        (b"Info: ", Level::Info),
        (b"debug: ", Level::Debug),
        (b"Debug: ", Level::Debug),
        (b"debug2: ", Level::Debug),
        (b"debug3: ", Level::Trace),
        (b"debug4: ", Level::Trace),
    ];
    let word = WORDS.iter().find_map(|(word, level)| Some((*level, line.strip_prefix(*word)?.trim_ascii_start())));
    word.unwrap_or((Level::Info, line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_daemons_word_for_the_level_becomes_the_level() {
        assert_eq!(parse_daemon_line("slurmd", b"slurmd: error: no"), (Level::Error, &b"no"[..]));
        assert_eq!(parse_daemon_line("slurmd", b"slurmd: debug:  yes"), (Level::Debug, &b"yes"[..]));
        assert_eq!(parse_daemon_line("munged", b"munged: Notice:    Running"), (Level::Info, &b"Running"[..]));
        assert_eq!(parse_daemon_line("api", b"\xff error: no\r"), (Level::Info, &b"\xff error: no"[..]));
    }

    proptest! {
        #[test]
        fn however_the_bytes_come_the_lines_are_the_same(
            lines in proptest::collection::vec("[a-z]{0,40}", 1..20),
            cuts in proptest::collection::vec(1..30_usize, 1..40),
        ) {
            let text = lines.join("\n");
            let mut rest = text.as_bytes();
            let mut seen = Vec::new();
            let mut splitter = LineSplitter::default();
            for cut in cuts.iter().cycle() {
                let (head, tail) = rest.split_at((*cut).min(rest.len()));
                splitter.push(head, |line| seen.push(line.to_vec()));
                rest = tail;
                if rest.is_empty() {
                    break;
                }
            }
            splitter.finish(|line| seen.push(line.to_vec()));
            let mut expected: Vec<_> = lines.iter().map(|line| line.clone().into_bytes()).collect();
            if expected.last().is_some_and(Vec::is_empty) {
                expected.pop();
            }
            prop_assert_eq!(seen, expected);
        }
    }
}
