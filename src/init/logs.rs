//! The log on standard error: slurminit's own messages and the daemons' lines, as text or JSON.
//!
//! A reader that stops reading never stops slurminit. Lines that do not fit into the pipe wait in a bounded buffer. When the buffer is full, further
//! lines are dropped and counted. Their number precedes the next line after the buffer has become empty. Standard output belongs to CMD.

mod batch;
mod harmless;
mod line;
mod record;
mod sink;
mod tail;

pub use batch::Batch;
pub use harmless::Circumstances;
pub use line::{LineSplitter, Origin, parse_daemon_line};
pub use record::Record;

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::Receiver;
use tracing::field::{Field, Visit};
use tracing::{debug, error, info, trace};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use model::log::{Level, LogFormat, split_text};
use model::message::Message;
use sink::Sink;
use tail::{Tails, last_lines};

/// The source name of slurminit's own lines.
pub(crate) const OWN_NAME: &str = "slurminit";
/// How many of a failed daemon's or service's last lines are reported, and the maximum length of each line in characters.
const LAST_LINES: usize = 8;
const LAST_LINE_CHARS: usize = 400;

/// Logs a message of slurminit, which may be about a daemon or service. Before [`Logs::install`] the message is discarded.
pub fn report(level: Level, unit: Option<&str>, message: &Message) {
    // tracing preserves a custom type only for a value of type `dyn Error`, which `Line::record_error` downcasts.
    let message: &(dyn Error + 'static) = message;
    match level {
        Level::Error => error!(unit, message),
        Level::Warn => tracing::warn!(unit, message),
        Level::Info => info!(unit, message),
        Level::Debug => debug!(unit, message),
        Level::Trace => trace!(unit, message),
    }
}

/// Logs a warning of slurminit.
pub fn warn(message: &Message) {
    report(Level::Warn, None, message);
}

/// The destination of all log lines.
#[derive(Clone, Debug)]
pub struct Logs {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    format: LogFormat,
    level: Level,
    sink: Mutex<Sink>,
    tails: Mutex<Tails>,
    has_backlog: tokio::sync::Notify,
}

impl Logs {
    /// Opens the log and installs it as the subscriber of `tracing`.
    pub fn install(format: LogFormat, level: Level) -> Self {
        let sink = Mutex::new(Sink::standard_error(format));
        let (tails, has_backlog) = (Mutex::default(), tokio::sync::Notify::new());
        let logs = Self { shared: Arc::new(Shared { format, level, sink, tails, has_backlog }) };
        // Installing a second subscriber is a bug. It loses log lines, but must not stop the container.
        let _ = tracing_subscriber::registry().with(logs.clone()).try_init();
        logs
    }

    /// Writes a line or queues it; never blocks.
    pub fn write(&self, record: &Record<'_>) {
        let mut batch = self.batch(record.source);
        batch.push(record);
        batch.end();
    }

    /// Begins a batch of lines of `source` that arrived together.
    pub fn batch<'a>(&'a self, source: &'a str) -> Batch<'a> {
        Batch::new(self, source)
    }

    /// Writes the backlog as fast as the reader takes it; runs as a task for as long as slurminit lives. Returns at once if standard error is a
    /// file, which never blocks.
    pub async fn drain(self) {
        let Some(writable) = self.sink().readiness() else { return };
        loop {
            self.shared.has_backlog.notified().await;
            while self.sink().has_backlog() {
                match writable.writable().await {
                    Ok(mut guard) => {
                        if !self.sink().flush() {
                            guard.clear_ready();
                        }
                    }
                    Err(_) => return,
                }
            }
        }
    }

    /// Writes the remaining lines, and waits a short time for the reader to read them.
    pub fn finish(&self) {
        self.sink().finish();
    }

    /// Starts to keep the last lines of slurminit and of the sources with these names, as text. Lines below the log's level are kept
    /// too, except those of level `trace`.
    ///
    /// # Errors
    /// The kernel cannot create a memfd.
    pub fn keep_last_lines(&self, names: impl Iterator<Item = String>) -> std::io::Result<()> {
        self.tails().create_rings(std::iter::once(OWN_NAME.to_owned()).chain(names))
    }

    /// At most the last `count` lines of `name`, as text; `None` if the lines of this name are not kept.
    pub fn last_lines(&self, name: &str, count: usize) -> Option<Vec<u8>> {
        let tails = self.tails();
        tails.has(name).then(|| last_lines(&tails.read(name, false), count).to_vec())
    }

    /// At most the last `count` lines of `name`, and a channel that receives new lines; `None` if the lines of this name are not kept.
    pub fn follow(&self, name: &str, count: usize) -> Option<(Vec<u8>, Receiver<Vec<u8>>)> {
        let mut tails = self.tails();
        let new_lines = tails.follow(name)?;
        Some((last_lines(&tails.read(name, false), count).to_vec(), new_lines))
    }

    /// Marks the start of a new process with this name.
    pub fn begin_process(&self, name: &str) {
        self.tails().begin_process(name);
    }

    /// The final lines of the last process with this name, without its debug output.
    pub fn lines_of_last_run(&self, name: &str) -> Vec<String> {
        let text = self.tails().read(name, true);
        let text = String::from_utf8_lossy(&text);
        let messages = text.lines().rev().filter_map(|line| split_text(line, name));
        let messages = messages.filter(|(level, _)| !matches!(*level, "debug" | "trace"));
        let mut lines: Vec<_> =
            messages.take(LAST_LINES).map(|(_, message)| message.chars().take(LAST_LINE_CHARS).collect()).collect();
        lines.reverse();
        lines
    }

    fn tails(&self) -> MutexGuard<'_, Tails> {
        self.shared.tails.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sink(&self) -> MutexGuard<'_, Sink> {
        self.shared.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: tracing::Subscriber> Layer<S> for Logs {
    /// Libraries also use tracing, but their events have no [`Message`].
    fn on_event(&self, event: &tracing::Event<'_>, _context: Context<'_, S>) {
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warn,
            tracing::Level::INFO => Level::Info,
            tracing::Level::DEBUG => Level::Debug,
            tracing::Level::TRACE => Level::Trace,
        };
        event.record(&mut Line { logs: self, level, unit: None });
    }
}

/// Writes an event of [`report`] as a line of the log. `tracing` passes the event's unit before its message.
struct Line<'a> {
    logs: &'a Logs,
    level: Level,
    unit: Option<String>,
}

impl Visit for Line<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "unit" {
            self.unit = Some(value.to_owned());
        }
    }

    fn record_error(&mut self, _: &Field, value: &(dyn Error + 'static)) {
        if let Some(message) = value.downcast_ref::<Message>() {
            self.logs.write(&Record::own(self.level, OWN_NAME, self.unit.as_deref(), message));
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

#[cfg(test)]
impl Logs {
    /// A log that is not written.
    pub(crate) fn without_output(format: LogFormat, level: Level) -> Self {
        let (sink, has_backlog) = (Mutex::new(Sink::without_output(format)), tokio::sync::Notify::new());
        Self { shared: Arc::new(Shared { format, level, sink, tails: Mutex::default(), has_backlog }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(format: LogFormat, level: Level) -> Logs {
        let logs = Logs::without_output(format, level);
        logs.keep_last_lines(["slurmd".to_owned()].into_iter()).unwrap();
        logs
    }

    fn write(logs: &Logs, level: Level, texts: &[&str]) {
        texts.iter().for_each(|text| logs.write(&Record::line(level, "slurmd", text.as_bytes())));
    }

    #[test]
    fn keeps_last_lines_in_any_format_except_hidden_traces() {
        for format in [LogFormat::Text, LogFormat::Json] {
            for (log_level, count) in [(Level::Info, 2), (Level::Trace, 3)] {
                let logs = logs(format, log_level);
                write(&logs, Level::Info, &["first"]);
                write(&logs, Level::Debug, &["second"]);
                write(&logs, Level::Trace, &["third"]);
                let kept = String::from_utf8(logs.last_lines("slurmd", 9).unwrap()).unwrap();
                let texts: Vec<_> =
                    kept.lines().filter_map(|line| split_text(line, "slurmd")).map(|line| line.1).collect();
                assert_eq!(texts, ["first", "second", "third"][..count], "{format:?} {log_level:?}");
                assert_eq!(logs.last_lines("slurmctld", 9), None);
            }
        }
    }

    #[test]
    fn continuation_is_kept_with_its_message() {
        let logs = logs(LogFormat::Text, Level::Info);
        let mut batch = logs.batch("slurmd");
        batch.add(Level::Warn, b"first");
        batch.add_continuation(b"second");
        batch.end();
        let kept = String::from_utf8(logs.last_lines("slurmd", 9).unwrap()).unwrap();
        let texts: Vec<_> = kept.lines().filter_map(|line| split_text(line, "slurmd")).collect();
        assert_eq!(texts, [("warn", "first"), ("info", "(continued) second")]);
    }

    #[test]
    fn large_batch_is_kept_like_single_lines() {
        let logs = logs(LogFormat::Text, Level::Info);
        let mut batch = logs.batch("slurmd");
        (0..100).for_each(|number| batch.add(Level::Info, format!("{number} {}", "x".repeat(1000)).as_bytes()));
        batch.end();
        let kept = String::from_utf8(logs.last_lines("slurmd", 40).unwrap()).unwrap();
        let numbers =
            kept.lines().filter_map(|line| split_text(line, "slurmd")?.1.split(' ').next()?.parse::<u32>().ok());
        assert_eq!(numbers.collect::<Vec<_>>(), (60..100).collect::<Vec<_>>());
    }

    #[test]
    fn lines_of_last_run_are_those_of_last_process_without_debug_output() {
        let logs = logs(LogFormat::Text, Level::Info);
        write(&logs, Level::Error, &["of an earlier process"]);
        logs.begin_process("slurmd");
        write(&logs, Level::Info, &["0", "1", "2", "3", "4", "5", "6", "7", "8"]);
        write(&logs, Level::Debug, &["debug"]);
        assert_eq!(logs.lines_of_last_run("slurmd"), ["1", "2", "3", "4", "5", "6", "7", "8"]);
        logs.begin_process("slurmd");
        assert_eq!(logs.lines_of_last_run("slurmd"), [""; 0]);
        write(&logs, Level::Error, &["x".repeat(500).as_str()]);
        assert_eq!(logs.lines_of_last_run("slurmd"), ["x".repeat(LAST_LINE_CHARS)]);
    }
}
