//! `slurminit health`: checks whether the cluster is ready or alive, for HEALTHCHECK and probes.

use std::time::Duration;

use super::Configuration;
use crate::output::print_line;
use install::load_config;
use model::{exit_code, printable};
use plan::target::Target;
use startup::health::{self, Readiness};
use startup::state_disk;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Check whether jobs can run now (the default)
    #[arg(long)]
    ready: bool,
    /// Check whether PID 1 responds and no essential daemon was given up; also succeeds during a start and a stop
    #[arg(long, conflicts_with = "ready")]
    live: bool,
    /// Wait until jobs can run, at most this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_wait, conflicts_with = "live")]
    wait: Duration,
    /// For HEALTHCHECK: if the cluster first became ready at least this many seconds ago, watch it for the same time, and fail as soon as it is
    /// not ready
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_wait, conflicts_with = "live")]
    hold: Duration,
    /// Treat a drained node as ready while it has jobs. For the readiness probe of a pod: a pod that is not ready may be evicted
    #[arg(long, conflicts_with = "live")]
    allow_draining: bool,
}

pub(super) fn parse_wait(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected a number of seconds from 0 to 86400".to_owned())
}

/// Checks that this container's slurmctld, if any, can save the jobs that it accepts. The error is the reason.
fn check_state_disk(configuration: &Configuration) -> Result<(), String> {
    let Ok(config) = configuration.load() else { return Ok(()) };
    if !Target::of(&config).has_state() {
        return Ok(());
    }
    state_disk::check_free_space(&state_disk::directory(&config.paths)).map_err(|error| error.to_string())
}

/// Prints one line. The exit code is 0 if the check succeeded, otherwise 1.
pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<u8> {
    let directory = &load_config::run_directory(configuration.file())?;
    let readiness = Readiness { wait: args.wait, hold: args.hold, allows_draining: args.allow_draining };
    let (is_healthy, why) = match args.live {
        true => health::check_liveness(directory),
        false => match health::check_readiness(directory, readiness) {
            (true, why) => check_state_disk(configuration).map_or_else(|why| (false, why), |()| (true, why)),
            not_ready => not_ready,
        },
    };
    print_line(printable::line(&why))?;
    Ok(if is_healthy { exit_code::SUCCESS } else { exit_code::FAILURE })
}
