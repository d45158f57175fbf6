//! `slurminit submit`: submits a command to particular nodes and GPUs, one job for each target.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::output::error_line;
use anyhow::Context as _;

use super::Configuration;
use crate::commands::nodes::query_cluster;
use model::printable;
use slurm::nodes::finish;
use slurm::nodes::targets::{GpuRequest, Target};
use sys::tool;
use sys::tool::answer::first_line;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A node and its GPUs: compute-1::0,2 or compute-1::all; without GPUs: compute-1
    #[arg(short, long = "target", required = true, value_name = "NODE[::GPUS]")]
    targets: Vec<Target>,
    /// The CPUs of each job
    #[arg(short, long, value_name = "COUNT")]
    cores: Option<u32>,
    /// The memory of each job, such as 16G
    #[arg(short, long, value_name = "SIZE")]
    memory: Option<String>,
    /// The file for the command's output; %j is the job ID
    #[arg(short, long, value_name = "FILE", default_value = "slurm-%j.out")]
    output: String,
    /// Another option of sbatch: --sbatch=--time=10; can be repeated
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    sbatch: Vec<OsString>,
    /// Wait until all jobs have ended; exit with 1 if one has failed
    #[arg(long)]
    wait: bool,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Timeout of the submission of a job.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Environment variables that can make sbatch request GPUs other than those of a target.
const GPU_VARIABLES: [&str; 7] = [
    "SBATCH_GRES",
    "SBATCH_GPUS",
    "SBATCH_GPUS_PER_NODE",
    "SBATCH_GPUS_PER_TASK",
    "SBATCH_GPUS_PER_SOCKET",
    "SBATCH_TRES_PER_TASK",
    "SBATCH_EXCLUSIVE",
];

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<()> {
    let cluster = query_cluster(configuration.file())?;
    // All requests must be possible before one is submitted.
    let requests = args.targets.iter().map(|target| Ok((target, target.request(cluster.node(&target.node)?)?)));
    let requests: Vec<(&Target, GpuRequest)> = requests.collect::<anyhow::Result<_>>()?;
    let mut jobs = Vec::new();
    for (target, request) in requests {
        let job = submit(&args, target, &request).with_context(|| {
            let before = if jobs.is_empty() { "none".to_owned() } else { jobs.join(", ") };
            format!("{}: submission failed (jobs submitted before: {before})", target.node)
        })?;
        super::print(&format!("{job}\n"))?;
        print_submitted(&args, target, &request, &job);
        jobs.push(job);
    }
    if !args.wait {
        return Ok(());
    }
    let failed = finish::wait(&jobs)?;
    anyhow::ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// Prints to standard error: standard output contains only the job IDs, for programs.
fn print_submitted(args: &Args, target: &Target, request: &GpuRequest, job: &str) {
    let waits = match request.busy.is_empty() {
        true => String::new(),
        false => format!("; waits for {}", request.busy.join(", ")),
    };
    let output = args.output.replace("%j", job);
    let line = format!("job {job}: {} with {request}, output {output}{waits}", target.node);
    error_line(printable::line(&line));
}

/// Submits the job, and returns its ID.
fn submit(args: &Args, target: &Target, request: &GpuRequest) -> anyhow::Result<String> {
    let mut sbatch = Command::new("sbatch");
    for variable in GPU_VARIABLES {
        sbatch.env_remove(variable);
    }
    sbatch.arg("--parsable").arg(format!("--job-name={}", job_name(&args.command)));
    sbatch.args(args.cores.map(|cores| format!("--cpus-per-task={cores}")));
    sbatch.args(args.memory.as_ref().map(|memory| format!("--mem={memory}")));
    sbatch.args(&args.sbatch);
    // If an option is given several times, sbatch uses the last one, so these override `--sbatch`.
    sbatch.arg(format!("--nodelist={}", target.node)).arg("--nodes=1").arg(format!("--output={}", args.output));
    sbatch.args(request.gres.as_ref().map(|gres| format!("--gres={gres}")));
    let mut wrapped = OsString::from("--wrap=");
    wrapped.push(script(&args.command));
    run_sbatch(sbatch.arg(wrapped))
}

/// Runs sbatch, whose arguments must include `--parsable`, and returns the job's ID.
pub(super) fn run_sbatch(sbatch: &mut Command) -> anyhow::Result<String> {
    let output = tool::output(sbatch, SUBMIT_TIMEOUT).context("sbatch failed")?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "sbatch: {}", first_line([errors.as_ref(), stdout.as_ref()]));
    // With several clusters sbatch prints `JOB;CLUSTER`.
    let job = stdout.trim().split(';').next().unwrap_or_default();
    let is_number = !job.is_empty() && job.bytes().all(|byte| byte.is_ascii_digit());
    anyhow::ensure!(is_number, "sbatch printed no job ID: {:?}", first_line([stdout.as_ref()]));
    Ok(job.to_owned())
}

/// The program's name without characters that a terminal interprets, at most 64 characters; `slurminit` if it is empty.
fn job_name(command: &[OsString]) -> String {
    let program = command.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
    let name: String = program.to_string_lossy().chars().filter(|c| !printable::is_active(*c)).take(64).collect();
    if name.is_empty() { "slurminit".to_owned() } else { name }
}

/// `exec 'CMD' 'ARGUMENT'`: the command itself gets the job's signals.
fn script(command: &[OsString]) -> OsString {
    let mut script = b"exec".to_vec();
    for word in command {
        script.push(b' ');
        script.extend(quote(word));
    }
    OsString::from_vec(script)
}

/// Quotes a word for a shell: between single quotes, only a single quote is special.
fn quote(word: &OsStr) -> Vec<u8> {
    let mut quoted = b"'".to_vec();
    for byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend(b"'\\''"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_runs_exact_arguments() {
        let hostile: [&[u8]; 7] =
            [b"", b"a b", b"it's", b"$(id) `id` \\ \"", b"line\n#SBATCH --mem=1\n", b"-x", b"\xff\xfe*?~"];
        for word in hostile {
            let command = [OsString::from("printf"), "%s".into(), OsString::from_vec(word.to_vec())];
            let mut shell = Command::new("sh");
            let output = tool::output(shell.arg("-c").arg(script(&command)), SUBMIT_TIMEOUT).unwrap();
            assert_eq!(output.stdout, word, "{word:?}");
        }
        assert_eq!(job_name(&["/opt/a b/train\n.py".into()]), "train.py");
        assert_eq!(job_name(&["..".into()]), "slurminit");
    }
}
