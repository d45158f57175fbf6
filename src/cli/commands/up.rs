//! `slurminit up`: starts a cluster in a container whose PID 1 is another program.

use std::path::Path;
use std::time::Duration;

use super::Configuration;
use super::health::parse_wait;
use super::run::wait_for_running_cluster;
use crate::output::{error_line, print_line};
use control::status;
use install::load_config;
use machine::PhaseName;
use machine::Status;
use model::{exit_code, printable};
use startup::start::Cluster;
use startup::take_token::take_token;
use startup::take_variables::take_variables;
use startup::up;
use startup::up::Outcome;
use sys::lock;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Wait until the cluster is ready, at most this many seconds [default: the configured start timeout, which is 90 by default]
    #[arg(long, value_name = "SECONDS", value_parser = parse_wait)]
    timeout: Option<Duration>,
}

impl Args {
    fn limit(&self) -> Duration {
        self.timeout.unwrap_or_else(|| self.cluster.start_timeout())
    }
}

pub(crate) fn run(mut args: Args, configuration: &Configuration) -> anyhow::Result<u8> {
    args.cluster.config.clone_from(&configuration.config);
    let directory = load_config::run_directory(args.cluster.file())?;
    if let Some(status) = status::of_running_slurminit(&directory) {
        if status.snapshot.phase != PhaseName::Stopping {
            return Ok(report_running(&args, &directory));
        }
        let stop = args.cluster.configured().unwrap_or_default().supervise.stop_timeout();
        anyhow::ensure!(
            up::wait_for_end(&status, stop),
            "the previous cluster (pid {}) did not stop in time; see /var/log/slurminit.log or `docker logs`",
            status.process.pid
        );
    }
    if let Err(error) = take_token(None, None) {
        error_line(format_args!("slurminit: {error}"));
        return Ok(exit_code::CONFIG);
    }
    let (config, _) = args.cluster.load()?;
    anyhow::ensure!(config.role != config::Role::None, "the role `none` has no cluster to start");
    if let Err(error) = take_variables(args.cluster.file(), None) {
        error_line(format_args!("slurminit: {error}"));
        return Ok(exit_code::CONFIG);
    }
    let (run, stop) = (&config.paths.run, config.supervise.stop_timeout());
    let outcome = up::start(&args.cluster.arguments()?, run, args.limit(), stop)?;
    let (code, why) = match outcome {
        Outcome::Ready(status) => {
            print_line(printable::line(&ready_message(&status)))?;
            return Ok(exit_code::SUCCESS);
        }
        // A concurrent `slurminit up` or `slurminit run` has taken the lock.
        Outcome::Ended(exit_code::FAILURE) if lock::holder_other_than_parent(Path::new("/"), run).is_some() => {
            return Ok(report_running(&args, run));
        }
        // A user stopped the cluster.
        Outcome::Ended(exit_code::SUCCESS) => (exit_code::FAILURE, "stopped before it was ready".to_owned()),
        Outcome::Ended(code) => (code, format!("exit code {code}; see the lines above")),
        Outcome::Late(why) => (exit_code::NOT_READY, why),
    };
    for line in up::last_lines() {
        error_line(printable::line(&line));
    }
    error_line(format_args!("slurminit: the cluster did not start: {why}. Full log: {}", up::LOG));
    Ok(code)
}

fn ready_message(status: &Status) -> String {
    let ms = status.snapshot.timeline.iter().filter_map(|span| span.until_us).max().unwrap_or_default() / 1000;
    let summary = status.snapshot.prepared.as_ref().map(|prepared| prepared.summary.as_str()).unwrap_or_default();
    format!("the cluster is ready after {ms} ms: {summary}. Log: {}", up::LOG)
}

/// Waits until the running cluster is ready, and reports it. Starts nothing.
fn report_running(args: &Args, directory: &Path) -> u8 {
    match wait_for_running_cluster(&args.cluster, directory, args.limit()) {
        Ok(status) => {
            let _ = print_line(format_args!("the cluster is already running (pid {})", status.process.pid));
            exit_code::SUCCESS
        }
        Err(code) => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::{Part, Snapshot, Span};
    use model::prepared::Prepared;
    use sys::proc;

    #[test]
    fn cluster_is_ready_after_last_span_of_its_start() {
        let span = |until_us| Span { part: Part::Detection, from_us: 0, until_us };
        let prepared = Some(Prepared { summary: "2 GPUs".to_owned(), ..Prepared::default() });
        let timeline = vec![span(Some(12_345)), span(Some(97_654)), span(None)];
        let snapshot = Snapshot { timeline, prepared, ..Snapshot::default() };
        let status = Status { version: String::new(), process: proc::own_id(), started_ms: 0, snapshot };
        assert_eq!(ready_message(&status), format!("the cluster is ready after 97 ms: 2 GPUs. Log: {}", up::LOG));
    }
}
