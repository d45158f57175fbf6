//! `slurminit health`: for HEALTHCHECK and probes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::load_config;
use crate::control::client::{self, ControlError};
use crate::control::{self, protocol::Request};
use crate::exit_code;
use crate::now;
use crate::supervise::machine::Snapshot;
use crate::supervise::status::{self, News, Status};

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Whether jobs can run now; the default
    #[arg(long)]
    ready: bool,
    /// Whether PID 1 answers and nothing essential is given up: true during a start and a stop as well
    #[arg(long, conflicts_with = "ready")]
    live: bool,
    /// Wait until it is, for so many seconds at most
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_wait, conflicts_with = "live")]
    wait: Duration,
    /// For HEALTHCHECK: as long as it is, watch for so many seconds before saying so; at once in the first seconds of being ready
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_wait, conflicts_with = "live")]
    hold: Duration,
    /// The configuration; /config/slurminit.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The first pause between two questions to Slurm while it says that no job can run; it doubles. Slurm tells nobody when that
/// changes.
const AGAIN: Duration = Duration::from_millis(250);
/// The longest of these pauses.
const AGAIN_MAX: Duration = Duration::from_secs(2);

fn parse_wait(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "want seconds, from 0 to 86400".to_owned())
}

/// Prints one line, and says by its code whether it is healthy.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let directory = &load_config::run_directory(args.config.as_deref());
    let (healthy, why) = if args.live { live(directory) } else { ready_within(directory, args.wait, args.hold) };
    println!("{}", crate::printable::line(&why));
    Ok(if healthy { exit_code::SUCCESS } else { exit_code::FAILURE })
}

fn live(directory: &Path) -> (bool, String) {
    match running(status::read(directory), directory) {
        Err(why) => (false, why),
        Ok(status) => {
            // Whoever may not ask has the file; so has everybody where the socket could not be made.
            let answer = client::ask(&control::socket(directory), &Request::Ping);
            is_live(&status.snapshot, answer.err())
        }
    }
}

fn ready_within(directory: &Path, wait: Duration, hold: Duration) -> (bool, String) {
    let begin = Instant::now();
    let news = News::of(directory);
    let mut pause = AGAIN;
    loop {
        let left = wait.saturating_sub(begin.elapsed());
        match ready(directory) {
            Ok(since) if hold <= since => return hold_on(directory, &news, hold),
            Ok(_) => return (true, READY.to_owned()),
            Err(why) if left.is_zero() => return (false, why),
            // PID 1's news come at once; Slurm's have to be asked for.
            Err(_) => {
                news.wait(left.min(pause));
                pause = (pause * 2).min(AGAIN_MAX);
            }
        }
    }
}

const READY: &str = "ready";

/// Nothing changes for as long as PID 1 has no news; what Slurm has is asked at the end.
fn hold_on(directory: &Path, news: &News, hold: Duration) -> (bool, String) {
    let begin = Instant::now();
    while let Some(left) = hold.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        news.wait(left);
        match running(status::read(directory), directory) {
            Ok(status) if status.snapshot.ready => {}
            Ok(status) => return (false, status.snapshot.why),
            Err(why) => return (false, why),
        }
    }
    ready(directory).map_or_else(|why| (false, why), |_| (true, READY.to_owned()))
}

/// For how long it has been ready; else why no job can run now.
fn ready(directory: &Path) -> Result<Duration, String> {
    let Status { snapshot, started_ms, .. } = running(status::read(directory), directory)?;
    if !snapshot.ready {
        return Err(snapshot.why);
    }
    let name = snapshot.prepared.as_ref().map(|prepared| prepared.node_name.as_str()).unwrap_or_default();
    if let Some(why) = now::node(name)?.why_closed() {
        return Err(why);
    }
    let start_took = snapshot.timeline.iter().filter_map(|span| span.until_us).max().unwrap_or_default();
    let ready_ms = started_ms + start_took / 1000;
    Ok(Duration::from_millis(status::monotonic_ms().saturating_sub(ready_ms)))
}

/// The status, if the process that wrote it lives; else why there is none.
fn running(status: std::io::Result<Status>, directory: &Path) -> Result<Status, String> {
    match status {
        Err(error) => {
            let file = directory.join(status::FILE);
            Err(format!("no slurminit runs here as PID 1 of a cluster ({}: {error})", file.display()))
        }
        Ok(status) if !is_alive(status.pid) => Err(format!("slurminit (pid {}) is gone", status.pid)),
        Ok(status) => Ok(status),
    }
}

fn is_live(snapshot: &Snapshot, error: Option<ControlError>) -> (bool, String) {
    if let Some(error @ ControlError::NoAnswer { .. }) = error {
        return (false, error.to_string());
    }
    match snapshot.units.iter().find(|unit| unit.essential && unit.state == "given up") {
        Some(unit) => {
            let how = unit.last_exit.as_deref().unwrap_or("ended");
            (false, format!("{name} is given up: it last {how}; `slurminit restart {name}`", name = unit.name))
        }
        None => (true, format!("alive, and {}", if snapshot.ready { "ready" } else { snapshot.phase.as_str() })),
    }
}

/// Whether the process exists; another user's does too, even if it may not be signalled.
pub(super) fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::machine::UnitSnapshot;

    #[test]
    fn without_a_status_file_the_reason_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let why = running(status::read(directory.path()), directory.path()).unwrap_err();
        assert!(why.contains("status.json"), "{why}");
    }

    #[test]
    fn what_is_given_up_and_essential_is_not_live_and_a_start_is() {
        let unit = |name: &str, essential, state: &str| UnitSnapshot {
            name: name.to_owned(),
            essential,
            state: state.to_owned(),
            ..UnitSnapshot::default()
        };
        let snapshot = |units| Snapshot { phase: "starting".to_owned(), units, ..Snapshot::default() };
        let starting = snapshot(vec![unit("munged", true, "backing off"), unit("api", false, "given up")]);
        assert_eq!(is_live(&starting, None), (true, "alive, and starting".to_owned()));
        let (live, why) = is_live(&snapshot(vec![unit("munged", true, "given up")]), None);
        assert!(!live && why.contains("munged is given up"), "{why}");
        let silent = ControlError::NoAnswer { socket: "/run/slurminit/control".into() };
        assert!(!is_live(&starting, Some(silent)).0);
        let not_root = ControlError::NotPermitted { socket: "/run/slurminit/control".into() };
        assert!(is_live(&starting, Some(not_root)).0);
    }
}
