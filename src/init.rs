//! The program that PID 1 is, `slurminit-init`: what `slurminit run` becomes once it knows what it is to do.
//!
//! It is a program of its own so that it holds what PID 1 needs and nothing else. No code that loads a vendor's library or
//! speaks a network's protocol is in it (docs/decisions/make-pid-1-a-program-of-its-own.md).

use std::ffi::OsString;
use std::path::Path;

use clap::Parser;
use tracing::warn;

use crate::config::{Config, DEFAULT_FILE, Level};
use crate::inventory::Finding;
use crate::lock::Lock;
use crate::logs::Logs;
use crate::start::{Start, become_program};
use crate::supervise::signals::Inherited;
use crate::supervise::{self, Job};
use crate::take_variables::{kept_toml, take_variables};
use crate::{exit_code, load_config, printable};

/// The file name, beside slurminit's own.
pub(crate) const PROGRAM: &str = "slurminit-init";

/// The command line of `slurminit-init`.
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version, about = "PID 1 of slurminit; `slurminit run` starts it")]
pub struct Init {
    #[command(flatten)]
    start: Start,
}

impl Init {
    /// Runs the container to its end, and returns its exit code.
    pub fn run(self) -> u8 {
        // This comes before anything can change them.
        let inherited = Inherited::capture();
        let (config, held, target) = match self.start.configuration() {
            Ok(configuration) => configuration,
            Err(error) => return refuse(&format!("{error:#}"), exit_code::CONFIG),
        };
        // This comes before anything of a running cluster is touched.
        let lock = match target.has_cluster.then(|| Lock::take(&config.paths.run)).transpose() {
            Ok(lock) => lock.unwrap_or_default(),
            // A cluster has begun this very moment.
            Err(_) if !self.start.cmd.is_empty() => {
                let words = ["run", "--beside"].map(OsString::from).into_iter().chain(self.start.words());
                let error = become_program(&inherited, "slurminit", &words.collect::<Vec<_>>());
                return refuse(&format!("slurminit cannot be executed: {error}"), exit_code::FAILURE);
            }
            Err(running) => return refuse(&running.to_string(), exit_code::FAILURE),
        };
        if target.has_cluster {
            if let Err(untaken) = take_variables(self.start.cluster.file(), || inherited.restore()) {
                return refuse(&untaken.to_string(), exit_code::CONFIG);
            }
        }
        let Start { cluster, cmd, .. } = self.start;
        let default_level = if cmd.is_empty() { Level::Info } else { Level::Warn };
        let logs = Logs::install(config.log.format, config.log.level.unwrap_or(default_level));
        say_what_is_odd(&config, cluster.file(), &lock);
        let watched_file = load_config::file(cluster.file());
        let config_file = cluster.file().map(Path::to_owned);
        let job = Job { target, config, config_file, watched_file, held, cmd };
        supervise::run(job, inherited, logs).unwrap_or_else(|error| refuse(&format!("{error:#}"), exit_code::FAILURE))
    }
}

fn refuse(why: &str, code: u8) -> u8 {
    eprintln!("slurminit: {}", printable::lines(why));
    code
}

fn say_what_is_odd(config: &Config, file: Option<&Path>, lock: &Lock) {
    if std::env::var_os("SLURMINIT_DEMO").is_some_and(|value| !value.is_empty()) {
        warn!("DEMO: the GPUs of this cluster are SIMULATED; no job computes anything on them");
    }
    if let Some(nodes) = config.simulated() {
        let count = nodes.iter().count();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_handed_over_word_for_word() {
        for line in [
            &["--"][..],
            &["--role", "none", "--", "sh", "-c", "--role"],
            &["--config", "/x y.toml", "--nodes", "4", "--wait-jobs", "--", "srun", "--", "true"],
        ] {
            let words: Vec<OsString> = line.iter().map(OsString::from).collect();
            let init = Init::parse_from(std::iter::once(PROGRAM.into()).chain(words.clone()));
            assert_eq!(init.start.words(), words);
        }
    }
}
