//! Looks: files below a root, and programs through `Ask`, which has a deadline. EDGE. Changes nothing.

mod cheap;
mod environment;
mod host;
mod ports;
mod slurm;

pub use cheap::{Places, cheap, cuda};
pub use environment::environment;
pub use host::{clock, containers, image, kubernetes};
pub use slurm::{address, credential, own_credential, seconds, slurm};

use crate::configure::answer::{Answer, first_line};

/// Runs a program with these arguments, not for longer than its deadline.
pub type Ask<'a> = &'a dyn Fn(&str, &[&str]) -> Answer;

/// The standard output of a program, or why there is none.
fn output(ask: Ask<'_>, program: &str, arguments: &[&str]) -> Result<String, String> {
    match ask(program, arguments) {
        Answer::Missing => Err(format!("{program} is not here")),
        Answer::Silent => Err(format!("{program} did not answer in time")),
        Answer::Ended { succeeded: true, stdout, .. } => Ok(stdout),
        Answer::Ended { stdout, stderr, .. } => {
            Err(format!("{program}: {}", first_line([stderr.as_str(), stdout.as_str()])))
        }
    }
}
