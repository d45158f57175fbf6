//! Groups lines that arrived together: they share a timestamp and are written with as few system calls as possible.
//!
//! A daemon in trouble can write more than a hundred thousand lines per second. One system call per line would slow it
//! down.

use super::Logs;
use super::record::{self, Record};
use super::tail::{self, RING_BYTES};
use model::log::{Level, LogFormat};

/// Lines of one source; [`Batch::end`] writes them.
#[derive(Debug)]
pub struct Batch<'a> {
    logs: &'a Logs,
    source: &'a str,
    time: String,
    /// The lines for the ring buffer, if this source has one.
    ring_lines: Option<Vec<u8>>,
}

/// How many bytes are collected before they are written to the ring buffer. The last line may exceed this number.
const BATCH_BYTES: usize = RING_BYTES as usize / 4;

impl<'a> Batch<'a> {
    pub(super) fn new(logs: &'a Logs, source: &'a str) -> Self {
        let ring_lines = logs.tails().has(source).then(Vec::new);
        Self { logs, source, time: record::now(), ring_lines }
    }

    /// Adds a line; never blocks.
    pub fn add(&mut self, level: Level, message: &[u8]) {
        self.push(&Record::line(level, self.source, message));
    }

    /// Adds text that may belong to the message before it; never blocks.
    pub fn add_continuation(&mut self, text: &[u8]) {
        self.push(&Record { is_continuation: true, ..Record::line(Level::Info, self.source, text) });
    }

    /// Adds a record; never blocks.
    pub fn push(&mut self, record: &Record<'_>) {
        let Logs { shared } = self.logs;
        let level = record.level;
        let line = (level <= shared.level).then(|| record.format(shared.format, &self.time));
        if let Some(ring_lines) = &mut self.ring_lines {
            match &line {
                Some(line) if shared.format == LogFormat::Text => tail::cut(line, ring_lines),
                // Trace lines that the log omits are not kept: one line per reaped orphan would crowd out other lines.
                None if level >= Level::Trace => {}
                _ => tail::cut(&record.format(LogFormat::Text, &self.time), ring_lines),
            }
            if ring_lines.len() >= BATCH_BYTES {
                self.write_to_ring();
            }
        }
        if let Some(line) = line {
            self.logs.sink().push(line);
        }
    }

    /// Writes as much as is possible without blocking.
    pub fn end(mut self) {
        self.write_to_ring();
        let mut sink = self.logs.sink();
        if !sink.flush() {
            self.logs.shared.has_backlog.notify_one();
        }
    }

    fn write_to_ring(&mut self) {
        if let Some(ring_lines) = self.ring_lines.as_mut().filter(|ring_lines| !ring_lines.is_empty()) {
            self.logs.tails().add(self.source, ring_lines);
            ring_lines.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_kept_in_batches_of_16_kib() {
        let logs = Logs::without_output(LogFormat::Text, Level::Info);
        logs.keep_last_lines(["slurmd".to_owned()].into_iter()).unwrap();
        let kept = || logs.last_lines("slurmd", 100).unwrap().len();
        let mut batch = logs.batch("slurmd");
        let mut sizes = Vec::new();
        for _ in 0..20 {
            batch.add(Level::Info, &[b'x'; 1000]);
            sizes.push(kept());
        }
        batch.end();
        let first = sizes.iter().position(|size| *size > 0).unwrap();
        assert!((14..17).contains(&first) && sizes[19] == sizes[first], "{sizes:?}");
        assert!(kept() > sizes[19]);
    }
}
