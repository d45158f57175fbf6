//! Manual page sections that are not part of the command line definition: EXIT STATUS, ENVIRONMENT, FILES, EXAMPLES.

use std::collections::BTreeMap;

use clap_mangen::roff::{Roff, bold};
use cli::examples::Example;
use serde::Deserialize;

use crate::marked::roff_inlines;

/// Contents of tests/manual/sections.toml.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sections {
    /// The meaning of each file, by path.
    pub files: BTreeMap<String, String>,
    /// The meaning of each environment variable, by name.
    pub environment: BTreeMap<String, String>,
    /// The sections of each verb, by name.
    pub verb: BTreeMap<String, Verb>,
}

/// The sections of a verb.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verb {
    /// The users who may run the verb.
    #[serde(default = "everyone")]
    pub who: String,
    /// The meaning of each exit code.
    exit: BTreeMap<String, String>,
    /// Whether the container's exit codes (docs/reference/exit-codes.md) apply as well.
    #[serde(default)]
    is_container: bool,
    /// The files that the verb uses: keys of [`Sections::files`].
    #[serde(default)]
    pub files: Vec<String>,
    /// The variables that the verb reads: keys of [`Sections::environment`].
    #[serde(default)]
    pub environment: Vec<String>,
}

fn everyone() -> String {
    "everyone".to_owned()
}

/// Parses tests/manual/sections.toml.
///
/// # Panics
/// If it is invalid.
pub fn sections() -> Sections {
    toml::from_str(include_str!("sections.toml")).expect("tests/manual/sections.toml is valid")
}

/// Exit codes of docs/reference/exit-codes.md and their meaning.
pub(crate) fn exit_codes() -> Vec<(String, String)> {
    let rows = include_str!("../../docs/reference/exit-codes.md").lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.split(" | ").collect();
        let code = cells.first()?.parse::<u8>().ok()?;
        Some((code.to_string(), (*cells.get(1)?).to_owned()))
    });
    rows.collect()
}

/// The sections of a verb in roff.
pub(crate) fn text(sections: &Sections, verb: &Verb, examples: &[Example]) -> String {
    let mut codes: Vec<(String, String)> = verb.exit.clone().into_iter().collect();
    if verb.is_container {
        codes.extend(exit_codes().into_iter().filter(|(code, _)| code.len() > 1));
    }
    codes.sort_by_key(|(code, _)| code.parse::<u8>().ok());
    let described = |names: &[String], all: &BTreeMap<String, String>| -> Vec<(String, String)> {
        let describe = |name: &String| (name.clone(), all.get(name).cloned().unwrap_or_default());
        names.iter().map(describe).collect()
    };
    let mut text = list("EXIT STATUS", &codes);
    text += &list("ENVIRONMENT", &described(&verb.environment, &sections.environment));
    text += &list("FILES", &described(&verb.files, &sections.files));
    let examples = examples.iter().map(|example| (example.command.clone(), example.does.clone()));
    text += &list("EXAMPLES", &examples.collect::<Vec<_>>());
    text
}

/// A section with one paragraph per term, or an empty string without terms.
pub(crate) fn list(title: &str, terms: &[(String, String)]) -> String {
    let mut roff = Roff::new();
    if terms.is_empty() {
        return String::new();
    }
    roff.control("SH", [title]);
    for (term, meaning) in terms {
        roff.control("TP", []);
        roff.text([bold(term.as_str())]);
        roff.text(roff_inlines(meaning));
    }
    roff.to_roff()
}
