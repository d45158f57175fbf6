//! Generates the manual pages, the shell completions and the verb table of docs/reference/commands.md from the command
//! line definition. tests/pages/sections.toml adds permitted users, EXIT STATUS, ENVIRONMENT, FILES and EXAMPLES.
//! tests/reference generates slurminit.toml(5). `UPDATE=1 cargo test --test pages` writes the files.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "pages/marked.rs"]
mod marked;
#[path = "pages/releases.rs"]
mod releases;
#[path = "pages/sections.rs"]
mod sections;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use clap::{Arg, Command, CommandFactory as _};
use clap_complete::Shell;
use cli::Cli;

fn docs() -> PathBuf {
    harness::root().join("docs")
}

/// The command line definition without the hidden verbs, which PID 1 runs as child processes.
fn command() -> Command {
    let all = Cli::command();
    let visible: Vec<Command> = all.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned().collect();
    // clap's completions contain hidden verbs, so build a new command from the visible ones.
    let mut command = Command::new("slurminit").version(env!("CARGO_PKG_VERSION"));
    command = command.about(all.get_about().cloned().unwrap_or_default()).subcommand_required(true);
    visible.into_iter().fold(command, Command::subcommand)
}

fn page(command: Command, sections: &str, see_also: &str) -> String {
    let mut page = Vec::new();
    // No date, so that the output is reproducible.
    let source = concat!("slurminit ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command).date("").source(source).manual("slurminit").render(&mut page).unwrap();
    format!("{}{sections}.SH SEE ALSO\n{see_also}\n", String::from_utf8(page).unwrap())
}

/// Text of all pages and completions by path below docs.
fn generated_files() -> BTreeMap<String, String> {
    let mut pages_command = command().disable_help_subcommand(true);
    // Sets the verbs' display names, which are the page names.
    pages_command.build();
    let sections = sections::sections();
    let codes = sections::list("EXIT STATUS", &sections::exit_codes());
    let mut generated =
        BTreeMap::from([("man/slurminit.1".to_owned(), page(pages_command.clone(), &codes, "slurminit.toml(5)"))]);
    for verb in pages_command.get_subcommands() {
        let name = verb.get_name();
        let more = sections.verb.get(name).map(|verb| sections::text(&sections, verb)).unwrap_or_default();
        let text = page(verb.clone(), &more, "slurminit(1), slurminit.toml(5)");
        generated.insert(format!("man/slurminit-{name}.1"), text);
        for part in verb.get_subcommands().filter(|part| part.get_name() != "help") {
            let see_also = format!("slurminit-{name}(1), slurminit(1)");
            generated.insert(format!("man/slurminit-{name}-{}.1", part.get_name()), page(part.clone(), "", &see_also));
        }
    }
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command(), "slurminit", &mut script);
        generated.insert(format!("completions/slurminit.{shell}"), String::from_utf8(script).unwrap());
    }
    generated
}

#[test]
fn pages_and_completions_match_command_line() {
    let generated = generated_files();
    let update = std::env::var_os("UPDATE").is_some();
    if update {
        for folder in ["man", "completions"] {
            for entry in fs::read_dir(docs().join(folder)).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_none_or(|section| section != "5") {
                    fs::remove_file(path).unwrap();
                }
            }
        }
    }
    let mut diff = String::new();
    for (name, text) in &generated {
        let path = docs().join(name);
        if update {
            fs::write(&path, text).unwrap();
        }
        let old = fs::read_to_string(&path).unwrap_or_default();
        diff += &similar::TextDiff::from_lines(&old, text).unified_diff().header(name, "now").to_string();
    }
    for folder in ["man", "completions"] {
        for entry in fs::read_dir(docs().join(folder)).unwrap() {
            let name = format!("{folder}/{}", entry.unwrap().file_name().into_string().unwrap());
            if !generated.contains_key(&name) && name != "man/slurminit.toml.5" {
                diff += &format!("docs/{name} belongs to no verb\n");
            }
        }
    }
    assert!(diff.is_empty(), "{diff}\nTo update: UPDATE=1 cargo test --test pages");
}

const BEGIN: &str = "<!-- Made of the command line's definition by: UPDATE=1 cargo test --test pages -->\n";
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
        for part in verb.get_subcommands() {
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
    assert!(diff.is_empty(), "{diff}\nTo update: UPDATE=1 cargo test --test pages");
}

#[test]
fn only_visible_verbs_have_pages_and_completions() {
    let generated = generated_files();
    for verb in ["run", "detect", "render", "configure", "status", "health"] {
        assert!(generated[&format!("man/slurminit-{verb}.1")].contains(".SH DESCRIPTION"), "{verb}");
        for shell in ["bash", "fish", "zsh"] {
            assert!(generated[&format!("completions/slurminit.{shell}")].contains(verb), "{verb} {shell}");
        }
    }
    for (name, text) in &generated {
        assert!(!text.contains("prepare"), "{name}");
    }
}

/// Every file and variable that a verb lists has a description, and no description is unused.
#[test]
fn every_verb_has_all_its_sections() {
    let (sections, generated) = (sections::sections(), generated_files());
    let verbs: Vec<String> = command().get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    for verb in &verbs {
        let page = &generated[&format!("man/slurminit-{verb}.1")];
        for section in ["EXIT STATUS", "EXAMPLES"] {
            assert!(page.contains(section), "tests/pages/sections.toml has no {section} for {verb}");
        }
    }
    let unknown: Vec<_> = sections.verb.keys().filter(|verb| !verbs.contains(verb)).collect();
    assert!(unknown.is_empty(), "unknown verbs: {unknown:?}");
    let used = |names: fn(&sections::Verb) -> &[String]| -> BTreeSet<&String> {
        sections.verb.values().flat_map(names).collect()
    };
    assert_eq!(used(|verb| &verb.files), sections.files.keys().collect());
    assert_eq!(used(|verb| &verb.environment), sections.environment.keys().collect());
    for example in sections.verb.values().flat_map(|verb| &verb.examples) {
        assert!(!example.does.is_empty() && example.skip.as_ref().is_none_or(|why| !why.is_empty()), "{example:?}");
    }
}
