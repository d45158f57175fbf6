//! The program that PID 1 is: see the crate's documentation.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(init::run(std::env::args_os()))
}
