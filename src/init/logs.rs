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

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::Receiver;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use model::log::{Level, LogFormat};
use sink::Sink;
use tail::{Tails, last_lines};

/// The source name of slurminit's own lines.
const OWN_NAME: &str = "slurminit";
/// The number of last lines reported of a failed daemon, and the maximum length of each.
const LAST_LINES: usize = 8;
const LAST_LINE_CHARS: usize = 400;

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
        let sink = Mutex::new(Sink::standard_error());
        let (tails, has_backlog) = (Mutex::default(), tokio::sync::Notify::new());
        let logs = Self { shared: Arc::new(Shared { format, level, sink, tails, has_backlog }) };
        // Installing a second subscriber is a bug. It costs log lines, but must not cost the container.
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

impl<S: tracing::Subscriber> Layer<S> for Logs {
    fn on_event(&self, event: &tracing::Event<'_>, _context: Context<'_, S>) {
        // Libraries also use tracing, but their internals do not concern an operator.
        if event.metadata().target().split("::").next() != Some(env!("CARGO_CRATE_NAME")) {
            return;
        }
        let mut message = Message::default();
        event.record(&mut message);
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warn,
            tracing::Level::INFO => Level::Info,
            tracing::Level::DEBUG => Level::Debug,
            tracing::Level::TRACE => Level::Trace,
        };
        let Message { text, kind, unit } = &message;
        let (kind, unit) = (kind.as_deref(), unit.as_deref());
        self.write(&Record { level, source: OWN_NAME, message: text.as_bytes(), kind, unit, is_continuation: false });
    }
}

/// The text of an event: its message, then the fields but `kind` and `unit` as `name=value`.
#[derive(Default)]
struct Message {
    text: String,
    kind: Option<String>,
    unit: Option<String>,
}

impl Visit for Message {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "kind" => self.kind = Some(value.to_owned()),
            "unit" => self.unit = Some(value.to_owned()),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.text, "{value:?}"),
            name => write!(self.text, " {name}={value:?}"),
        };
    }
}
