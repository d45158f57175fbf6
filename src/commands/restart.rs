//! `slurminit restart`: starts one daemon or service again, and waits for what becomes of it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::load_config;
use crate::control::{self, client, protocol::Reply, protocol::Request};
use crate::exit_code;
use crate::supervise::machine::UnitSnapshot;
use crate::supervise::status::{self, News};

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The daemon or service
    name: String,
    /// How long to wait for it, in seconds [default: supervise.stop_timeout and ready_timeout together]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// The configuration; /config/slurminit.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The longest time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Does it.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let config = load_config::load(args.config.as_deref())?;
    let limit = match args.timeout {
        Some(seconds) => Duration::try_from_secs_f64(seconds).context("--timeout")?,
        None => config.supervise.stop_timeout + config.supervise.ready_timeout,
    };
    let directory = &config.paths.run;
    let news = News::of(directory);
    let start = Instant::now();
    let request = Request::Restart { name: args.name.clone() };
    let (reply, _) = client::ask(&control::socket(directory), &request)?;
    let Reply::Restarting { starts } = reply else { anyhow::bail!("slurminit answered something else: {reply:?}") };
    loop {
        let Ok(status) = status::read(directory) else {
            anyhow::ensure!(start.elapsed() < limit, "the status cannot be read: see `slurminit status`");
            news.wait(Duration::from_millis(10));
            continue;
        };
        let unit = status.snapshot.units.iter().find(|unit| unit.name == args.name);
        let unit = unit.with_context(|| format!("{} is no longer there", args.name))?;
        match fate(unit, starts) {
            Fate::Ready => {
                let pid = unit.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
                println!("{} is ready again after {} ms{pid}", unit.name, start.elapsed().as_millis());
                return Ok(exit_code::SUCCESS);
            }
            Fate::Ended => {
                println!("{} ran and {}", unit.name, unit.last_exit.as_deref().unwrap_or("ended"));
                return Ok(exit_code::SUCCESS);
            }
            Fate::Failed => anyhow::bail!(
                "{name} was started again and is {}: it {}; see `slurminit logs {name}`",
                unit.state,
                unit.last_exit.as_deref().unwrap_or("ended"),
                name = unit.name,
            ),
            Fate::UnderWay => {}
        }
        let left = limit.checked_sub(start.elapsed()).filter(|left| !left.is_zero());
        let left = left.with_context(|| {
            format!(
                "{name} is {} after {} s; see `slurminit logs {name}`",
                unit.state,
                limit.as_secs(),
                name = args.name
            )
        })?;
        // On a full disk the file is written in place, which is no news.
        news.wait(left.min(LOOK));
    }
}

/// What has become of a unit that is to be started again.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    UnderWay,
    Ready,
    /// It was not meant to stay.
    Ended,
    Failed,
}

/// `starts` is how often it was started before.
fn fate(unit: &UnitSnapshot, starts: u32) -> Fate {
    match unit.state.as_str() {
        _ if unit.starts <= starts => Fate::UnderWay,
        "ready" => Fate::Ready,
        "finished" if unit.last_exit.as_deref() == Some("exited with code 0") => Fate::Ended,
        "backing off" | "given up" | "finished" => Fate::Failed,
        _ => Fate::UnderWay,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_happened_after_the_restart_counts() {
        let fate = |starts, state: &str, last: &str| {
            let unit = UnitSnapshot {
                state: state.to_owned(),
                starts,
                last_exit: Some(last.to_owned()),
                ..UnitSnapshot::default()
            };
            fate(&unit, 3)
        };
        assert_eq!(fate(3, "ready", "exited with code 0"), Fate::UnderWay, "it has not ended yet");
        assert_eq!(fate(3, "backing off", "exited with code 1"), Fate::UnderWay, "it failed before");
        assert_eq!(fate(4, "starting", "exited with code 0"), Fate::UnderWay);
        assert_eq!(fate(4, "ready", "exited with code 0"), Fate::Ready);
        assert_eq!(fate(4, "finished", "exited with code 0"), Fate::Ended);
        assert_eq!(fate(4, "finished", "exited with code 2"), Fate::Failed);
        assert_eq!(fate(4, "backing off", "was killed by signal 9 (SIGKILL)"), Fate::Failed);
    }
}
