//! Configuration errors and their location.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use super::secret::{is_secret, printable_part};
use toml::de::{DeTable, DeValue};

/// An error in the configuration, with its location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct ConfigError {
    /// The location: a file (with line, column, key and the line's text, if known), an environment variable, an option or the token.
    pub place: String,
    /// The problem, and the expected value or the fix if there is one.
    pub what: String,
}

impl ConfigError {
    /// Adds the location to an error of serde or the TOML parser.
    pub(super) fn from_toml(error: &toml::de::Error, text: &str, origin: &Path) -> Self {
        let start = error.span().unwrap_or_default().start;
        let path = DeTable::parse(text).ok().and_then(|table| path_in_table(table.get_ref(), start));
        let key = key(&path.unwrap_or_default());
        // The error message for a webhook's URL does not quote the URL.
        let what = match is_secret(&key) && !key.ends_with("url") {
            true => "invalid value (hidden, because it may be a secret)".to_owned(),
            false => error.message().replace('\n', "; "),
        };
        Self { place: place(text, origin, start, &key), what }
    }

    /// The error for a variable whose value is not allowed.
    pub(super) fn variable(name: &'static str, value: &str, expected: impl fmt::Display) -> Self {
        Self::invalid(format!("the environment variable {name}"), value, expected)
    }

    /// The error for an invalid value that does not come from the file.
    pub(super) fn invalid(place: impl Into<String>, value: &str, expected: impl fmt::Display) -> Self {
        Self { place: place.into(), what: format!("`{}` is not valid: {expected}", value.escape_default()) }
    }
}

/// An error that TOML and serde cannot detect, at a path of keys and indices.
#[derive(Debug, PartialEq, Eq)]
pub struct Fault {
    path: Vec<Step>,
    what: String,
}

/// A step down into a table or list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A key of a table.
    Key(Cow<'static, str>),
    /// An index into a list, counted from 0.
    Index(usize),
}

impl From<&'static str> for Step {
    fn from(key: &'static str) -> Self {
        Self::Key(key.into())
    }
}

impl From<String> for Step {
    fn from(key: String) -> Self {
        Self::Key(key.into())
    }
}

impl From<usize> for Step {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

impl Fault {
    /// An error at this path, which begins with a top-level key.
    pub fn new(path: Vec<Step>, what: String) -> Self {
        Self { path, what }
    }

    /// Adds the location: where the text sets the value at this path, or the beginning of the text if it does not.
    pub fn at(self, text: &str, origin: &Path) -> ConfigError {
        let start = find(&self.path, text);
        ConfigError { place: place(text, origin, start.unwrap_or(0), &key(&self.path)), what: self.what }
    }

    /// The problem, and the expected value or the fix if there is one.
    pub(super) fn what(&self) -> &str {
        &self.what
    }

    /// Whether the text sets the value at this path.
    pub(super) fn is_set(path: &[Step], text: &str) -> bool {
        find(path, text).is_some()
    }
}

/// The path as a key: `user[0].uid`.
fn key(path: &[Step]) -> String {
    path.iter().fold(String::new(), |key, step| match step {
        Step::Key(name) if key.is_empty() => name.to_string(),
        Step::Key(name) => format!("{key}.{name}"),
        Step::Index(index) => format!("{key}[{index}]"),
    })
}

/// The byte offset of the value at `path`; `None` if the text does not set it.
fn find(path: &[Step], text: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let (first, rest) = path.split_first()?;
    let Step::Key(first) = first else { return None };
    let mut value = table.get_ref().get(first.as_ref())?;
    for step in rest {
        value = match step {
            Step::Key(key) => value.get_ref().get(key.as_ref())?,
            Step::Index(index) => value.get_ref().get(*index)?,
        };
    }
    Some(value.span().start)
}

/// Finds a list inside a list, which no key accepts: the inner one was written in place of a table. serde would accept it and assign its
/// items to the table's keys, in the order of the keys.
pub(super) fn list_in_place_of_table(text: &str) -> Option<Fault> {
    let table = DeTable::parse(text).ok()?;
    let path = find_nested_list(table.get_ref())?;
    let names: Vec<&str> =
        path.iter().filter_map(|step| if let Step::Key(name) = step { Some(&**name) } else { None }).collect();
    let what = format!(
        "a list cannot contain another list; to write tables, use [[{}]] with one line per key",
        names.join(".")
    );
    Some(Fault::new(path, what))
}

fn find_nested_list(table: &DeTable<'_>) -> Option<Vec<Step>> {
    table.iter().find_map(|(key, value)| {
        let key = Step::from(key.get_ref().to_string());
        let rest = match value.get_ref() {
            DeValue::Table(table) => find_nested_list(table)?,
            DeValue::Array(items) => items.iter().enumerate().find_map(|(index, item)| match item.get_ref() {
                DeValue::Array(_) => Some(vec![index.into()]),
                DeValue::Table(table) => Some([vec![index.into()], find_nested_list(table)?].concat()),
                _ => None,
            })?,
            _ => return None,
        };
        Some([vec![key], rest].concat())
    })
}

/// The place of `offset`, with line and column counted from 1; `key` is empty if it is not known, for example in a file that is not TOML.
fn place(text: &str, origin: &Path, offset: usize, key: &str) -> String {
    let offset = (0..=offset.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let before = &text[..offset];
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line_text = printable_part(text[start..].lines().next().unwrap_or_default().trim(), key);
    let (line, column) = (before.matches('\n').count() + 1, before[start..].chars().count() + 1);
    let separator = if key.is_empty() { "" } else { ": " };
    // In a file that is not TOML, a line may be long and contain control characters.
    let shown: String = line_text.chars().take(120).map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("{}:{line}:{column}: {key}{separator}in `{shown}`", origin.display())
}

/// The path to the deepest key or item whose name or value contains this offset.
fn path_in_table(table: &DeTable<'_>, offset: usize) -> Option<Vec<Step>> {
    table.iter().find_map(|(key, value)| {
        let rest = path_in_value(value.get_ref(), offset);
        let is_here = || key.span().contains(&offset) || value.span().contains(&offset);
        let rest = rest.or_else(|| is_here().then(Vec::new))?;
        Some([vec![Step::from(key.get_ref().to_string())], rest].concat())
    })
}

fn path_in_value(value: &DeValue<'_>, offset: usize) -> Option<Vec<Step>> {
    match value {
        DeValue::Table(table) => path_in_table(table, offset),
        DeValue::Array(items) => items.iter().enumerate().find_map(|(index, item)| {
            let rest = path_in_value(item.get_ref(), offset);
            let rest = rest.or_else(|| item.span().contains(&offset).then(Vec::new))?;
            Some([vec![index.into()], rest].concat())
        }),
        _ => None,
    }
}
