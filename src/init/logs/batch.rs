//! Groups lines that arrived together: they share a timestamp and are written with as few system calls as possible.
//!
//! A daemon in trouble can write more than a hundred thousand lines per second. One system call per line would slow it
//! down.

use super::Logs;
use super::record::{self, Record};
use super::tail::{self, KEPT};
use model::log::{Level, LogFormat};

/// Lines of one source; [`Batch::end`] writes them.
#[derive(Debug)]
pub struct Batch<'a> {
    logs: &'a Logs,
    source: &'a str,
    time: String,
    /// The lines for the ring buffer, if this source has one.
    kept: Option<Vec<u8>>,
}

/// How much is collected for the ring buffer, plus at most one line.
const GATHERED: usize = KEPT as usize / 4;

impl<'a> Batch<'a> {
    pub(super) fn new(logs: &'a Logs, source: &'a str) -> Self {
        let kept = logs.tails().has(source).then(Vec::new);
        Self { logs, source, time: record::now(), kept }
    }

    /// Adds a line; never blocks.
    pub fn add(&mut self, level: Level, message: &[u8]) {
        self.push(&Record::line(level, self.source, message));
    }

    /// Adds a text that may belong to the message before it; never blocks.
    pub fn add_continuation(&mut self, text: &[u8]) {
        self.push(&Record { is_continuation: true, ..Record::line(Level::Info, self.source, text) });
    }

    /// Adds a line; never blocks.
    pub fn push(&mut self, record: &Record<'_>) {
        let Logs { shared } = self.logs;
        let level = record.level;
        let line = (level <= shared.level).then(|| record.format(shared.format, &self.time));
        if let Some(kept) = &mut self.kept {
            match &line {
                Some(line) if shared.format == LogFormat::Text => tail::cut(line, kept),
                // Otherwise one line per orphan would crowd out other lines.
                None if level >= Level::Trace => {}
                _ => tail::cut(&record.format(LogFormat::Text, &self.time), kept),
            }
            if kept.len() >= GATHERED {
                self.keep();
            }
        }
        if let Some(line) = line {
            self.logs.sink().push(line);
        }
    }

    /// Writes whatever can be written now.
    pub fn end(mut self) {
        self.keep();
        let mut sink = self.logs.sink();
        if !sink.flush() {
            self.logs.shared.has_backlog.notify_one();
        }
    }

    fn keep(&mut self) {
        if let Some(kept) = self.kept.as_mut().filter(|kept| !kept.is_empty()) {
            self.logs.tails().add(self.source, kept);
            kept.clear();
        }
    }
}
