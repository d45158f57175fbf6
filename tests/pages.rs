//! Manual pages, shell completions and the verbs' table of docs/reference/commands.md, made of the command line's definition.
//! What the definition does not hold (who may use a verb, EXIT STATUS, ENVIRONMENT, FILES, EXAMPLES) is in tests/pages/sections.toml. slurminit.toml(5) is made
//! beside docs/reference/configuration.md, by tests/reference. `UPDATE=1 cargo test --test pages` writes them anew.

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

/// Without the verbs that PID 1 runs as its children.
fn command() -> Command {
    let all = Cli::command();
    let shown: Vec<Command> = all.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned().collect();
    // clap can hide a verb, and its completions name it all the same; so the command is put together anew.
    let mut command = Command::new("slurminit").version(env!("CARGO_PKG_VERSION"));
    command = command.about(all.get_about().cloned().unwrap_or_default()).subcommand_required(true);
    shown.into_iter().fold(command, Command::subcommand)
}

fn page(command: Command, sections: &str, see_also: &str) -> String {
    let mut page = Vec::new();
    // Without a date: the same definition gives the same page.
    let source = concat!("slurminit ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command).date("").source(source).manual("slurminit").render(&mut page).unwrap();
    format!("{}{sections}.SH SEE ALSO\n{see_also}\n", String::from_utf8(page).unwrap())
}

/// By their paths in docs.
fn made() -> BTreeMap<String, String> {
    let mut paged = command().disable_help_subcommand(true);
    // Gives the verbs the names of their pages.
    paged.build();
    let sections = sections::sections();
    let codes = sections::list("EXIT STATUS", &sections::exit_codes());
    let mut made = BTreeMap::from([("man/slurminit.1".to_owned(), page(paged.clone(), &codes, "slurminit.toml(5)"))]);
    for verb in paged.get_subcommands() {
        let name = verb.get_name();
        let more = sections.verb.get(name).map(|verb| sections::text(&sections, verb)).unwrap_or_default();
        made.insert(format!("man/slurminit-{name}.1"), page(verb.clone(), &more, "slurminit(1), slurminit.toml(5)"));
        for part in verb.get_subcommands().filter(|part| part.get_name() != "help") {
            let see_also = format!("slurminit-{name}(1), slurminit(1)");
            made.insert(format!("man/slurminit-{name}-{}.1", part.get_name()), page(part.clone(), "", &see_also));
        }
    }
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command(), "slurminit", &mut script);
        made.insert(format!("completions/slurminit.{shell}"), String::from_utf8(script).unwrap());
    }
    made
}

#[test]
fn pages_and_completions_are_those_of_the_command_line() {
    let made = made();
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
    let mut wrong = String::new();
    for (name, text) in &made {
        let path = docs().join(name);
        if update {
            fs::write(&path, text).unwrap();
        }
        let old = fs::read_to_string(&path).unwrap_or_default();
        wrong += &similar::TextDiff::from_lines(&old, text).unified_diff().header(name, "now").to_string();
    }
    for folder in ["man", "completions"] {
        for entry in fs::read_dir(docs().join(folder)).unwrap() {
            let name = format!("{folder}/{}", entry.unwrap().file_name().into_string().unwrap());
            if !made.contains_key(&name) && name != "man/slurminit.toml.5" {
                wrong += &format!("docs/{name} is of no verb\n");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}\nTo write them anew: UPDATE=1 cargo test --test pages");
}

const BEGIN: &str = "<!-- Made of the command line's definition by: UPDATE=1 cargo test --test pages -->\n";
const END: &str = "<!-- End of what is made. -->\n";

/// As one types it: `--lines N`, in brackets where it can be left out.
fn usage(argument: &Arg) -> String {
    let value = argument.get_value_names().unwrap_or_default().join(" ");
    let takes_value = argument.get_action().takes_values();
    let typed = match (argument.get_long(), argument.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => String::new(),
    };
    let typed = if takes_value { format!("{typed} {value}").trim().to_owned() } else { typed };
    match argument {
        argument if argument.is_required_set() => typed,
        argument if argument.is_last_set() => format!("[-- {typed}...]"),
        _ => format!("[{typed}]"),
    }
}

fn table_of_verbs() -> String {
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
fn table_of_verbs_is_that_of_command_line() {
    a_page_has("reference/commands.md", BEGIN, &table_of_verbs());
}

#[test]
fn tables_of_releases_are_those_of_program() {
    a_page_has("reference/versions.md", releases::BEGIN, &releases::tables());
}

/// Between the two marks; with UPDATE=1 it is written there.
fn a_page_has(page: &str, begin: &str, table: &str) {
    let path = docs().join(page);
    let old = fs::read_to_string(&path).unwrap();
    let (before, rest) = old.split_once(begin).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let made = format!("{before}{begin}{table}{END}{after}");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &made).unwrap();
        return;
    }
    let wrong = similar::TextDiff::from_lines(&old, &made).unified_diff().header(page, "now").to_string();
    assert!(wrong.is_empty(), "{wrong}\nTo write it anew: UPDATE=1 cargo test --test pages");
}

#[test]
fn every_verb_has_page_and_hidden_ones_are_nowhere() {
    let made = made();
    for verb in ["run", "detect", "render", "configure", "status", "health"] {
        assert!(made[&format!("man/slurminit-{verb}.1")].contains(".SH DESCRIPTION"), "{verb}");
        for shell in ["bash", "fish", "zsh"] {
            assert!(made[&format!("completions/slurminit.{shell}")].contains(verb), "{verb} {shell}");
        }
    }
    for (name, text) in &made {
        assert!(!text.contains("prepare"), "{name}");
    }
}

/// What a page names is explained, and nothing is explained that no page names.
#[test]
fn every_verb_has_all_its_sections() {
    let (sections, made) = (sections::sections(), made());
    let verbs: Vec<String> = command().get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
    for verb in &verbs {
        let page = &made[&format!("man/slurminit-{verb}.1")];
        for section in ["EXIT STATUS", "EXAMPLES"] {
            assert!(page.contains(section), "tests/pages/sections.toml has no {section} for {verb}");
        }
    }
    let unknown: Vec<_> = sections.verb.keys().filter(|verb| !verbs.contains(verb)).collect();
    assert!(unknown.is_empty(), "no verbs: {unknown:?}");
    let used = |names: fn(&sections::Verb) -> &[String]| -> BTreeSet<&String> {
        sections.verb.values().flat_map(names).collect()
    };
    assert_eq!(used(|verb| &verb.files), sections.files.keys().collect());
    assert_eq!(used(|verb| &verb.environment), sections.environment.keys().collect());
    for example in sections.verb.values().flat_map(|verb| &verb.examples) {
        assert!(!example.does.is_empty() && example.skip.as_ref().is_none_or(|why| !why.is_empty()), "{example:?}");
    }
}
