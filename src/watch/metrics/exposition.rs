//! Prometheus's text format, version 0.0.4.
//!
//! Each family with a series has HELP and TYPE; each series occurs once; a value that is missing or not finite is left out.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use model::printable;

/// The type of a family's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Monotonic; resets on restart.
    Counter,
    /// May increase and decrease.
    Gauge,
    /// Has a name, fixed by another exporter, that suggests the wrong type: for example, a gauge whose name ends in `_total`.
    Untyped,
}

/// A family of series.
#[derive(Debug)]
pub(super) struct Family {
    name: String,
    kind: Kind,
    help: &'static str,
    series: BTreeSet<String>,
    lines: String,
}

/// The longest value of a label, in characters.
const LONGEST: usize = 200;

impl Family {
    /// A family without series.
    pub(super) fn new(name: impl Into<String>, kind: Kind, help: &'static str) -> Self {
        Self { name: name.into(), kind, help, series: BTreeSet::new(), lines: String::new() }
    }

    /// Adds a series, unless the value is missing or the family has a series with these labels. Empty labels are left out, which is
    /// equivalent for Prometheus.
    pub(super) fn add(&mut self, labels: &[(&str, &str)], value: impl Into<Value>) {
        let Value(Some(value)) = value.into() else { return };
        let mut text = String::new();
        for (name, value) in labels.iter().filter(|(_, value)| !value.is_empty()) {
            let comma = if text.is_empty() { "" } else { "," };
            // Writing to a String cannot fail.
            let _ = write!(text, "{comma}{name}=\"{}\"", escaped(value));
        }
        let labels = if text.is_empty() { text } else { format!("{{{text}}}") };
        if self.series.insert(labels.clone()) {
            let _ = writeln!(self.lines, "{}{labels} {value}", self.name);
        }
    }

    /// Adds a series and returns the family.
    pub(super) fn with(mut self, labels: &[(&str, &str)], value: impl Into<Value>) -> Self {
        self.add(labels, value);
        self
    }

    /// The family as text; empty without series.
    fn text(&self) -> String {
        let kind = match self.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Untyped => "untyped",
        };
        match self.lines.as_str() {
            "" => String::new(),
            lines => format!("# HELP {name} {}\n# TYPE {name} {kind}\n{lines}", self.help, name = self.name),
        }
    }
}

/// A value that may be missing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Value(Option<f64>);

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self(Some(value).filter(|value| value.is_finite()))
    }
}

impl From<u64> for Value {
    #[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
    fn from(value: u64) -> Self {
        Self(Some(value as f64))
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self(Some(f64::from(value)))
    }
}

impl From<bool> for Value {
    fn from(is: bool) -> Self {
        Self(Some(f64::from(u8::from(is))))
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self(None), Into::into)
    }
}

/// The families as text, in this order.
pub(super) fn text(families: &[Family]) -> String {
    families.iter().map(Family::text).collect()
}

fn escaped(value: &str) -> String {
    printable::short(value, LONGEST).replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_labels_and_omits_non_numbers() {
        let mut family = Family::new("x", Kind::Gauge, "A thing.");
        family.add(&[("user", "a\"b\\c\nd"), ("none", "")], 1.5);
        family.add(&[("user", "nan")], f64::NAN);
        family.add(&[("user", "inf")], f64::INFINITY);
        family.add(&[("user", "missing")], None::<u64>);
        family.add(&[("user", "twice")], 1_u64 << 40);
        family.add(&[("user", "twice")], 2_u64);
        let printed = text(&[
            family,
            Family::new("y", Kind::Counter, "Nothing."),
            Family::new("z", Kind::Counter, "One.").with(&[], true),
        ]);
        assert_eq!(
            printed,
            "# HELP x A thing.\n# TYPE x gauge\nx{user=\"a\\\"b\\\\c\\\\x0ad\"} 1.5\nx{user=\"twice\"} 1099511627776\n# HELP z One.\n# TYPE z counter\nz 1\n"
        );
    }
}
