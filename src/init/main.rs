//! The program that PID 1 is: see the crate's documentation.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(init::run(std::env::args_os()))
}
