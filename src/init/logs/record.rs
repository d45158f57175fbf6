//! Formats a log line.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use model::log::{Level, LogFormat};
use model::message::Message;
use model::printable;

/// A log line.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The severity.
    pub level: Level,
    /// The source: a daemon, a service, `slurminit`, or a program that it runs, such as `hook-1` or `jobs`.
    pub source: &'a str,
    /// The text; can contain any bytes.
    pub text: &'a [u8],
    /// Kind, template and fields of slurminit's own messages, for the JSON format.
    pub message: Option<&'a Message>,
    /// What the message is about: a daemon, a service, or `the command`.
    pub unit: Option<&'a str>,
    /// Whether the text may continue the previous message. If so, its level and source are not reliable.
    pub is_continuation: bool,
}

/// The prefix of a continuation in the text format.
const CONTINUATION_PREFIX: &str = "(continued) ";

#[derive(Serialize)]
struct Json<'a> {
    time: &'a str,
    level: &'a str,
    source: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    continued: bool,
    /// For slurminit's own messages, the constant part: the data, if any, are in `fields`, and `text` then combines both.
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    fields: Option<&'a BTreeMap<Cow<'static, str>, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
}

impl<'a> Record<'a> {
    /// A line of a daemon or service.
    pub fn line(level: Level, source: &'a str, text: &'a [u8]) -> Self {
        Self { level, source, text, message: None, unit: None, is_continuation: false }
    }

    /// A message of slurminit, or of a helper with its own name.
    pub fn own(level: Level, source: &'a str, unit: Option<&'a str>, message: &'a Message) -> Self {
        Self { level, source, text: message.text.as_bytes(), message: Some(message), unit, is_continuation: false }
    }

    /// The line with its newline.
    pub fn format(&self, format: LogFormat, time: &str) -> Vec<u8> {
        let level = match self.level {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
            Level::Trace => "trace",
        };
        let mut line = match format {
            LogFormat::Text => {
                let mut line = Vec::with_capacity(time.len() + self.source.len() + self.text.len() + 16);
                let mark = if self.is_continuation { CONTINUATION_PREFIX } else { "" };
                for part in [time, &"      "[level.len()..], level, " ", self.source, ": ", mark] {
                    line.extend_from_slice(part.as_bytes());
                }
                printable::push(&mut line, self.text);
                line
            }
            LogFormat::Json => {
                let text = String::from_utf8_lossy(self.text);
                let Self { source, unit, is_continuation: continued, .. } = *self;
                let (kind, message) = self.message.map_or((None, &*text), |own| (Some(&*own.kind), &*own.template));
                let fields = self.message.map(|own| &own.fields).filter(|fields| !fields.is_empty());
                let text = fields.map(|_| &*text);
                let json = Json { time, level, source, kind, unit, continued, message, fields, text };
                printable::json(&serde_json::to_string(&json).unwrap_or_default()).into_owned().into_bytes()
            }
        };
        line.push(b'\n');
        line
    }
}

/// The current time in the log's format.
pub(super) fn now() -> String {
    let mut time = String::with_capacity(32);
    // Writing to a String cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    time
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::log::split_text;

    #[test]
    fn no_control_character_reaches_terminal() {
        let message = "a\x1b[2Jb\u{9b}\u{202e}c\n".as_bytes();
        let record = Record::line(Level::Info, "slurmd", message);
        let line = String::from_utf8(record.format(LogFormat::Text, &now())).unwrap();
        assert!(line.ends_with(" info slurmd: a\\x1b[2Jb\\u{9b}\\u{202e}c\\x0a\n"), "{line}");
        let line = String::from_utf8(record.format(LogFormat::Json, &now())).unwrap();
        assert!(line.contains("a\\u001b[2Jb\\u009b\\u202ec\\n"), "{line}");
    }

    #[test]
    fn parses_its_own_text_line() {
        for (level, word) in [(Level::Info, "info"), (Level::Error, "error")] {
            let line = Record::line(level, "slurmd", b"a: b ").format(LogFormat::Text, &now());
            let line = String::from_utf8(line).unwrap();
            assert_eq!(split_text(line.trim_end_matches('\n'), "slurmd"), Some((word, "a: b ")));
        }
        assert_eq!(split_text("", "slurmd"), None);
    }

    #[test]
    fn json_output_is_one_object_per_line() {
        let record = Record::line(Level::Error, "munged", b"say \"no\"\n\xff");
        let line = record.format(LogFormat::Json, &now());
        let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(value["message"], "say \"no\"\n\u{fffd}");
        assert_eq!(value["source"], "munged");
        assert_eq!((value.get("kind"), value.get("unit")), (None, None));
        assert_eq!((value.get("fields"), value.get("text")), (None, None));
        let message = model::message!("unit-died", "{name} died", name = "slurmd");
        let own = Record::own(Level::Warn, "slurminit", Some("slurmd"), &message);
        let value: serde_json::Value = serde_json::from_slice(&own.format(LogFormat::Json, "")).unwrap();
        let expected = serde_json::json!({
            "time": "", "level": "warn", "source": "slurminit", "kind": "unit-died", "unit": "slurmd",
            "message": "{name} died", "fields": { "name": "slurmd" }, "text": "slurmd died",
        });
        assert_eq!(value, expected);
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
    }
}
