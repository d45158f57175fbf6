//! `slurminit run`: PID 1.

mod beside;
mod cluster;
mod first_word;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;

use tracing::warn;

use crate::config::{Config, DEFAULT_FILE, Held, Level};
use crate::inventory::Finding;
use crate::lock::Lock;
use crate::logs::Logs;
use crate::supervise::machine::PhaseName;
use crate::supervise::signals::Inherited;
use crate::supervise::status;
use crate::supervise::target::Target;
use crate::supervise::{self, Job};
use crate::take_token::take_token;
use crate::take_variables::{kept_toml, take_variables};
use crate::{exit_code, load_config, up};
use first_word::Meaning;

pub(super) use beside::serving;
pub(super) use cluster::Cluster;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Join the cluster of this token, which `slurminit join-command` prints in the controller's container
    #[arg(long, value_name = "TOKEN")]
    join: Option<OsString>,
    /// After CMD has ended, continue until no job is left that can still run
    #[arg(long)]
    wait_jobs: bool,
    /// Leave the terminal and session of who starts it: for `slurminit up`
    #[arg(long, hide = true)]
    detached: bool,
    /// The command to run when the cluster is ready; its exit code becomes the container's
    #[arg(last = true, value_name = "CMD")]
    cmd: Vec<OsString>,
}

pub(crate) fn run(mut args: Args) -> anyhow::Result<u8> {
    if args.detached {
        up::detach();
    }
    let has_token = args.join.is_some() || first_word::token(&args.cmd).is_some();
    if !has_token {
        if let Some(code) =
            understand(&mut args)?.map_or_else(|| in_the_running_cluster(&args), |code| Ok(Some(code)))?
        {
            return Ok(code);
        }
    }
    // With one on the command line, this process begins anew.
    if let Err(untaken) = take_token(first_word::token(&args.cmd).or_else(|| args.join.as_deref().map(Some))) {
        eprintln!("slurminit: {untaken}");
        return Ok(exit_code::CONFIG);
    }
    // This comes before anything can change them.
    let inherited = Inherited::capture();
    let (config, held, target) = match configuration(&args) {
        Ok(configuration) => configuration,
        Err(error) => {
            eprintln!("slurminit: {error:#}");
            return Ok(exit_code::CONFIG);
        }
    };
    // This comes before anything of a running cluster is touched.
    let lock = match target.has_cluster.then(|| Lock::take(&config.paths.run)).transpose() {
        Ok(lock) => lock.unwrap_or_default(),
        // It has begun this very moment.
        Err(_) if !args.cmd.is_empty() => return beside::run(&args.cluster, &config, &args.cmd),
        Err(running) => {
            eprintln!("slurminit: {running}");
            return Ok(exit_code::FAILURE);
        }
    };
    if target.has_cluster {
        if let Err(untaken) = take_variables(args.cluster.at.file(), || inherited.restore()) {
            eprintln!("slurminit: {untaken}");
            return Ok(exit_code::CONFIG);
        }
    }
    let default_level = if args.cmd.is_empty() { Level::Info } else { Level::Warn };
    let logs = Logs::install(config.log.format, config.log.level.unwrap_or(default_level));
    say_what_is_odd(&config, args.cluster.at.file(), &lock);
    let at = args.cluster.at;
    let watched_file = load_config::file(at.file());
    let job = Job { target, config, config_file: at.config, watched_file, held, cmd: args.cmd };
    supervise::run(job, inherited, logs)
}

/// Interprets what stands in place of a command; the exit code, where that is all.
fn understand(args: &mut Args) -> anyhow::Result<Option<u8>> {
    match first_word::take_nodes(&mut args.cmd) {
        Ok(nodes) => args.cluster.nodes = nodes.or(args.cluster.nodes),
        Err(why) => {
            eprintln!("slurminit: {why}");
            return Ok(Some(exit_code::CONFIG));
        }
    }
    match first_word::meaning(&args.cmd, &first_word::is_program) {
        Meaning::Command => {}
        Meaning::Help => return say(&first_word::help()).map(Some),
        Meaning::Version => return say(&format!("{}\n", first_word::version())).map(Some),
        Meaning::Verb => args.cmd.insert(0, std::env::current_exe()?.into_os_string()),
        Meaning::Option => {
            let option = args.cmd.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
            eprintln!(
                "slurminit: `{}` is no command; options of `docker run` stand before the image's name, and \
                 `docker run IMAGE --help` says what can follow it",
                crate::printable::lines(&option)
            );
            return Ok(Some(exit_code::CMD_NOT_FOUND));
        }
    }
    Ok(None)
}

/// The command's exit code, where a cluster runs in which it can run.
fn in_the_running_cluster(args: &Args) -> anyhow::Result<Option<u8>> {
    let Ok((config, _, target)) = configuration(args) else { return Ok(None) };
    let running = status::of_the_living(&config.paths.run);
    let runs = running.is_some_and(|status| status.snapshot.phase != PhaseName::Stopping);
    if args.cmd.is_empty() || !target.has_cluster || !runs {
        return Ok(None);
    }
    beside::run(&args.cluster, &config, &args.cmd).map(Some)
}

fn say_what_is_odd(config: &Config, file: Option<&Path>, lock: &Lock) {
    if std::env::var_os("SLURMINIT_DEMO").is_some_and(|value| !value.is_empty()) {
        warn!("DEMO: the GPUs of this cluster are SIMULATED; no job computes anything on them");
    }
    if let Some(nodes) = config.simulated() {
        let count = nodes.names.len();
        warn!("the nodes of this cluster are SIMULATED: {count} slurmd in one container, which share what it has");
    }
    if file == Some(&kept_toml()) && Path::new(DEFAULT_FILE).exists() {
        warn!("{DEFAULT_FILE} is not read: SLURMINIT_TOML is the whole configuration; repair: remove one of them");
    }
    for mended in &lock.mended {
        warn!("{mended}; {}", mended.repair());
    }
    for Finding { what, repair, .. } in load_config::unknown_variables() {
        warn!("{what}; repair: {repair}");
    }
}

fn say(text: &str) -> anyhow::Result<u8> {
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(exit_code::SUCCESS)
}

fn configuration(args: &Args) -> anyhow::Result<(Config, Held, &'static Target)> {
    let (mut config, held) = args.cluster.load()?;
    config.jobs.wait |= args.wait_jobs;
    let target = Target::of(&config);
    if !target.has_cluster && args.cmd.is_empty() {
        anyhow::bail!("the role none runs CMD and nothing else: give one after `--`")
    }
    Ok((config, held, target))
}
