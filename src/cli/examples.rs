//! The examples of the verbs, for the help texts and the manual pages.

use std::collections::BTreeMap;

use clap::Command;
use serde::Deserialize;

/// An example of a verb.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Example {
    /// The command line.
    pub command: String,
    /// What the command does.
    pub does: String,
    /// Why tests/printed does not run the example; `None` if it does.
    pub skip: Option<String>,
}

/// The examples of src/cli/examples.toml by verb.
///
/// # Panics
/// If the file is invalid.
#[expect(clippy::expect_used, reason = "a test reads the file, which is part of the program")]
pub fn all() -> BTreeMap<String, Vec<Example>> {
    toml::from_str(include_str!("examples.toml")).expect("src/cli/examples.toml is valid")
}

/// Adds the examples to the help texts of the verbs.
pub(crate) fn add(command: Command) -> Command {
    all().iter().fold(command, |command, (verb, examples)| {
        let lines = examples.iter().map(|example| format!("  {}\n      {}", example.command, example.does));
        let text = format!("Examples:\n{}", lines.collect::<Vec<_>>().join("\n"));
        command.mut_subcommand(verb, |verb| verb.after_help(text))
    })
}
