//! `[log]`: level and format of the log.

use serde::{Deserialize, Serialize};

/// The level and format of the log of slurminit, the daemons and the services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Text for people, or JSON for log collectors.
    pub format: LogFormat,
    /// The least severe level that is logged; `None` means `warn` with a CMD and `info` without.
    pub level: Option<Level>,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Readable lines: the time, the level, the source (such as `slurmd`) and the message.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Splits a line of `source` in the text format into its level and message; `None` for any other line.
pub fn split_text<'a>(line: &'a str, source: &str) -> Option<(&'a str, &'a str)> {
    let (_time, rest) = line.split_once(' ')?;
    let (level, rest) = rest.trim_start().split_once(' ')?;
    Some((level, rest.strip_prefix(source)?.strip_prefix(": ")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_only_lines_of_the_source() {
        let line = "12:00:00.000  WARN slurmd: no space: /tmp";
        assert_eq!(split_text(line, "slurmd"), Some(("WARN", "no space: /tmp")));
        for other in ["", "12:00:00.000", "12:00:00.000 WARN slurmd2: x", "12:00:00.000 WARN slurmctld: x"] {
            assert_eq!(split_text(other, "slurmd"), None, "{other}");
        }
    }
}
