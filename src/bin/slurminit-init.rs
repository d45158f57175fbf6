//! The program that PID 1 is: src/init.rs.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    ExitCode::from(slurminit::init::Init::parse().run())
}
