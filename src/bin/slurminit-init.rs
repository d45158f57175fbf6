//! The program that PID 1 is: src/init.rs.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(slurminit::init::run(std::env::args_os()))
}
