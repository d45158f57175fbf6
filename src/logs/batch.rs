//! Lines that came together: one time for all, one write to the log for as many as it takes at once.
//!
//! A daemon in trouble writes more than a hundred thousand lines a second. With a system call for each, the daemon waits.

use super::Logs;
use super::record::{self, Record};
use super::tail::{self, KEPT};
use crate::config::{Level, LogFormat};

/// Lines of one source; they are written by [`Batch::end`].
#[derive(Debug)]
pub struct Batch<'a> {
    logs: &'a Logs,
    source: &'a str,
    time: String,
    /// What the ring gets, if this source has one.
    kept: Option<Vec<u8>>,
}

/// What is gathered for the ring at most, but for one line.
const GATHERED: usize = KEPT as usize / 4;

impl<'a> Batch<'a> {
    pub(super) fn new(logs: &'a Logs, source: &'a str) -> Self {
        let kept = logs.tails().has(source).then(Vec::new);
        Self { logs, source, time: record::now(), kept }
    }

    /// Takes one line; never waits.
    pub fn add(&mut self, level: Level, message: &[u8]) {
        let Logs { shared } = self.logs;
        let record = Record { level, source: self.source, message };
        let line = (level <= shared.level).then(|| record.format(shared.format, &self.time));
        if let Some(kept) = &mut self.kept {
            match &line {
                Some(line) if shared.format == LogFormat::Text => tail::cut(line, kept),
                // A line for each orphan would leave no place for others.
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

    /// Writes what can be written now.
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
