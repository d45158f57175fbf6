//! The slurminit binary: chooses the verb and returns its exit code.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    ExitCode::from(cli::Cli::parse().run())
}
