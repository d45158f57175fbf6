//! The sections of a manual page that the command line's definition does not hold: EXIT STATUS, ENVIRONMENT, FILES, EXAMPLES.

use std::collections::BTreeMap;

use clap_mangen::roff::{Roff, bold};
use serde::Deserialize;

use crate::marked::marked;

/// tests/pages/sections.toml
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sections {
    pub(crate) files: BTreeMap<String, String>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) verb: BTreeMap<String, Verb>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Verb {
    /// Who may use it.
    #[serde(default = "everyone")]
    pub(crate) who: String,
    /// What each code means.
    exit: BTreeMap<String, String>,
    /// Whether its codes are the container's as well, which docs/reference/exit-codes.md has.
    #[serde(default)]
    is_container: bool,
    /// Keys of [`Sections::files`].
    #[serde(default)]
    pub(crate) files: Vec<String>,
    /// Keys of [`Sections::environment`].
    #[serde(default)]
    pub(crate) environment: Vec<String>,
    pub(crate) examples: Vec<Example>,
}

fn everyone() -> String {
    "everyone".to_owned()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Example {
    pub(crate) command: String,
    pub(crate) does: String,
    /// Why no test types it.
    pub(crate) skip: Option<String>,
}

pub(crate) fn sections() -> Sections {
    toml::from_str(include_str!("sections.toml")).expect("tests/pages/sections.toml is as it must be")
}

/// The codes of docs/reference/exit-codes.md with their meaning.
pub(crate) fn exit_codes() -> Vec<(String, String)> {
    let rows = include_str!("../../docs/reference/exit-codes.md").lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.split(" | ").collect();
        let code = cells.first()?.parse::<u8>().ok()?;
        Some((code.to_string(), (*cells.get(1)?).to_owned()))
    });
    rows.collect()
}

/// The text of a verb's sections, in roff.
pub(crate) fn text(sections: &Sections, verb: &Verb) -> String {
    let mut codes: Vec<(String, String)> = verb.exit.clone().into_iter().collect();
    if verb.is_container {
        codes.extend(exit_codes().into_iter().filter(|(code, _)| code.len() > 1));
    }
    codes.sort_by_key(|(code, _)| code.parse::<u8>().ok());
    let named = |names: &[String], all: &BTreeMap<String, String>| -> Vec<(String, String)> {
        let one = |name: &String| (name.clone(), all.get(name).cloned().unwrap_or_default());
        names.iter().map(one).collect()
    };
    let mut text = list("EXIT STATUS", &codes);
    text += &list("ENVIRONMENT", &named(&verb.environment, &sections.environment));
    text += &list("FILES", &named(&verb.files, &sections.files));
    let examples = verb.examples.iter().map(|example| (example.command.clone(), example.does.clone()));
    text += &list("EXAMPLES", &examples.collect::<Vec<_>>());
    text
}

/// A section whose paragraphs have a term each; nothing without any.
pub(crate) fn list(title: &str, terms: &[(String, String)]) -> String {
    let mut roff = Roff::new();
    if terms.is_empty() {
        return String::new();
    }
    roff.control("SH", [title]);
    for (term, meaning) in terms {
        roff.control("TP", []);
        roff.text([bold(term.as_str())]);
        roff.text(marked(meaning));
    }
    roff.to_roff()
}
