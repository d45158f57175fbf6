//! `slurminit reload`: has PID 1 detect again and apply what changed, and waits for the outcome.

use std::fs::OpenOptions;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::health::is_alive;
use super::{load_config, prepare, render};
use crate::config::Config;
use crate::exit_code;
use crate::report::Apply;
use crate::supervise::REQUEST;
use crate::supervise::machine::{LastReload, Outcome};
use crate::supervise::status::{self, Status};

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
    let run = &config.paths.run;
    let status = match (running(run), broken) {
        (Ok(status), _) => status,
        (Err(_), Some(error)) => return Err(error.into()),
        (Err(error), None) => return Err(error),
    };
    let outcome = ask(&config, run, &status)?;
    let applied = matches!(outcome.outcome, Outcome::Applied | Outcome::Unchanged);
    if applied {
        println!("{}", outcome.text)
    } else {
        eprintln!("slurminit: {}: {}", word(outcome.outcome), outcome.text)
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

fn running(run: &Path) -> anyhow::Result<Status> {
    let status = status::read(run).with_context(|| {
        format!("{}: no slurminit runs here as PID 1 of a cluster", run.join(status::FILE).display())
    })?;
    anyhow::ensure!(is_alive(status.pid), "slurminit (pid {}) is gone", status.pid);
    Ok(status)
}

fn ask(config: &Config, run: &Path, before: &Status) -> anyhow::Result<LastReload> {
    let news = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    news.add_watch(run, AddWatchFlags::IN_MOVED_TO)?;
    let request = run.join(REQUEST);
    let file = OpenOptions::new().write(true).open(&request).with_context(|| {
        format!("{}: cannot ask for a reload; are you root? Else send SIGHUP to PID 1", request.display())
    })?;
    drop(file);
    let patience = config.supervise.prepare_timeout + config.supervise.ready_timeout * 2 + MARGIN;
    let start = Instant::now();
    loop {
        let status = running(run)?;
        let reload = status.snapshot.reload;
        if let Some(last) = reload.last.filter(|last| last.serves > before.snapshot.reload.asked) {
            return Ok(last);
        }
        let left = patience.saturating_sub(start.elapsed());
        anyhow::ensure!(!left.is_zero(), "no outcome after {} s; the log says more", patience.as_secs());
        anyhow::ensure!(status.snapshot.phase != "stopping", "the container stops");
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        poll(&mut [PollFd::new(news.as_fd(), PollFlags::POLLIN)], left)?;
        while news.read_events().is_ok() {}
    }
}

fn dry_run(config: &Config) -> anyhow::Result<u8> {
    let root = Path::new("/");
    let inventory = render::inventory(config, root, None)?;
    let weighed = match prepare::weigh(config, &inventory, root, None) {
        Ok(weighed) => weighed,
        Err(failure) => {
            let finding = failure.finding;
            eprintln!("slurminit: refused: {}; cause: {}; repair: {}", finding.what, finding.cause, finding.repair);
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
