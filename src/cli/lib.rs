//! The command line.

#![forbid(unsafe_code)]
// `print!` and `eprint!` panic if the reader has closed the pipe; the module `output` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod commands;
pub mod examples;
mod output;
pub mod slurm_client;
mod version;

use clap::{CommandFactory as _, FromArgMatches as _, Parser};

use crate::commands::{Configuration, Verb};
use config::ConfigError;
use model::{exit_code, message};
use startup::take_variables::drop_keys;
use sys::{inherited, report};

/// PID 1 of a GPU-aware Slurm container.
#[derive(Debug, Parser)]
#[command(version = version::LINE.as_str(), about)]
pub struct Cli {
    #[command(flatten)]
    configuration: Configuration,
    #[command(subcommand)]
    verb: Verb,
}

impl Cli {
    /// Parses the arguments of the process. The help text of a verb ends with its examples, which are read only for a help text.
    pub fn of_process() -> Self {
        let mut command = Self::command();
        if std::env::args_os().any(|argument| argument == "--help" || argument == "-h" || argument == "help") {
            command = examples::add(command);
        }
        Self::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
    }

    /// Runs the verb. If it fails, prints one message to standard error and returns a code other than 0.
    pub fn run(self) -> u8 {
        if !matches!(self.verb, Verb::Run(_)) {
            inherited::unblock();
        }
        if !matches!(self.verb, Verb::Run(_) | Verb::Up(_)) {
            drop_keys();
        }
        self.verb.run(&self.configuration).unwrap_or_else(|error| {
            report::fail(message!("verb-failed", "{error}", error = format!("{error:#}")));
            if error.is::<ConfigError>() { exit_code::CONFIG } else { exit_code::FAILURE }
        })
    }
}
