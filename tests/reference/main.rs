//! The reference in docs/reference/configuration.md is made of what the program reads (the types, by a deserializer that notes what is
//! asked of it; the environment, by noting which variables are asked for) and of config/slurminit.toml, which explains
//! each key. Nothing of the three can be without the others. So are slurminit.toml(5) and config/slurminit.schema.json.
//! `UPDATE=1 cargo test --test reference` writes them anew.

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
use recorder::{Asked, Kind};
use serde::Deserialize as _;

const BEGIN: &str = "<!-- Made of config/slurminit.toml and the types by: UPDATE=1 cargo test --test reference -->\n";
const END: &str = "<!-- End of what is made. -->\n";

fn document() -> PathBuf {
    harness::root().join("docs/reference/configuration.md")
}

/// Every key that the types ask for, and of what type it is; and those that the file with all its examples lacks.
fn asked(file: &toml::Value, without: Option<&str>) -> Result<Vec<Asked>, toml::de::Error> {
    let log = RefCell::default();
    Config::deserialize(recorder::Recorder::new(file, without, &log))?;
    Ok(log.into_inner())
}

/// The variables that lie over the file.
fn variables() -> BTreeSet<String> {
    let asked = RefCell::new(BTreeSet::new());
    let note = |name: &str| {
        asked.borrow_mut().insert(name.to_owned());
        None
    };
    Config::default().apply_environment(&note).unwrap();
    asked.into_inner()
}

/// A heading with what is said below it, or keys that one text explains.
enum Part {
    Table { heading: String, doc: String },
    Keys { names: Vec<String>, kind: String, default: String, meaning: String, variables: Vec<String> },
}

/// The keys of a group.
fn keys(
    keys: &[&Key],
    doc: &str,
    types: &[Asked],
    is_required: &dyn Fn(&str) -> bool,
    variables: &BTreeSet<String>,
) -> Part {
    let kind = |key: &Key| match types.iter().find(|asked| asked.path == key.path).map(|asked| &asked.kind) {
        Some(Kind::Whole(..)) if key.path.ends_with("_mib") => "MiB".to_owned(),
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
    // Variables at the end name those that lie over the key; others are words of a sentence.
    let mut words: Vec<&str> = doc.split_whitespace().collect();
    let is_last = |words: &[&str]| words.last().is_some_and(|word| variables.contains(*word));
    let mut named = Vec::new();
    while is_last(&words) {
        named.extend(words.pop());
    }
    Part::Keys {
        names: keys.iter().map(|key| key.name.clone()).collect(),
        kind: all(&kind),
        default: all(&default),
        meaning: words.join(" "),
        variables: named.into_iter().map(str::to_owned).collect(),
    }
}

/// As Markdown.
fn document_text(parts: &[Part]) -> String {
    let mut text = String::from("\n### Top level\n");
    let mut needs_head = true;
    for part in parts {
        match part {
            Part::Table { heading, doc } => {
                let _ = writeln!(text, "\n### {heading}");
                if !doc.is_empty() {
                    let _ = writeln!(text, "\n{doc}");
                }
                needs_head = true;
            }
            Part::Keys { names, kind, default, meaning, variables } => {
                if std::mem::take(&mut needs_head) {
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
    let types = asked(&file, None).unwrap();
    let variables = variables();
    let mut known: BTreeSet<&str> = example.keys().map(|key| key.path.as_str()).collect();
    for table in example.tables() {
        known.extend(table.match_indices('.').map(|(end, _)| &table[..end]).chain([table]));
    }
    let lacking: Vec<&str> = types.iter().filter(|asked| asked.is_missing).map(|asked| asked.path.as_str()).collect();
    assert!(
        lacking.is_empty(),
        "config/slurminit.toml lacks {lacking:?}: add each, with its default and a line of why"
    );
    let leaves = types.iter().filter(|asked| asked.is_key());
    let unknown: Vec<&str> = leaves.map(|asked| asked.path.as_str()).filter(|path| !known.contains(path)).collect();
    assert!(unknown.is_empty(), "config/slurminit.toml has {unknown:?}, and not on a line of its own");
    for name in &variables {
        assert!(EXAMPLE.contains(name), "config/slurminit.toml does not name the variable {name}");
    }
    // A key that may be missing is one without which the rest is still read.
    let is_required = |path: &str| asked(&file, Some(path)).is_err();

    let mut parts = Vec::new();
    for entry in &example.entries {
        let (entries, doc) = match entry {
            Entry::Table { heading, doc, .. } => {
                parts.push(Part::Table { heading: heading.clone(), doc: doc.replace('\n', " ") });
                continue;
            }
            Entry::Keys { keys, doc } => (keys, doc),
        };
        // Without a comment of its own, a key of a table that takes any is only an example.
        let is_documented = |key: &&Key| types.iter().any(|asked| asked.path == key.path && asked.is_key());
        let told: Vec<&Key> =
            entries.iter().enumerate().filter(|(at, key)| *at == 0 || is_documented(key)).map(|(_, key)| key).collect();
        if doc.is_empty() {
            let silent = entries.iter().find(is_documented).map(|key| &key.path);
            assert!(
                silent.is_none(),
                "config/slurminit.toml has no comment on {silent:?}: say in a line what it is for"
            );
            continue;
        }
        parts.push(keys(&told, doc, &types, &is_required, &variables));
    }
    parts
}

#[test]
fn reference_is_of_types_and_of_file() {
    let old = fs::read_to_string(document()).unwrap();
    let (before, rest) = old.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let made = document_text(&reference());
    is_written("docs/reference/configuration.md", &format!("{before}{BEGIN}{made}\n{END}{after}"));
}

#[test]
fn manual_page_is_of_same() {
    is_written("docs/man/slurminit.toml.5", &manual::page(&reference()));
}

/// Fails unless the file has this text; with UPDATE=1 it gets it.
fn is_written(name: &str, made: &str) {
    let path = harness::root().join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, made).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let diff = similar::TextDiff::from_lines(written.as_str(), made).unified_diff().header(name, "now").to_string();
    assert!(diff.is_empty(), "{diff}\nTo write it anew: UPDATE=1 cargo test --test reference");
}

/// The test above would be worth nothing if the recorder saw no keys, or all were optional.
#[test]
fn recorder_sees_existing_processes() {
    let example = Example::parse(EXAMPLE);
    let file = toml::Value::Table(toml::from_str(&example.uncommented).unwrap());
    let types = asked(&file, None).unwrap();
    let kind = |path: &str| types.iter().find(|asked| asked.path == path).map(|asked| asked.kind.to_string());
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
        assert_eq!(asked(&file, Some(path)).is_err(), required, "{path}");
    }
    let mut less = file.clone();
    less.get_mut("user").unwrap().get_mut(0).unwrap().as_table_mut().unwrap().remove("home");
    let missing: Vec<String> =
        asked(&less, None).unwrap().into_iter().filter(|asked| asked.is_missing).map(|asked| asked.path).collect();
    assert_eq!(missing, ["user.home"]);
}
