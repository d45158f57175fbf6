//! The entry point of PID 1; see the crate's documentation.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(init::run(std::env::args_os()))
}
