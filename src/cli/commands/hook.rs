//! `slurminit hook`: runs an operator's command before or after a job, and reports a failure.
//!
//! slurmd runs it as root through `/etc/slurm/prolog` or `/etc/slurm/epilog`. It does not query Slurm.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use model::message::Report;
use model::{exit_code, message, printable};
use sys::tool;

/// The maximum length of the failure's cause in the message, in characters.
const MAX_CAUSE_CHARS: usize = 300;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The hook's name in slurminit.toml, for messages about a failure
    #[arg(value_parser = ["pre_job", "post_job"])]
    hook: String,
    /// Timeout of the command
    #[arg(long, value_name = "SECONDS")]
    timeout: f64,
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let [program, arguments @ ..] = args.command.as_slice() else { return Ok(exit_code::FAILURE) };
    let timeout = Duration::try_from_secs_f64(args.timeout).unwrap_or(Duration::from_secs(300));
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/");
    let why = match tool::output(&mut command, timeout) {
        Ok(output) if output.status.success() => return Ok(exit_code::SUCCESS),
        Ok(output) => {
            let texts = [output.stderr, output.stdout].map(|text| String::from_utf8_lossy(&text).trim().to_owned());
            let last = texts.iter().find_map(|text| text.lines().last()).unwrap_or("no output");
            format!("{}: {last}", output.status)
        }
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
            format!("timed out after {} s and was killed", timeout.as_secs_f64())
        }
        Err(error) => format!("cannot be executed: {error}"),
    };
    let (hook, program) = (args.hook, program.to_string_lossy());
    let job = std::env::var("SLURM_JOB_ID").unwrap_or_default();
    super::epilog::report(Report::warn(message!(
        "hook-failed",
        "the {hook} hook {program} of job {job} failed: {error}",
        hook,
        program = printable::short(&program, 200),
        job,
        error = printable::short(&why, MAX_CAUSE_CHARS)
    )));
    Ok(exit_code::FAILURE)
}
