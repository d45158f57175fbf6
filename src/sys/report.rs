//! Messages of the programs that PID 1 runs: structured reports for its log, or plain text if a person runs the program.

use std::io::Write as _;
use std::process::Command;

use model::log::Level;
use model::message::{Message, RECORD, REPORTS, Report};
use model::printable;

/// Logs information.
pub fn info(message: Message) {
    write(Level::Info, message);
}

/// Logs a warning.
pub fn warn(message: Message) {
    write(Level::Warn, message);
}

/// Logs an error.
pub fn error(message: Message) {
    write(Level::Error, message);
}

/// Logs a message.
pub fn write(level: Level, message: Message) {
    let line = match std::env::var_os(REPORTS) {
        Some(_) => {
            let report = serde_json::to_string(&Report { level, message }).unwrap_or_default();
            format!("{}{report}\n", char::from(RECORD))
        }
        None => {
            let word = match level {
                Level::Error => "error: ",
                Level::Warn => "warning: ",
                Level::Debug => "debug: ",
                _ => "",
            };
            format!("{word}{}\n", printable::line(&message.text))
        }
    };
    // One write, so that lines of threads do not mix.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Reports why this program fails: for a person as `slurminit: ...`, in the log as information, because PID 1 logs the failure itself.
pub fn fail(message: Message) {
    match std::env::var_os(REPORTS) {
        Some(_) => info(message),
        None => {
            let _ = writeln!(std::io::stderr(), "slurminit: {}", printable::lines(&message.text));
        }
    }
}

/// Ends the reports before this process becomes another program, whose lines are not trusted.
pub fn end(program: &mut Command) -> &mut Command {
    if std::env::var_os(REPORTS).is_some() {
        let _ = std::io::stderr().write_all(&[RECORD, b'\n']);
    }
    program.env_remove(REPORTS)
}
