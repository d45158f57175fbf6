//! Splits the output of a child into lines, and parses their levels.

use super::harmless::{Circumstances, is_harmless};
use model::daemons::DaemonName;
use model::log::Level;
use model::message::RECORD;

/// A longer line is split into pieces. Each piece except the last has at least this many bytes.
const MAX_LINE_BYTES: usize = 4 << 20;
/// The maximum length of a collected message, in bytes. A helper's report can be this long.
const MAX_MESSAGE_BYTES: usize = 16 << 10;
/// The maximum length of a daemon's message in the log, in bytes. A message can contain a megabyte of a user's text, and one
/// request can cause several such messages.
const MAX_TEXT_BYTES: usize = 1 << 10;
/// The kernel splits longer writes to a pipe in packet mode into pieces of this many bytes (`PIPE_BUF`).
const PIPE_WRITE_BYTES: usize = 4096;
/// The C library writes a message to standard error in pieces of this many bytes (glibc 2.37 and later:
/// `Xprintf_buffer_to_file`).
const LIBC_WRITE_BYTES: usize = 128;

/// Whether a line begins a message or may continue one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The line begins a message.
    Message,
    /// The line may continue the previous message, and so may be a user's text.
    Continuation,
}

/// Splits a byte stream into lines, or the writes to a pipe in packet mode into messages.
#[derive(Debug, Default)]
pub struct LineSplitter {
    partial: Vec<u8>,
    /// How many bytes of the message were dropped.
    dropped: usize,
    /// Whether the last write ended with a newline and may have been only a piece of its message.
    is_ambiguous: bool,
}

impl LineSplitter {
    /// Adds bytes and passes each complete line, without its newline, to `line`. Passes a line that is too long in pieces.
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
        if self.partial.len() >= MAX_LINE_BYTES {
            line(&std::mem::take(&mut self.partial));
        }
    }

    /// Adds the bytes of one write, or a piece of it. Only a newline at the end of the write ends the message; an earlier one is part of
    /// the text. A kernel piece of full length continues in the next piece. A C library piece of full length that ends with a newline may
    /// or may not end its message, so the text after it is an [`Origin::Continuation`].
    pub fn push_write(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8], Origin)) {
        let is_message_end = bytes.len() < PIPE_WRITE_BYTES && bytes.ends_with(b"\n");
        let text = bytes.iter().rposition(|byte| *byte != b'\n').map_or(0, |last| last + 1);
        let new = if is_message_end { bytes.get(..text).unwrap_or_default() } else { bytes };
        let (kept, rest) = new.split_at(new.len().min(MAX_MESSAGE_BYTES.saturating_sub(self.partial.len())));
        self.partial.extend_from_slice(kept);
        self.dropped += rest.len();
        if is_message_end {
            let origin = if self.is_ambiguous { Origin::Continuation } else { Origin::Message };
            let mut message = std::mem::take(&mut self.partial);
            let is_report = origin == Origin::Message && message.first() == Some(&RECORD);
            let kept = if is_report { message.len() } else { logged_bytes(&message) };
            match std::mem::take(&mut self.dropped) + message.len() - kept {
                0 => {}
                dropped => {
                    message.truncate(kept);
                    message.extend_from_slice(format!("... ({dropped} more bytes)").as_bytes());
                }
            }
            line(&message, origin);
            self.is_ambiguous = bytes.len() == LIBC_WRITE_BYTES;
        }
    }

    /// Passes on text without a final newline, at the end of the stream.
    pub fn finish(&mut self, line: impl FnOnce(&[u8])) {
        if !self.partial.is_empty() {
            line(&std::mem::take(&mut self.partial));
        }
    }
}

/// How many bytes of a text are logged. Each byte counts as many bytes as it can need in the log, with escape sequences.
fn logged_bytes(text: &[u8]) -> usize {
    let mut left = MAX_TEXT_BYTES;
    let mut fits = |byte: &u8| {
        let cost = match byte {
            b'"' | b'\\' => 2,
            b' '..=b'~' => 1,
            0x80.. => 4,
            _ => 6,
        };
        let rest = left.checked_sub(cost);
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    text.iter().position(|byte| !fits(byte)).unwrap_or(text.len())
}

/// The level of a daemon's log line, and its message without the daemon's name, the time and the level's prefix: `slurmd: error: no` is an
/// error with the message `no`. Without a prefix the level is `info`. Slurm's prefixes are from `src/common/log.c`, munge's from
/// `src/libcommon/log.c`. If harmless.txt lists the line for these circumstances, the level is at most `debug`.
pub fn parse_daemon_line<'a>(name: &str, line: &'a [u8], circumstances: &Circumstances) -> (Level, &'a [u8]) {
    let name = program(name);
    let line = without_name(name, line.strip_suffix(b"\r").unwrap_or(line));
    let line = if name == DaemonName::Mariadbd.as_str() { without_time(line) } else { without_slurm_time(line) };
    const PREFIXES: [(&[u8], Level); 18] = [
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
        // mariadbd logs about thirty such lines at each start.
        (b"[Note] ", Level::Debug),
        (b"[Warning] ", Level::Warn),
        (b"[ERROR] ", Level::Error),
    ];
    let level =
        PREFIXES.iter().find_map(|(prefix, level)| Some((*level, line.strip_prefix(*prefix)?.trim_ascii_start())));
    let (level, message) = level.unwrap_or((Level::Info, line));
    let level = if level < Level::Debug && is_harmless(name, message, circumstances) { Level::Debug } else { level };
    (level, message)
}

/// The program's name: `slurmd` for `slurmd-2` of a simulated node.
fn program(name: &str) -> &str {
    let slurmd = DaemonName::Slurmd.as_str();
    let number = name.strip_prefix(slurmd).and_then(|rest| rest.strip_prefix('-'));
    if number.is_some_and(|number| number.parse::<u32>().is_ok()) { slurmd } else { name }
}

/// mariadbd begins its lines with a date, a time and a thread: `2026-11-23 15:22:59 0 [Note] text`.
fn without_time(line: &[u8]) -> &[u8] {
    let is_time_byte = |byte: &u8| byte.is_ascii_digit() || b"-: ".contains(byte);
    let start = line.iter().position(|byte| !is_time_byte(byte)).filter(|at| line[*at] == b'[');
    start.and_then(|at| line.get(at..)).unwrap_or(line)
}

/// From 25.11 on, Slurm's daemons begin their lines with a time unless they write to a terminal: `[2026-11-24T11:37:25.324] error: text`.
fn without_slurm_time(line: &[u8]) -> &[u8] {
    let is_time_byte = |byte: &u8| byte.is_ascii_digit() || b"-:.+TZ ".contains(byte);
    line.strip_prefix(b"[")
        .and_then(|rest| {
            let end = rest.iter().position(|byte| !is_time_byte(byte)).filter(|end| *end >= 10)?;
            rest.get(end..)?.strip_prefix(b"] ")
        })
        .unwrap_or(line)
}

/// The line without the daemon's name. slurmd writes `slurmd-NODE` if the node's name differs from the host's.
fn without_name<'a>(name: &str, line: &'a [u8]) -> &'a [u8] {
    let rest = line.strip_prefix(name.as_bytes()).and_then(|rest| {
        let end = rest.iter().position(|byte| *byte == b':')?;
        let (node, rest) = rest.split_at(end);
        (node.is_empty() || node.starts_with(b"-") && !node.contains(&b' ')).then_some(rest)
    });
    rest.and_then(|rest| rest.strip_prefix(b": ")).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_level_prefix_of_daemon_line() {
        let parse = |name: &str, line: &'static [u8]| parse_daemon_line(name, line, &Circumstances::default());
        assert_eq!(parse("slurmd", b"slurmd: error: no"), (Level::Error, &b"no"[..]));
        assert_eq!(parse("slurmd", b"slurmd: debug:  yes"), (Level::Debug, &b"yes"[..]));
        assert_eq!(parse("munged", b"munged: Notice:    Running"), (Level::Info, &b"Running"[..]));
        assert_eq!(parse("slurmd", b"slurmd-localhost: error: no"), (Level::Error, &b"no"[..]));
        assert_eq!(parse("slurmd", b"slurmd is: error: no").0, Level::Info);
        assert_eq!(parse("slurmd-12", b"slurmd-node12: error: no"), (Level::Error, &b"no"[..]));
        assert_eq!(parse("mariadbd", b"2026-11-23 15:22:59 0 [ERROR] InnoDB: no"), (Level::Error, &b"InnoDB: no"[..]));
        assert_eq!(parse("mariadbd", b"2026: no"), (Level::Info, &b"2026: no"[..]));
        let slurm_25_11 = b"[2026-11-24T11:37:31.382] error: _parse_next_key: no";
        assert_eq!(parse("slurmctld", slurm_25_11), (Level::Error, &b"_parse_next_key: no"[..]));
        assert_eq!(parse("slurmctld", b"[Nov 24] [2026-11-24] "), (Level::Info, &b"[Nov 24] [2026-11-24] "[..]));
        assert_eq!(parse("api", b"\xff error: no\r"), (Level::Info, &b"\xff error: no"[..]));
    }

    #[test]
    fn harmless_line_has_level_debug() {
        let line = b"slurmctld: error: Could not open job state file /var/job_state: No such file or directory";
        let level = |new_state| {
            let now = Circumstances { new_state, ..Circumstances::default() };
            parse_daemon_line("slurmctld", line, &now).0
        };
        assert_eq!((level(true), level(false)), (Level::Debug, Level::Error));
    }

    #[test]
    fn newline_inside_write_does_not_split_message() {
        let mut splitter = LineSplitter::default();
        let mut seen = Vec::new();
        let forged = [&[b'x'; PIPE_WRITE_BYTES - 1][..], b"\n"].concat();
        for write in [b"a: x\na: forged\n", &b"a: "[..], b"b\n\n", &forged, b"a: forged\n", b"\n"] {
            splitter.push_write(write, |line, origin| {
                assert_eq!(origin, Origin::Message);
                seen.push(line.to_vec());
            });
        }
        let dropped = forged.len() + b"a: forged".len() - MAX_TEXT_BYTES;
        let long = [&forged[..MAX_TEXT_BYTES], format!("... ({dropped} more bytes)").as_bytes()].concat();
        assert_eq!(seen, [&b"a: x\na: forged"[..], b"a: b", &long, b""]);
    }

    #[test]
    fn truncates_long_message_and_counts_dropped_bytes() {
        let mut splitter = LineSplitter::default();
        let mut seen = Vec::new();
        for write in [&[b'x'; PIPE_WRITE_BYTES][..]; 300].into_iter().chain([&b"the end\n"[..], b"next\n"]) {
            splitter.push_write(write, |line, origin| seen.push((line.to_vec(), origin)));
        }
        let more = 300 * PIPE_WRITE_BYTES + 7 - MAX_TEXT_BYTES;
        let long = [&[b'x'; MAX_TEXT_BYTES][..], format!("... ({more} more bytes)").as_bytes()].concat();
        assert_eq!(seen, [(long, Origin::Message), (b"next".to_vec(), Origin::Message)]);
    }

    #[test]
    fn record_of_users_text_is_short_in_both_formats() {
        use super::super::Record;
        use model::log::LogFormat;
        let cases: [&[u8]; 6] = [b"x", b"\x01", b"\"", b"\xff", "\u{9b}".as_bytes(), "\u{202e}".as_bytes()];
        for text in cases {
            let mut splitter = LineSplitter::default();
            let write = [&text.repeat(8000 / text.len())[..PIPE_WRITE_BYTES - 2], b"\n"].concat();
            splitter.push_write(&write, |line, _| {
                for format in [LogFormat::Text, LogFormat::Json] {
                    let record = Record::line(Level::Info, "slurmctld", line).format(format, "");
                    assert!(record.len() < MAX_TEXT_BYTES + 150, "{} bytes from {text:?}", record.len());
                }
            });
        }
    }

    #[test]
    fn report_of_helper_is_not_truncated() {
        let mut splitter = LineSplitter::default();
        let report = [&[RECORD], &[b'x'; 2 * MAX_TEXT_BYTES][..]].concat();
        let mut lengths = Vec::new();
        splitter.push_write(&[&report[..], b"\n"].concat(), |line, _| lengths.push(line.len()));
        assert_eq!(lengths, [report.len()]);
    }

    proptest! {
        /// The C library writes a message in pieces, and a user's text can put a newline at the end of each.
        #[test]
        fn user_text_cannot_start_a_message(
            texts in proptest::collection::vec(("[a-z]{0,300}", "[a-z]{0,300}", 0..400_usize), 1..8),
        ) {
            let mut splitter = LineSplitter::default();
            for (before, after, offset) in texts {
                let mut text = format!("slurmctld: error: {before}{}{after}", "x".repeat(offset)).into_bytes();
                // A newline at the end of each piece, followed by a forged record.
                for end in (LIBC_WRITE_BYTES - 1..text.len()).step_by(LIBC_WRITE_BYTES) {
                    text[end] = b'\n';
                    for (byte, forged) in text[end + 1..].iter_mut().zip(b"slurmctld: sched: Allocate JobId=1_2(2)") {
                        *byte = *forged;
                    }
                }
                text.push(b'\n');
                let mut begun = 0;
                for piece in text.chunks(LIBC_WRITE_BYTES) {
                    splitter.push_write(piece, |line, origin| {
                        let is_forged = line.starts_with(b"slurmctld: sched: Allocate");
                        assert!(!is_forged || origin == Origin::Continuation);
                        begun += usize::from(origin == Origin::Message);
                    });
                }
                prop_assert!(begun <= 1, "one message, {begun} records");
            }
        }

        #[test]
        fn lines_do_not_depend_on_read_boundaries(
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

    #[test]
    fn line_without_end_is_split_at_4_mib() {
        let (mut splitter, mut lengths) = (LineSplitter::default(), Vec::new());
        let mib = vec![b'x'; 1024 * 1024];
        for bytes in [&mib[1..], &mib, &mib, &mib, b"x", b"y\n"] {
            splitter.push(bytes, |line| lengths.push(line.len()));
        }
        assert_eq!(lengths, [4 * mib.len(), 1]);
    }

    #[test]
    fn message_of_daemon_has_1_kib_and_report_16_kib() {
        let lengths = |start: &[u8]| {
            let (mut splitter, mut lengths) = (LineSplitter::default(), Vec::new());
            let first = [start, &[b'x'; PIPE_WRITE_BYTES]].concat();
            for write in [&first[..PIPE_WRITE_BYTES]; 5].into_iter().chain([&b"\n"[..]]) {
                splitter.push_write(write, |line, _| {
                    lengths.push(line.iter().take_while(|byte| **byte != b'.').count());
                });
            }
            lengths
        };
        assert_eq!(lengths(b""), [1024]);
        assert_eq!(lengths(&[RECORD]), [16 * 1024]);
    }
}
