//! `slurminit stop`: stops the container as SIGTERM does, or, if PID 1 is another program, only the cluster.

use crate::output::print_line;
use control::client;
use control::status;
use machine::protocol::{self, Request};
use startup::up;

use super::Configuration;

#[derive(Debug, clap::Args)]
pub(crate) struct Args;

/// Waits until the cluster has stopped. If slurminit is PID 1, this does not wait: when PID 1 exits, the kernel kills this process too.
pub(crate) fn run(_: Args, configuration: &Configuration) -> anyhow::Result<()> {
    let config = configuration.load()?;
    let running = status::of_running_slurminit(&config.paths.run);
    client::ask(&protocol::socket(&config.paths.run), &Request::Stop)?;
    match running.filter(|status| status.process.pid != 1) {
        None => print_line("stopping the container")?,
        Some(status) => {
            let stop = config.supervise.stop_timeout();
            anyhow::ensure!(
                up::wait_for_end(&status, stop),
                "the cluster (pid {}) did not stop in time; see /var/log/slurminit.log or `docker logs`",
                status.process.pid
            );
            print_line("the cluster has stopped")?;
        }
    }
    Ok(())
}
