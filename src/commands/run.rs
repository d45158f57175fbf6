//! `slurminit run`: PID 1.

mod first_word;

use std::ffi::OsString;
use std::io::Write as _;

use tracing::warn;

use super::Configuration;
use crate::config::{Config, Held, Level, Role};
use crate::inventory::Finding;
use crate::lock::Lock;
use crate::logs::Logs;
use crate::supervise::signals::Inherited;
use crate::supervise::target::Target;
use crate::supervise::{self, Job};
use crate::take_token::take_token;
use crate::text_type::word;
use crate::{exit_code, load_config};
use first_word::Meaning;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which daemons to run: all, controller, compute, login, or none for a plain init of CMD
    #[arg(long, value_parser = parse_role)]
    role: Option<Role>,
    #[command(flatten)]
    at: Configuration,
    /// Join the cluster of this token, which `slurminit join-command` prints in the controller's container
    #[arg(long, value_name = "TOKEN")]
    join: Option<OsString>,
    /// Simulate a cluster of so many nodes in this container
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// After CMD has ended, continue until no job is left that can still run
    #[arg(long)]
    wait_jobs: bool,
    /// The command to run when the cluster is ready; its exit code becomes the container's
    #[arg(last = true, value_name = "CMD")]
    cmd: Vec<OsString>,
}

fn parse_role(text: &str) -> Result<Role, &'static str> {
    word(text).map_err(|_| "want all, controller, compute, login or none")
}

pub(crate) fn run(mut args: Args) -> anyhow::Result<u8> {
    let given = first_word::token(&args.cmd).or_else(|| args.join.as_deref().map(Some));
    if let Err(untaken) = take_token(given) {
        eprintln!("slurminit: {untaken}");
        return Ok(exit_code::CONFIG);
    }
    match first_word::take_nodes(&mut args.cmd) {
        Ok(nodes) => args.nodes = nodes.or(args.nodes),
        Err(why) => {
            eprintln!("slurminit: {why}");
            return Ok(exit_code::CONFIG);
        }
    }
    match first_word::meaning(&args.cmd, &first_word::is_program) {
        Meaning::Command => {}
        Meaning::Help => return say(&first_word::help()),
        Meaning::Version => return say(&format!("{}\n", first_word::version())),
        Meaning::Verb => args.cmd.insert(0, std::env::current_exe()?.into_os_string()),
        Meaning::Option => {
            let option = args.cmd.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
            eprintln!(
                "slurminit: `{}` is no command; options of `docker run` stand before the image's name, and \
                 `docker run IMAGE --help` says what can follow it",
                crate::printable::lines(&option)
            );
            return Ok(exit_code::CMD_NOT_FOUND);
        }
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
        Err(running) => {
            eprintln!("slurminit: {running}");
            return Ok(exit_code::FAILURE);
        }
    };
    let default_level = if args.cmd.is_empty() { Level::Info } else { Level::Warn };
    let logs = Logs::install(config.log.format, config.log.level.unwrap_or(default_level));
    if std::env::var_os("SLURMINIT_DEMO").is_some_and(|value| !value.is_empty()) {
        warn!("DEMO: the GPUs of this cluster are SIMULATED; no job computes anything on them");
    }
    if let Some(nodes) = config.simulated() {
        let count = nodes.iter().count();
        warn!("the nodes of this cluster are SIMULATED: {count} slurmd in one container, which share what it has");
    }
    for mended in &lock.mended {
        warn!("{mended}; {}", mended.repair());
    }
    for Finding { what, repair, .. } in load_config::unknown_variables() {
        warn!("{what}; repair: {repair}");
    }
    let watched_file = load_config::file(args.at.file());
    let job = Job { target, config, config_file: args.at.config, watched_file, held, cmd: args.cmd };
    supervise::run(job, inherited, logs)
}

fn say(text: &str) -> anyhow::Result<u8> {
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(exit_code::SUCCESS)
}

fn configuration(args: &Args) -> anyhow::Result<(Config, Held, &'static Target)> {
    let mut config = args.at.load()?;
    let held = Held::of(&config);
    if let Some(role) = args.role {
        config.role = role;
        if let Some(joined) = load_config::joined()? {
            joined.check(&config)?;
        }
    }
    if let Some(nodes) = args.nodes {
        config = config.with_simulated_nodes(nodes)?;
    }
    config.jobs.wait |= args.wait_jobs;
    let target = Target::of(&config);
    if !target.has_cluster && args.cmd.is_empty() {
        anyhow::bail!("the role none runs CMD and nothing else: give one after `--`")
    }
    Ok((config, held, target))
}
