//! Compares answers of `slurminit doctor --json` with the recorded ones.
#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) verdict: String,
    pub(crate) entries: Vec<Examined>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Examined {
    id: String,
    pub(crate) verdict: String,
    observations: Vec<Observation>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Observation {
    verdict: String,
    seen: String,
    cause: Option<String>,
    fix: Option<String>,
}

/// The worst observation of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) entry: String,
    pub(crate) verdict: String,
    pub(crate) seen: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fix: Option<String>,
}

impl Report {
    pub(crate) fn of(&self, entry: &str) -> Answer {
        let found = self.entries.iter().find(|examined| examined.id == entry);
        let examined = found.unwrap_or_else(|| panic!("the report has no entry {entry}: {self:?}"));
        let worst = examined.observations.iter().find(|observation| observation.verdict == examined.verdict);
        let Observation { verdict, seen, cause, fix } = worst.expect("an observation has the entry's verdict").clone();
        Answer { entry: entry.to_owned(), verdict, seen: without_seconds(&seen), cause, fix }
    }
}

/// The text with each measured time replaced by `N s`.
fn without_seconds(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let is_unit = |word: Option<&&str>| word.is_some_and(|word| word.trim_end_matches([';', ',', '.', ')']) == "s");
    let is_time =
        |at: usize, word: &str| word.contains('.') && word.parse::<f64>().is_ok() && is_unit(words.get(at + 1));
    let shown = words.iter().enumerate().map(|(at, word)| if is_time(at, word) { "N" } else { word });
    shown.collect::<Vec<_>>().join(" ")
}

impl Answer {
    /// Removes a path that differs between runs.
    pub(crate) fn without(mut self, path: &Path) -> Self {
        self.seen = self.seen.replace(&path.display().to_string(), "");
        self
    }
}

pub(crate) fn folder() -> PathBuf {
    harness::root().join("tests/doctor/answers")
}

/// The recorded answer to a case.
pub(crate) fn recorded(case: &str) -> Option<Answer> {
    toml::from_str(&fs::read_to_string(folder().join(format!("{case}.toml"))).ok()?).ok()
}

/// Describes how an answer differs from the recorded one. With `UPDATE=1`, records the answer first.
pub(crate) fn difference(case: &str, answer: &Answer) -> Option<String> {
    if answer.verdict == "ok" {
        return Some(format!("{case}: the fault was not detected: {answer:#?}\n"));
    }
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(folder()).expect("a directory in tests");
        let text = toml::to_string(answer).expect("plain text");
        fs::write(folder().join(format!("{case}.toml")), text).expect("a file in tests");
    }
    let recorded = recorded(case);
    (recorded.as_ref() != Some(answer)).then(|| format!("{case}: recorded: {recorded:#?}, now: {answer:#?}\n"))
}

pub(crate) fn compare(answers: impl Iterator<Item = (&'static str, Answer)>) {
    let wrong: String = answers.filter_map(|(case, answer)| difference(case, &answer)).collect();
    assert!(wrong.is_empty(), "{wrong}\nTo accept: UPDATE=1 cargo test --test host doctor");
}
