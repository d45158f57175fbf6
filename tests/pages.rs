//! Manual pages and shell completions, made of the command line's definition into docs/man and docs/completions.
//! `UPDATE=1 cargo test --test pages` writes them anew.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use slurminit::cli::Cli;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
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

fn page(command: Command) -> String {
    let mut page = Vec::new();
    // Without a date: the same definition gives the same page.
    let source = concat!("slurminit ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command).date("").source(source).manual("slurminit").render(&mut page).unwrap();
    String::from_utf8(page).unwrap()
}

/// By their paths in docs.
fn made() -> BTreeMap<String, String> {
    let mut paged = command().disable_help_subcommand(true);
    // Gives the verbs the names of their pages.
    paged.build();
    let mut made = BTreeMap::from([("man/slurminit.1".to_owned(), page(paged.clone()))]);
    for verb in paged.get_subcommands() {
        made.insert(format!("man/slurminit-{}.1", verb.get_name()), page(verb.clone()));
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
            let _ = fs::remove_dir_all(docs().join(folder));
            fs::create_dir(docs().join(folder)).unwrap();
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
            if !made.contains_key(&name) {
                wrong += &format!("docs/{name} is of no verb\n");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}\nTo write them anew: UPDATE=1 cargo test --test pages");
}

#[test]
fn every_verb_has_a_page_and_the_hidden_ones_are_nowhere() {
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
