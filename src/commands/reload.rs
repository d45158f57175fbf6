//! `slurminit reload`: has PID 1 detect again and apply what changed, and waits for the outcome.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::health::is_alive;
use super::{load_config, prepare, render};
use crate::config::Config;
use crate::control::{self, client, protocol::Reply, protocol::Request};
use crate::exit_code;
use crate::report::Apply;
use crate::supervise::machine::{LastReload, Outcome};
use crate::supervise::status::{self, News};

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show what would change and what it would take; changes nothing
    #[arg(long)]
    dry_run: bool,
    /// The configuration; /config/slurminit.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What a reload may take beyond its own deadlines, on a machine that is busy.
const MARGIN: Duration = Duration::from_secs(30);
/// The longest time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Does it.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let config = load_config::load(args.config.as_deref());
    if args.dry_run {
        return dry_run(&config?);
    }
    // A broken file is for PID 1 to refuse; it is found as long as its run directory is the usual one.
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
        let stops = status.is_some_and(|status| status.snapshot.phase == "stopping" || !is_alive(status.pid));
        anyhow::ensure!(!stops, "the container stops");
        let left = patience.checked_sub(start.elapsed()).filter(|left| !left.is_zero());
        let left = left.with_context(|| format!("no outcome after {} s; the log says more", patience.as_secs()))?;
        // On a full disk the file is written in place, which is no news.
        news.wait(left.min(LOOK));
    }
}

fn dry_run(config: &Config) -> anyhow::Result<u8> {
    let root = Path::new("/");
    let inventory = render::inventory(config, root, None)?;
    let weighed = match prepare::weigh(config, &inventory, root, None) {
        Ok(weighed) => weighed,
        Err(failure) => {
            let finding = failure.finding;
            let refused = format!("refused: {}; cause: {}; repair: {}", finding.what, finding.cause, finding.repair);
            eprintln!("slurminit: {}", crate::printable::line(&refused));
            return Ok(exit_code::FAILURE);
        }
    };
    print!("{}", weighed.difference);
    match weighed.change.apply {
        Apply::Nothing => println!("it takes nothing"),
        Apply::Reconfigure => println!("it takes `scontrol reconfigure`: {}", weighed.change.news.join(", ")),
        Apply::Restart => println!("it takes a restart of slurmctld and slurmd: {}", weighed.change.news.join(", ")),
    }
    Ok(exit_code::SUCCESS)
}
