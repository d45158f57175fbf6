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
    let line = without_name(name, line.strip_suffix(b"\r").unwrap_or(line));
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
    match word {
        Some((Level::Error, message)) if is_first_start(message) => (Level::Info, message),
        Some(found) => found,
        None => (Level::Info, line),
    }
}

/// slurmd calls itself `slurmd-NODE` where the node's name is not the host's.
fn without_name<'a>(name: &str, line: &'a [u8]) -> &'a [u8] {
    let rest = line.strip_prefix(name.as_bytes()).and_then(|rest| {
        let end = rest.iter().position(|byte| *byte == b':')?;
        let (node, rest) = rest.split_at(end);
        (node.is_empty() || node.starts_with(b"-") && !node.contains(&b' ')).then_some(rest)
    });
    rest.and_then(|rest| rest.strip_prefix(b": ")).unwrap_or(line)
}

/// slurmctld calls it an error that there is no saved state, as at every first start (24.11, `node_state_save`,
/// `job_mgr.c`, ...). State that is there and cannot be read has another message.
fn is_first_start(message: &[u8]) -> bool {
    let message = String::from_utf8_lossy(message);
    message.starts_with("Could not open ") && message.ends_with("No such file or directory")
        || message.starts_with("NOTE: Trying backup ") && message.contains("may be lost")
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
        assert_eq!(parse_daemon_line("slurmd", b"slurmd-localhost: error: no"), (Level::Error, &b"no"[..]));
        assert_eq!(parse_daemon_line("slurmd", b"slurmd is: error: no").0, Level::Info);
        let first = b"slurmctld: error: Could not open job state file /var/job_state: No such file or directory";
        assert_eq!(parse_daemon_line("slurmctld", first).0, Level::Info);
        let unreadable = b"slurmctld: error: Could not open job state file /var/job_state: Permission denied";
        assert_eq!(parse_daemon_line("slurmctld", unreadable).0, Level::Error);
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
