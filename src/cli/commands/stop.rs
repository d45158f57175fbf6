//! `slurminit stop`: ends the container, as TERM does, or the cluster beside another PID 1.

use init::control;
use init::control::client;
use init::control::protocol::Request;
use init::status;
use model::exit_code;
use startup::up;

pub(crate) use super::Configuration as Args;

/// Waits for the end where this process lives to see it: not under PID 1, with which everything ends.
pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let config = args.load()?;
    let running = status::of_the_living(&config.paths.run);
    client::ask(&control::socket(&config.paths.run), &Request::Stop)?;
    match running.filter(|status| status.pid != 1) {
        None => println!("the container stops"),
        Some(status) => {
            let stop = config.supervise.stop_timeout();
            anyhow::ensure!(up::wait_for_end(&status, stop), "the cluster (pid {}) has not ended in time", status.pid);
            println!("the cluster has ended");
        }
    }
    Ok(exit_code::SUCCESS)
}
