//! `slurminit run`: PID 1.

use std::ffi::OsString;
use std::path::PathBuf;

use tracing::warn;

use super::load_config;
use super::lock::Lock;
use crate::config::{Config, Held, Level, Role};
use crate::exit_code;
use crate::logs::Logs;
use crate::supervise::signals::Inherited;
use crate::supervise::{self, Job};

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which daemons to run: all, or none for a plain init of CMD
    #[arg(long, value_parser = parse_role)]
    role: Option<Role>,
    /// The configuration; /config/slurminit.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Runs when the cluster is ready; its exit code is the container's
    #[arg(last = true, value_name = "CMD")]
    cmd: Vec<OsString>,
}

fn parse_role(text: &str) -> Result<Role, String> {
    match text {
        "all" => Ok(Role::All),
        "none" => Ok(Role::None),
        "controller" | "compute" | "login" => Err("not available in this version; use all or none".to_owned()),
        _ => Err("want all or none".to_owned()),
    }
}

/// Does it.
pub fn run(args: Args) -> anyhow::Result<u8> {
    // Before anything can change them.
    let inherited = Inherited::capture();
    let (config, held) = match configuration(&args) {
        Ok(configuration) => configuration,
        Err(error) => {
            eprintln!("slurminit: {error:#}");
            return Ok(exit_code::CONFIG);
        }
    };
    // Before anything of the cluster that may run here is touched.
    let lock = match config.role {
        Role::None => Lock::default(),
        _ => match Lock::take(&config.paths.run) {
            Ok(lock) => lock,
            Err(running) => {
                eprintln!("slurminit: {running}");
                return Ok(exit_code::FAILURE);
            }
        },
    };
    let default_level = if args.cmd.is_empty() { Level::Info } else { Level::Warn };
    let logs = Logs::install(config.log.format, config.log.level.unwrap_or(default_level));
    if std::env::var_os("SLURMINIT_DEMO").is_some_and(|value| !value.is_empty()) {
        warn!("DEMO: the GPUs of this cluster are SIMULATED; no job computes anything on them");
    }
    for mended in &lock.mended {
        warn!("{mended}; {}", mended.repair());
    }
    let only_cmd = config.role == Role::None;
    let watched_file = load_config::file(args.config.as_deref());
    let job = Job { only_cmd, config, config_file: args.config, watched_file, held, cmd: args.cmd };
    supervise::run(job, inherited, logs)
}

fn configuration(args: &Args) -> anyhow::Result<(Config, Held)> {
    let mut config = load_config::load(args.config.as_deref())?;
    let held = Held::of(&config);
    if let Some(role) = args.role {
        config.role = role;
    }
    match config.role {
        Role::All => {}
        Role::None if args.cmd.is_empty() => {
            anyhow::bail!("the role none runs CMD and nothing else: give one after `--`")
        }
        Role::None => {}
        Role::Controller | Role::Compute | Role::Login => {
            anyhow::bail!("the role {:?} is not available in this version; use all or none", config.role)
        }
    }
    Ok((config, held))
}
