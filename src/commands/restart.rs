//! `slurminit restart`: restarts a daemon or service, and waits for the result.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::Configuration;
use crate::config::DaemonName;
use crate::control::{self, client, protocol::Reply, protocol::Request};
use crate::supervise::machine::{LastExit, UnitSnapshot, UnitState};
use crate::supervise::status::{self, News};
use crate::{exit_code, state_disk};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The daemon or service
    name: String,
    /// How long to wait for it, in seconds [default: supervise.stop_timeout and ready_timeout together]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    #[command(flatten)]
    at: Configuration,
}

/// The longest time between two looks at the status.
const LOOK: Duration = Duration::from_secs(1);

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let config = args.at.load()?;
    let limit = match args.timeout {
        Some(seconds) => Duration::try_from_secs_f64(seconds).context("--timeout")?,
        None => config.supervise.stop_timeout() + config.supervise.ready_timeout,
    };
    let (name, directory) = (&args.name, &config.paths.run);
    // PID 1 refuses other users itself.
    if *name == DaemonName::Slurmctld.as_str() && nix::unistd::geteuid().is_root() {
        state_disk::try_to_save(&state_disk::directory(&config.paths)).context("slurmctld is not restarted")?;
    }
    let news = News::of(directory);
    let start = Instant::now();
    let request = Request::Restart { name: name.clone() };
    let (reply, _) = client::ask(&control::socket(directory), &request)?;
    let Reply::Restarting { starts } = reply else { anyhow::bail!("slurminit answered something else: {reply:?}") };
    loop {
        let Ok(status) = status::read(directory) else {
            anyhow::ensure!(start.elapsed() < limit, "the status cannot be read: see `slurminit status`");
            news.wait(Duration::from_millis(10));
            continue;
        };
        let unit = status.snapshot.units.iter().find(|unit| unit.name == *name);
        let unit = unit.with_context(|| format!("{name} is no longer there"))?;
        match fate(unit, starts) {
            Fate::Ready => {
                let pid = unit.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
                println!("{name} is ready again after {} ms{pid}", start.elapsed().as_millis());
                return Ok(exit_code::SUCCESS);
            }
            Fate::Ended => {
                println!("{name} ran and {}", unit.how_it_ended());
                return Ok(exit_code::SUCCESS);
            }
            Fate::Failed => anyhow::bail!(
                "{name} was started again and is {}: it {}; see `slurminit logs {name}`",
                unit.state,
                unit.how_it_ended(),
            ),
            Fate::UnderWay => {}
        }
        let left = limit.checked_sub(start.elapsed()).filter(|left| !left.is_zero());
        let late = || format!("{name} is {} after {} s; see `slurminit logs {name}`", unit.state, limit.as_secs());
        let left = left.with_context(late)?;
        // On a full disk the file is overwritten in place, which causes no event.
        news.wait(left.min(LOOK));
    }
}

/// The outcome of a restart.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    UnderWay,
    Ready,
    /// It ended and was not meant to stay.
    Ended,
    Failed,
}

/// `starts` is how often it had been started before.
fn fate(unit: &UnitSnapshot, starts: u32) -> Fate {
    match unit.state {
        _ if unit.starts <= starts => Fate::UnderWay,
        UnitState::Ready => Fate::Ready,
        UnitState::Finished if unit.last_exit == Some(LastExit::Success) => Fate::Ended,
        UnitState::BackingOff | UnitState::GivenUp | UnitState::Finished => Fate::Failed,
        UnitState::Waiting | UnitState::Starting | UnitState::Stopping => Fate::UnderWay,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_happened_after_the_restart_counts() {
        let fate = |starts, state, last: Option<&str>| {
            let last_exit = last.map_or(LastExit::Success, |last| LastExit::Failure(last.to_owned()));
            let unit = UnitSnapshot { state, starts, last_exit: Some(last_exit), ..UnitSnapshot::default() };
            fate(&unit, 3)
        };
        assert_eq!(fate(3, UnitState::Ready, None), Fate::UnderWay, "it has not ended yet");
        assert_eq!(fate(3, UnitState::BackingOff, Some("exited with code 1")), Fate::UnderWay, "it failed before");
        assert_eq!(fate(4, UnitState::Starting, None), Fate::UnderWay);
        assert_eq!(fate(4, UnitState::Ready, None), Fate::Ready);
        assert_eq!(fate(4, UnitState::Finished, None), Fate::Ended);
        assert_eq!(fate(4, UnitState::Finished, Some("exited with code 2")), Fate::Failed);
        assert_eq!(fate(4, UnitState::BackingOff, Some("was killed by signal 9 (SIGKILL)")), Fate::Failed);
    }
}
