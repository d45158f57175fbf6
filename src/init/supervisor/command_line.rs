//! Builds command lines.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;

/// A program and its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CommandLine(Vec<OsString>);

impl CommandLine {
    pub(super) fn new<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> Self {
        Self(words.into_iter().map(|word| word.as_ref().to_owned()).collect())
    }

    /// The command line `slurminit VERB`. `slurminit` is in the same directory as PID 1's program.
    pub(super) fn own(verb: &str) -> Self {
        let program = std::env::current_exe().map(|init| init.with_file_name("slurminit").into_os_string());
        Self(vec![program.unwrap_or_else(|_| "slurminit".into()), verb.into()])
    }

    /// Whether the program is slurminit.
    pub(super) fn is_own(&self) -> bool {
        let own = Self::own("");
        self.0.first().is_some_and(|program| program == "slurminit" || Some(program) == own.0.first())
    }

    /// The command line `slurminit jobs` for a node.
    pub(super) fn jobs(node: &str) -> Self {
        Self::own("jobs").option("--node", node)
    }

    pub(super) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.0.push(argument.as_ref().to_owned());
        self
    }

    pub(super) fn flag(self, name: &str, is_set: bool) -> Self {
        if is_set { self.arg(name) } else { self }
    }

    pub(super) fn option(self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.arg(name).arg(value)
    }

    pub(super) fn options<'a, V: AsRef<OsStr>>(self, options: impl IntoIterator<Item = (&'a str, V)>) -> Self {
        options.into_iter().fold(self, |command, (name, value)| command.option(name, value))
    }

    /// Appends the words of another command line.
    pub(super) fn then(mut self, mut other: Self) -> Self {
        self.0.append(&mut other.0);
        self
    }

    pub(super) fn into_argv(self) -> Vec<Vec<u8>> {
        self.0.into_iter().map(OsString::into_vec).collect()
    }
}
