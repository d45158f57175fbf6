//! Messages of the log: a constant text with placeholders, and the data for them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::log::Level;

/// A message, created by [`message!`](crate::message!). A log collector groups by `kind` or `template`, people read `text`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The event, such as `unit-died`. Stable across releases.
    pub kind: Cow<'static, str>,
    /// The constant text, with the names of the fields in braces.
    pub template: Cow<'static, str>,
    /// The data by name.
    pub fields: BTreeMap<Cow<'static, str>, String>,
    /// The template with its data.
    pub text: String,
}

/// Creates a [`Message`] of a kind: `message!("unit-died", "{name} {exit}", name = name, exit = exit)`. A placeholder without a field, or a field
/// without a placeholder, does not compile.
#[macro_export]
macro_rules! message {
    // The value of a field without an expression is the variable of the same name.
    (@value $name:ident) => { $name };
    (@value $name:ident $value:expr) => { $value };
    ($kind:expr, $template:literal $(, $name:ident $(= $value:expr)?)* $(,)?) => {
        match ($(&$crate::message!(@value $name $($value)?),)*) {
            ($($name,)*) => $crate::message::Message {
                kind: $kind.into(),
                template: $template.into(),
                fields: [$((stringify!($name).into(), ::std::string::ToString::to_string($name))),*].into(),
                // In the output of `concat!`, a placeholder cannot capture a variable that is not a field.
                text: ::std::fmt::format(format_args!(concat!($template), $($name = $name),*)),
            },
        }
    };
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Message {}

/// A message that a helper sends to PID 1: on standard error, as [`RECORD`] followed by this type as JSON; from the Epilog, in a request to the
/// control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The severity.
    pub level: Level,
    /// What happened.
    pub message: Message,
}

impl Report {
    /// An informational message.
    pub fn info(message: Message) -> Self {
        Self { level: Level::Info, message }
    }

    /// A warning.
    pub fn warn(message: Message) -> Self {
        Self { level: Level::Warn, message }
    }

    /// An error.
    pub fn error(message: Message) -> Self {
        Self { level: Level::Error, message }
    }

    /// The report with at most `max_chars` characters of text, and without fields.
    pub fn truncated(mut self, max_chars: usize) -> Self {
        self.message.text = self.message.text.chars().take(max_chars).collect();
        self.message.fields.clear();
        self
    }
}

/// The first byte of a line that contains a [`Report`]: RFC 7464's record separator. A report cannot contain it, because JSON escapes control
/// characters. A line of only this byte ends the reports.
pub const RECORD: u8 = 0x1e;

/// The variable with which PID 1 requests reports instead of text from its helpers.
pub const REPORTS: &str = "SLURMINIT_REPORTS";

#[cfg(test)]
mod tests {
    use super::Report;
    use crate::log::Level;

    #[test]
    fn truncated_report_keeps_level_and_beginning() {
        let message = || message!("job-lost", "job {job} is löst", job = 7);
        for (report, level) in [
            (Report::info(message()), Level::Info),
            (Report::warn(message()), Level::Warn),
            (Report::error(message()), Level::Error),
        ] {
            let truncated = report.truncated(10);
            assert_eq!((truncated.level, truncated.message.to_string().as_str()), (level, "job 7 is l"));
            assert!(truncated.message.fields.is_empty() && truncated.message.kind == "job-lost");
        }
    }

    #[test]
    fn only_text_contains_field_values() {
        let (job, why) = (7, "no space");
        let message = message!("job-lost", "job {job} is lost: {why}", job = job, why = why.to_owned());
        assert_eq!(message.template, "job {job} is lost: {why}");
        assert_eq!(message.text, "job 7 is lost: no space");
        assert_eq!(message.fields["job"], "7");
        assert!(message!("ready", "ready").fields.is_empty());
    }
}
