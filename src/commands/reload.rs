//! `slurminit reload`: makes PID 1 run detection again and apply what changed, and waits for the outcome.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::Configuration;
use crate::config::Config;
use crate::control::{self, client, protocol::Reply, protocol::Request};
use crate::prepared::Apply;
use crate::supervise::machine::{LastReload, Outcome, PhaseName};
use crate::supervise::status::is_alive;
use crate::supervise::status::{self, News};
use crate::{exit_code, load_config, prepare};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show what would change and how it would be applied; changes nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    at: Configuration,
}

/// How much longer than its own deadlines a reload may take on a busy machine.
const MARGIN: Duration = Duration::from_secs(30);
/// The longest time between two looks at the status.
const LOOK: Duration = Duration::from_secs(1);

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let config = args.at.load();
    if args.dry_run || load_config::is_missing(args.at.file()) {
        return dry_run(&config?, args.at.file());
    }
    // PID 1 refuses a broken file. It is found if its run directory is the default one.
    let (config, broken) = match config {
        Ok(config) => (config, None),
        Err(error) => (Config::default(), Some(error)),
    };
    let outcome = match (ask(&config), broken) {
        (Ok(outcome), _) => outcome,
        (Err(_), Some(error)) => return Err(error.into()),
        (Err(error), None) => return Err(error),
    };
    let applied = matches!(outcome.outcome, Outcome::Applied | Outcome::Unchanged);
    if applied {
        println!("{}", crate::printable::line(&outcome.text))
    } else {
        eprintln!("slurminit: {}: {}", word(outcome.outcome), crate::printable::line(&outcome.text))
    }
    Ok(if applied { exit_code::SUCCESS } else { exit_code::FAILURE })
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Unchanged => "nothing changed",
        Outcome::Applied => "reloaded",
        Outcome::Refused => "refused, everything runs as before",
        Outcome::WentBack => "taken back",
        Outcome::Failed => "failed",
    }
}

fn ask(config: &Config) -> anyhow::Result<LastReload> {
    let run = &config.paths.run;
    let news = News::of(run);
    let (reply, _) = client::ask(&control::socket(run), &Request::Reload)?;
    let Reply::Reloading { asked } = reply else { anyhow::bail!("slurminit answered something else: {reply:?}") };
    let patience = config.supervise.prepare_timeout + config.supervise.ready_timeout * 2 + MARGIN;
    let start = Instant::now();
    loop {
        let status = status::read(run).ok();
        let reload = status.as_ref().map(|status| &status.snapshot.reload);
        if let Some(last) = reload.and_then(|reload| reload.last.clone()).filter(|last| last.serves >= asked) {
            return Ok(last);
        }
        let stops = status.is_some_and(|status| status.snapshot.phase == PhaseName::Stopping || !is_alive(status.pid));
        anyhow::ensure!(!stops, "the container stops");
        let left = patience.checked_sub(start.elapsed()).filter(|left| !left.is_zero());
        let left = left.with_context(|| format!("no outcome after {} s; the log says more", patience.as_secs()))?;
        // On a full disk the file is overwritten in place, which causes no event.
        news.wait(left.min(LOOK));
    }
}

fn dry_run(config: &Config, config_file: Option<&Path>) -> anyhow::Result<u8> {
    let weighed = match prepare::dry_run(config, config_file) {
        Ok(weighed) => weighed,
        Err(refusal) => {
            eprintln!("slurminit: refused: {}", crate::printable::line(&refusal.finding.to_string()));
            return Ok(exit_code::FAILURE);
        }
    };
    print!("{}", weighed.difference);
    match weighed.change.apply {
        Apply::Nothing => println!("it takes nothing"),
        Apply::Reconfigure => println!("it takes `scontrol reconfigure`: {}", weighed.change.news.join(", ")),
        Apply::Restart => println!("it takes a restart of slurmctld and slurmd: {}", weighed.change.news.join(", ")),
    }
    if !weighed.deferred.is_empty() {
        println!("not taken before the next start of the container: {}", weighed.deferred.join(", "));
    }
    Ok(exit_code::SUCCESS)
}
