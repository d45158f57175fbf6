//! The log on standard error: slurminit's own messages and the daemons' lines, as text or JSON.
//!
//! A reader that stops reading never stops slurminit. What does not fit into the pipe waits in a bounded buffer. When
//! that is full, lines are dropped and counted, and the count is logged as soon as there is room. Standard output
//! belongs to CMD.

mod batch;
mod harmless;
mod line;
mod record;
mod sink;
mod tail;

pub use batch::Batch;
pub use harmless::Circumstances;
pub use line::{LineSplitter, Origin, parse_daemon_line};
pub use record::{Record, split_text};

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::mpsc::Receiver;

use model::log::{Level, LogFormat};
use model::message::Message;
use sink::Sink;
use tail::{Tails, last_lines};

/// The source name of slurminit's own lines.
const OWN_NAME: &str = "slurminit";
/// The number of last lines reported of a failed daemon, and the maximum length of each.
const LAST_LINES: usize = 8;
const LAST_LINE_CHARS: usize = 400;

static LOGS: OnceLock<Logs> = OnceLock::new();

/// Logs a message of slurminit, which may be about a daemon or service. Before [`Logs::install`] there is no log.
pub fn report(level: Level, unit: Option<&str>, message: &Message) {
    if let Some(logs) = LOGS.get() {
        logs.write(&Record::own(level, OWN_NAME, unit, message));
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
    /// Opens the log, for [`report`] and for the output of children.
    pub fn install(format: LogFormat, level: Level) -> Self {
        let sink = Mutex::new(Sink::standard_error(format));
        let (tails, has_backlog) = (Mutex::default(), tokio::sync::Notify::new());
        let logs = Self { shared: Arc::new(Shared { format, level, sink, tails, has_backlog }) };
        LOGS.get_or_init(|| logs).clone()
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

    /// Writes the backlog as fast as the reader takes it; runs as a task for as long as slurminit lives.
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

    /// Gives the reader a short time to take what is left, and reports how much was lost.
    pub fn finish(&self) {
        self.sink().finish();
    }

    /// From now on keeps the last lines of slurminit and of these names, whatever the log's level and format.
    ///
    /// # Errors
    /// The kernel cannot create a memfd.
    pub fn keep(&self, names: impl Iterator<Item = String>) -> std::io::Result<()> {
        self.tails().keep(std::iter::once(OWN_NAME.to_owned()).chain(names))
    }

    /// The last `count` lines of `name`, as text; `None` if none are kept.
    pub fn last_lines(&self, name: &str, count: usize) -> Option<Vec<u8>> {
        let tails = self.tails();
        tails.has(name).then(|| last_lines(&tails.read(name, false), count).to_vec())
    }

    /// The last `count` lines of `name`, then each new one; `None` if none are kept.
    pub fn follow(&self, name: &str, count: usize) -> Option<(Vec<u8>, Receiver<Vec<u8>>)> {
        let mut tails = self.tails();
        let news = tails.follow(name)?;
        Some((last_lines(&tails.read(name, false), count).to_vec(), news))
    }

    /// A new process with this name begins.
    pub fn begin(&self, name: &str) {
        self.tails().begin(name);
    }

    /// The final lines of the last process with this name, without its debug output.
    pub fn lines_of_last_run(&self, name: &str) -> Vec<String> {
        let text = self.tails().read(name, true);
        let text = String::from_utf8_lossy(&text);
        let said = text.lines().rev().filter_map(|line| split_text(line, name));
        let said = said.filter(|(level, _)| !matches!(*level, "debug" | "trace"));
        let mut lines: Vec<_> =
            said.take(LAST_LINES).map(|(_, message)| message.chars().take(LAST_LINE_CHARS).collect()).collect();
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
