//! The slurminit binary: chooses the verb, or executes a command of Slurm, and returns its exit code.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(cli::slurm_client::execute_by_name().unwrap_or_else(|| cli::Cli::of_process().run()))
}
