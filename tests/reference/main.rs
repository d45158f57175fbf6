//! Generates docs/reference/configuration.md, slurminit.toml(5) and config/slurminit.schema.json from three sources:
//! the keys that the configuration types read (recorded by a deserializer), the environment variables that the program
//! reads (recorded too) and config/slurminit.toml, which documents each key. Fails if a key or variable is missing in
//! one of them. `UPDATE=1 cargo test --test reference` writes the files.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod manual;
#[path = "../pages/marked.rs"]
mod marked;
mod recorder;
mod schema;
mod validator;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use config::example::{Entry, Example, Key};
use config::{Config, EXAMPLE};
use recorder::{Kind, RecordedKey};
use serde::Deserialize as _;

const BEGIN: &str = "<!-- Made of config/slurminit.toml and the types by: UPDATE=1 cargo test --test reference -->\n";
const END: &str = "<!-- End of what is made. -->\n";

fn document() -> PathBuf {
    harness::root().join("docs/reference/configuration.md")
}

/// All keys that the types read, with their kinds. Keys that are not in the file are marked as missing.
fn record_keys(file: &toml::Value, without: Option<&str>) -> Result<Vec<RecordedKey>, toml::de::Error> {
    let log = RefCell::default();
    Config::deserialize(recorder::Recorder::new(file, without, &log))?;
    Ok(log.into_inner())
}

/// Environment variables that override the file.
fn variables() -> BTreeSet<String> {
    let names = RefCell::new(BTreeSet::new());
    let record = |name: &str| {
        names.borrow_mut().insert(name.to_owned());
        None
    };
    Config::default().apply_environment(&record).unwrap();
    names.into_inner()
}

/// A table heading with its description, or keys that share a description.
enum Part {
    Table { heading: String, doc: String },
    Keys { names: Vec<String>, kind: String, default: String, meaning: String, variables: Vec<String> },
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
    // Variables at the end override the key; others belong to the sentence.
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

/// The reference in Markdown.
fn document_text(parts: &[Part]) -> String {
    let mut text = String::from("\n### Top level\n");
    let mut needs_header = true;
    for part in parts {
        match part {
            Part::Table { heading, doc } => {
                let _ = writeln!(text, "\n### {heading}");
                if !doc.is_empty() {
                    let _ = writeln!(text, "\n{doc}");
                }
                needs_header = true;
            }
            Part::Keys { names, kind, default, meaning, variables } => {
                if std::mem::take(&mut needs_header) {
                    text += "\n| Key | Type | Default | Meaning |\n|---|---|---|---|\n";
                }
                let mut meaning = meaning.clone();
                if !variables.is_empty() {
                    let _ = write!(meaning, " Variable: `{}`.", variables.join("`, `"));
                }
                let cell = |text: &str| text.replace('|', "\\|");
                let names = format!("`{}`", names.join("`, `"));
                let _ = writeln!(text, "| {names} | {} | {} | {} |", cell(kind), cell(default), cell(&meaning));
            }
        }
    }
    text
}

fn reference() -> Vec<Part> {
    let example = Example::parse(EXAMPLE);
    let file: toml::Value = toml::Value::Table(toml::from_str(&example.uncommented).unwrap());
    let types = record_keys(&file, None).unwrap();
    let variables = variables();
    let mut known: BTreeSet<&str> = example.keys().map(|key| key.path.as_str()).collect();
    for table in example.tables() {
        known.extend(table.match_indices('.').map(|(end, _)| &table[..end]).chain([table]));
    }
    let missing: Vec<&str> = types.iter().filter(|key| key.is_missing).map(|key| key.path.as_str()).collect();
    assert!(missing.is_empty(), "not in config/slurminit.toml: {missing:?}: add each with its default and a comment");
    let leaves = types.iter().filter(|key| key.is_key());
    let unknown: Vec<&str> = leaves.map(|key| key.path.as_str()).filter(|path| !known.contains(path)).collect();
    assert!(unknown.is_empty(), "config/slurminit.toml has {unknown:?}, but not on separate lines");
    for name in &variables {
        assert!(EXAMPLE.contains(name), "config/slurminit.toml does not name the variable {name}");
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
            assert!(undocumented.is_none(), "no comment on {undocumented:?} in config/slurminit.toml: describe it");
            continue;
        }
        parts.push(keys(&documented, doc, &types, &is_required, &variables));
    }
    parts
}

#[test]
fn reference_page_matches_types_and_example_file() {
    let old = fs::read_to_string(document()).unwrap();
    let (before, rest) = old.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let generated = document_text(&reference());
    assert_generated("docs/reference/configuration.md", &format!("{before}{BEGIN}{generated}\n{END}{after}"));
}

#[test]
fn manual_page_matches_types_and_example_file() {
    assert_generated("docs/man/slurminit.toml.5", &manual::page(&reference()));
}

/// Asserts that the file has this text, or writes it with UPDATE=1.
fn assert_generated(name: &str, generated: &str) {
    let path = harness::root().join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, generated).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let diff = similar::TextDiff::from_lines(written.as_str(), generated);
    let diff = diff.unified_diff().header(name, "now").to_string();
    assert!(diff.is_empty(), "{diff}\nTo update: UPDATE=1 cargo test --test reference");
}

/// The tests above would pass if the recorder recorded no keys, or if all keys were optional.
#[test]
fn recorder_reports_kinds_and_required_and_missing_keys() {
    let example = Example::parse(EXAMPLE);
    let file = toml::Value::Table(toml::from_str(&example.uncommented).unwrap());
    let types = record_keys(&file, None).unwrap();
    let kind = |path: &str| types.iter().find(|key| key.path == path).map(|key| key.kind.to_string());
    for (path, wanted) in [
        ("role", "`\"all\"`, `\"none\"`, `\"controller\"`, `\"compute\"`, `\"login\"`"),
        ("gpu.detect_timeout", "seconds"),
        ("node.features", "list of text"),
        ("daemon.slurmctld.command", "list of text"),
        ("service.essential", "`true`, `false`"),
        ("service.env", "table"),
        ("user.uid", "whole number"),
        ("hooks.pre_start.timeout", "seconds"),
    ] {
        assert_eq!(kind(path).as_deref(), Some(wanted), "{path}");
    }
    for (path, required) in [("user.name", true), ("user.gid", false), ("service.command", true), ("role", false)] {
        assert_eq!(record_keys(&file, Some(path)).is_err(), required, "{path}");
    }
    let mut incomplete = file.clone();
    incomplete.get_mut("user").unwrap().get_mut(0).unwrap().as_table_mut().unwrap().remove("home");
    let missing: Vec<String> =
        record_keys(&incomplete, None).unwrap().into_iter().filter(|key| key.is_missing).map(|key| key.path).collect();
    assert_eq!(missing, ["user.home"]);
}
