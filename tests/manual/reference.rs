//! The keys of the configuration, from three sources: the types (recorded by a deserializer), the environment variables that the program
//! reads and config/reference.toml, which documents each key.

use std::cell::RefCell;
use std::collections::BTreeSet;

use config::example::{Entry, Example, Key};
use config::{Config, EXAMPLE};
use serde::Deserialize as _;

use crate::recorder::{Kind, RecordedKey, Recorder};

/// All keys that the types read, with their kinds. Keys that are not in the file are marked as missing.
///
/// # Errors
/// If the types reject the file.
pub fn record_keys(file: &toml::Value, without: Option<&str>) -> Result<Vec<RecordedKey>, toml::de::Error> {
    let log = RefCell::default();
    Config::deserialize(Recorder::new(file, without, &log))?;
    Ok(log.into_inner())
}

/// Environment variables that override the file.
fn variables() -> BTreeSet<String> {
    config::VARIABLES.iter().map(|variable| variable.name.to_owned()).collect()
}

/// A table heading with its description, or keys that share a description.
pub enum Part {
    /// A table heading.
    Table {
        /// The heading, such as `[gpu]`.
        heading: String,
        /// The comment above the heading.
        doc: String,
    },
    /// Keys that share a comment.
    Keys {
        /// Names of the keys.
        names: Vec<String>,
        /// Type of the values, in words.
        kind: String,
        /// The default value; without one, `required` or empty.
        default: String,
        /// The comment above the keys.
        meaning: String,
        /// Environment variables that override the keys.
        variables: Vec<String>,
    },
}

/// The reference entry for keys that share a description.
fn keys(
    keys: &[&Key],
    doc: &str,
    types: &[RecordedKey],
    is_required: &dyn Fn(&str) -> bool,
    variables: &BTreeSet<String>,
) -> Part {
    let kind = |key: &Key| match types.iter().find(|read| read.path == key.path).map(|read| &read.kind) {
        Some(Kind::Integer(..)) if key.path.ends_with("_mib") => "MiB".to_owned(),
        Some(kind) => kind.to_string(),
        None => String::new(),
    };
    let default = |key: &Key| match &key.default {
        Some(value) => format!("`{value}`"),
        None if is_required(&key.path) => "required".to_owned(),
        None => String::new(),
    };
    let all = |text: &dyn Fn(&Key) -> String| {
        let mut texts: Vec<String> = keys.iter().map(|key| text(key)).collect();
        texts.dedup();
        texts.join(", ")
    };
    // Variables at the end of the comment override the key; other variables are part of a sentence.
    let mut words: Vec<&str> = doc.split_whitespace().collect();
    let is_last = |words: &[&str]| words.last().is_some_and(|word| variables.contains(*word));
    let mut overrides = Vec::new();
    while is_last(&words) {
        overrides.extend(words.pop());
    }
    Part::Keys {
        names: keys.iter().map(|key| key.name.clone()).collect(),
        kind: all(&kind),
        default: all(&default),
        meaning: words.join(" "),
        variables: overrides.into_iter().map(str::to_owned).collect(),
    }
}

/// The keys of the configuration, in the order of config/reference.toml.
///
/// # Panics
/// If the file, the types or the variables disagree.
pub fn reference() -> Vec<Part> {
    let example = Example::parse(EXAMPLE);
    let file: toml::Value = toml::Value::Table(toml::from_str(&example.uncommented).unwrap());
    let types = record_keys(&file, None).unwrap();
    let variables = variables();
    let mut known: BTreeSet<&str> = example.keys().map(|key| key.path.as_str()).collect();
    for table in example.tables() {
        known.extend(table.match_indices('.').map(|(end, _)| &table[..end]).chain([table]));
    }
    let missing: Vec<&str> = types.iter().filter(|key| key.is_missing).map(|key| key.path.as_str()).collect();
    assert!(missing.is_empty(), "not in config/reference.toml: {missing:?}: add each with its default and a comment");
    let leaves = types.iter().filter(|key| key.is_key());
    let unknown: Vec<&str> = leaves.map(|key| key.path.as_str()).filter(|path| !known.contains(path)).collect();
    assert!(unknown.is_empty(), "config/reference.toml has {unknown:?}, but not on separate lines");
    for name in &variables {
        assert!(EXAMPLE.contains(name), "config/reference.toml does not name the variable {name}");
    }
    // A key is optional if the file still parses without it.
    let is_required = |path: &str| record_keys(&file, Some(path)).is_err();

    let mut parts = Vec::new();
    for entry in &example.entries {
        let (entries, doc) = match entry {
            Entry::Table { heading, doc, .. } => {
                parts.push(Part::Table { heading: heading.clone(), doc: doc.replace('\n', " ") });
                continue;
            }
            Entry::Keys { keys, doc } => (keys, doc),
        };
        // In a table that accepts any key, a key without its own comment is only an example.
        let is_documented = |key: &&Key| types.iter().any(|read| read.path == key.path && read.is_key());
        let documented: Vec<&Key> =
            entries.iter().enumerate().filter(|(at, key)| *at == 0 || is_documented(key)).map(|(_, key)| key).collect();
        if doc.is_empty() {
            let undocumented = entries.iter().find(is_documented).map(|key| &key.path);
            assert!(undocumented.is_none(), "no comment on {undocumented:?} in config/reference.toml: describe it");
            continue;
        }
        parts.push(keys(&documented, doc, &types, &is_required, &variables));
    }
    parts
}
