//! Generates docs/reference/configuration.md and config/slurminit.schema.json from the keys that the crate `manual` collects. Fails if a
//! key or variable is missing from one of its sources. `UPDATE=1 cargo test --test host reference` writes the files.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod schema;
mod validator;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use config::EXAMPLE;
use config::example::Example;
use manual::reference::{Part, record_keys, reference};

const BEGIN: &str =
    "<!-- Made of config/reference.toml and the types by: UPDATE=1 cargo test --test host reference -->\n";
const END: &str = "<!-- End of what is made. -->\n";

fn document() -> PathBuf {
    harness::root().join("docs/reference/configuration.md")
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

#[test]
fn reference_page_matches_types_and_example_file() {
    let old = fs::read_to_string(document()).unwrap();
    let (before, rest) = old.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let generated = document_text(&reference());
    assert_generated("docs/reference/configuration.md", &format!("{before}{BEGIN}{generated}\n{END}{after}"));
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
    assert!(diff.is_empty(), "{diff}\nTo update: UPDATE=1 cargo test --test host reference");
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
