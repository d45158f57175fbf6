//! The slurminit binary: chooses the verb and returns its exit code.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    ExitCode::from(slurminit::cli::Cli::parse().run())
}
