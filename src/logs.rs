//! The log: slurminit's own messages and the daemons' lines, on standard error, as text or JSON.
//!
//! A reader that stops reading never stops slurminit: what does not fit the pipe waits in a bounded buffer, then lines
//! are dropped and counted, and the count is the first thing said when there is room again. Standard output belongs to
//! CMD.

mod line;
mod record;
mod sink;

pub use line::{LineSplitter, parse_daemon_line};
pub use record::Record;

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::{Level, LogFormat};
use sink::Sink;

/// Where every log line goes.
#[derive(Clone, Debug)]
pub struct Logs {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    format: LogFormat,
    level: Level,
    sink: Mutex<Sink>,
    has_backlog: tokio::sync::Notify,
}

impl Logs {
    /// Opens the log and makes it the destination of `tracing`.
    pub fn install(format: LogFormat, level: Level) -> Self {
        let sink = Mutex::new(Sink::standard_error());
        let logs = Self { shared: Arc::new(Shared { format, level, sink, has_backlog: tokio::sync::Notify::new() }) };
        // A second subscriber in one process is a mistake of ours that costs log lines, and must not cost the container.
        let _ = tracing_subscriber::registry().with(logs.clone()).try_init();
        logs
    }

    /// Writes one line, or keeps it for later; never waits.
    pub fn write(&self, record: &Record<'_>) {
        if record.level > self.shared.level {
            return;
        }
        let mut sink = self.sink();
        sink.push(record.format(self.shared.format));
        if sink.has_backlog() {
            self.shared.has_backlog.notify_one();
        }
    }

    /// Writes the backlog as the reader takes it; runs beside the loop for as long as slurminit lives.
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

    /// Gives the reader a last short time to take what is left, and says how much it did not take.
    pub fn finish(&self) {
        self.sink().finish();
    }

    fn sink(&self) -> MutexGuard<'_, Sink> {
        self.shared.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: tracing::Subscriber> Layer<S> for Logs {
    fn on_event(&self, event: &tracing::Event<'_>, _context: Context<'_, S>) {
        // Libraries speak through tracing too; their inner life is no news for an operator.
        if !event.metadata().target().starts_with("slurminit") {
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
        self.write(&Record { level, source: "slurminit", message: message.0.as_bytes() });
    }
}

/// The text of an event: its message, then its other fields as `name=value`.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
