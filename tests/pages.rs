//! Checks the manual pages and the shell completions of the crate `manual`, and generates the verb table of
//! docs/reference/commands.md from the command line definition. `UPDATE=1 cargo test --test host pages` writes the table.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod pins;
mod releases;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use clap::{Arg, Command};
use manual::{command, files, sections};

fn docs() -> PathBuf {
    harness::root().join("docs")
}

const BEGIN: &str = "<!-- Made of the command line's definition by: UPDATE=1 cargo test --test host pages -->\n";
const END: &str = "<!-- End of what is made. -->\n";

/// Usage of an argument: `--lines N`, in brackets if optional.
fn usage(argument: &Arg) -> String {
    let value = argument.get_value_names().unwrap_or_default().join(" ");
    let takes_value = argument.get_action().takes_values();
    let usage_text = match (argument.get_long(), argument.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => String::new(),
    };
    let usage_text = if takes_value { format!("{usage_text} {value}").trim().to_owned() } else { usage_text };
    match argument {
        argument if argument.is_required_set() => usage_text,
        argument if argument.is_last_set() => format!("[-- {usage_text}...]"),
        _ => format!("[{usage_text}]"),
    }
}

fn verb_table() -> String {
    let sections = sections::sections();
    let mut table = "| Verb | Who | Does |\n|---|---|---|\n".to_owned();
    for verb in command().get_subcommands() {
        let name = verb.get_name();
        let who = sections.verb.get(name).map_or("everyone", |verb| &verb.who);
        if !verb.has_subcommands() {
            table += &row(name, verb, who);
        }
        for part in verb.get_subcommands().filter(|part| !part.is_hide_set()) {
            table += &row(&format!("{name} {}", part.get_name()), part, who);
        }
    }
    table
}

fn row(name: &str, verb: &Command, who: &str) -> String {
    // All verbs have --config; the page shows it once.
    let is_documented = |argument: &&Arg| !argument.is_hide_set() && argument.get_long() != Some("config");
    let mut arguments: Vec<&Arg> = verb.get_arguments().filter(is_documented).collect();
    arguments.sort_by_key(|argument| (argument.is_last_set(), !argument.is_positional()));
    let words: Vec<String> = std::iter::once(name.to_owned()).chain(arguments.into_iter().map(usage)).collect();
    let about = verb.get_about().map(ToString::to_string).unwrap_or_default().replace('|', "\\|");
    format!("| `{}` | {who} | {about} |\n", words.join(" "))
}

#[test]
fn verb_table_matches_command_line() {
    assert_table("reference/commands.md", BEGIN, &verb_table());
}

#[test]
fn release_tables_match_program() {
    assert_table("reference/versions.md", releases::BEGIN, &releases::tables());
}

/// Asserts that the page has this table between its markers, or writes it with UPDATE=1.
fn assert_table(page: &str, begin: &str, table: &str) {
    let path = docs().join(page);
    let old = fs::read_to_string(&path).unwrap();
    let (before, rest) = old.split_once(begin).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let generated = format!("{before}{begin}{table}{END}{after}");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &generated).unwrap();
        return;
    }
    let diff = similar::TextDiff::from_lines(&old, &generated).unified_diff().header(page, "now").to_string();
    assert!(diff.is_empty(), "{diff}\nTo update: UPDATE=1 cargo test --test host pages");
}

#[test]
fn only_visible_verbs_have_pages_and_completions() {
    let generated = files();
    for verb in ["run", "detect", "render", "configure", "status", "health"] {
        assert!(generated[&format!("man/slurminit-{verb}.1")].contains(".SH DESCRIPTION"), "{verb}");
        for shell in ["bash", "fish", "zsh"] {
            assert!(generated[&format!("completions/slurminit.{shell}")].contains(verb), "{verb} {shell}");
        }
    }
    // slurminit.toml(5) may name hidden verbs.
    for (name, text) in generated.iter().filter(|(name, _)| !name.ends_with(".5")) {
        assert!(!text.contains("prepare"), "{name}");
    }
}

/// Every file and variable that a verb lists has a description, and no description is unused.
#[test]
fn every_verb_has_all_its_sections() {
    let (sections, generated) = (sections::sections(), files());
    let verbs: Vec<String> = command().get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    for verb in &verbs {
        let page = &generated[&format!("man/slurminit-{verb}.1")];
        for section in ["EXIT STATUS", "EXAMPLES"] {
            assert!(page.contains(section), "tests/manual/sections.toml has no {section} for {verb}");
        }
    }
    let unknown: Vec<_> = sections.verb.keys().filter(|verb| !verbs.contains(verb)).collect();
    assert!(unknown.is_empty(), "unknown verbs: {unknown:?}");
    let used = |names: fn(&sections::Verb) -> &[String]| -> BTreeSet<&String> {
        sections.verb.values().flat_map(names).collect()
    };
    assert_eq!(used(|verb| &verb.files), sections.files.keys().collect());
    assert_eq!(used(|verb| &verb.environment), sections.environment.keys().collect());
    let examples = cli::examples::all();
    let without = verbs.iter().filter(|verb| examples.get(*verb).is_none_or(|examples| examples.len() < 2));
    assert_eq!(without.collect::<Vec<_>>(), [""; 0], "verbs with less than two examples");
    for (verb, example) in examples.iter().flat_map(|(verb, examples)| examples.iter().map(move |one| (verb, one))) {
        assert!(verbs.contains(verb) && !example.does.is_empty(), "{verb}: {example:?}");
        assert!(example.skip.as_ref().is_none_or(|why| !why.is_empty()), "{verb}: {example:?}");
    }
}
