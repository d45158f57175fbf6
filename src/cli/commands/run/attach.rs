//! Runs a command in a cluster that is already running in this container.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::output::error_line;
use config::Config;
use control::status;
use machine::Status;
use model::{exit_code, printable};
use startup::health::{self, Readiness};
use startup::jobs;
use startup::start::Cluster;
use sys::{outer_job, secret_variables};

/// Returns the status of the running cluster once it is ready. If it does not become ready or differs from the options, prints the reason and
/// returns the exit code.
pub(in crate::commands) fn wait_for_running_cluster(
    cluster: &Cluster,
    directory: &Path,
    limit: Duration,
) -> Result<Status, u8> {
    let is_running = status::of_running_slurminit(directory).is_some_and(|status| status.snapshot.ready);
    // If slurminit reports ready, the node is not checked: it may be drained on purpose.
    let (is_ready, why) = if is_running {
        (true, String::new())
    } else {
        health::check_readiness(directory, Readiness { wait: limit, ..Readiness::default() })
    };
    let status = status::of_running_slurminit(directory);
    if is_ready && status.is_none() {
        error_line("slurminit: the cluster in this container has ended");
        return Err(exit_code::NOT_READY);
    }
    let Some(status) = status.filter(|_| is_ready) else {
        let (seconds, why) = (limit.as_secs_f64(), printable::line(&why));
        error_line(format_args!("slurminit: the cluster in this container was not ready after {seconds} s: {why}"));
        return Err(exit_code::NOT_READY);
    };
    if let Some(contradiction) = cluster.contradiction(&status.snapshot) {
        let pid = status.process.pid;
        error_line(format_args!(
            "slurminit: the cluster in this container (pid {pid}) {contradiction}; omit the option, or run `slurminit stop` first"
        ));
        return Err(exit_code::FAILURE);
    }
    Ok(status)
}

/// Executes the command once the cluster is ready. If jobs are to be waited for, the command runs as a child.
pub(super) fn run(cluster: &Cluster, config: &Config, cmd: &[OsString]) -> anyhow::Result<u8> {
    if let Err(code) = wait_for_running_cluster(cluster, &config.paths.run, cluster.start_timeout()) {
        return Ok(code);
    }
    let Some((program, arguments)) = cmd.split_first() else { return Ok(exit_code::SUCCESS) };
    let mut command = Command::new(program);
    command.args(arguments);
    secret_variables::remove_from(&mut command);
    outer_job::remove_from(&mut command);
    let error = match config.jobs.wait {
        false => command.exec(),
        true => match wait(&mut command) {
            Ok(code) => return jobs::wait().map(|()| code),
            Err(error) => error,
        },
    };
    let name = program.to_string_lossy();
    error_line(format_args!("slurminit: `{}` cannot be executed: {error}", printable::line(&name)));
    let is_missing = error.kind() == std::io::ErrorKind::NotFound;
    Ok(if is_missing { exit_code::CMD_NOT_FOUND } else { exit_code::CMD_NOT_EXECUTABLE })
}

#[expect(clippy::disallowed_methods, reason = "this process is not PID 1 and waits only for its own child")]
fn wait(command: &mut Command) -> std::io::Result<u8> {
    command.status().map(exit_code::of)
}
