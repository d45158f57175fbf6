//! The program that PID 1 is, `slurminit-init`: what `slurminit run` becomes once it knows what it is to do.
//!
//! It is a program of its own so that it holds what PID 1 needs and nothing else. No code that loads a vendor's library or
//! speaks a network's protocol is in it (docs/decisions/make-pid-1-a-program-of-its-own.md).

use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::Parser;
use tracing::warn;

use crate::config::{Config, Held, Level, Role};
use crate::inventory::Finding;
use crate::lock::Lock;
use crate::logs::Logs;
use crate::supervise::signals::Inherited;
use crate::supervise::target::Target;
use crate::supervise::{self, Job};
use crate::text_type::word;
use crate::{exit_code, load_config, printable};

/// The file name, beside slurminit's own.
const PROGRAM: &str = "slurminit-init";

/// What PID 1 is to run.
#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    /// Which daemons to run: all, controller, compute, login, or none for a plain init of CMD
    #[arg(long, value_parser = parse_role)]
    role: Option<Role>,
    /// The configuration; /config/slurminit.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Simulate a cluster of so many nodes in this container
    #[arg(long, value_name = "N")]
    pub(crate) nodes: Option<u32>,
    /// After CMD has ended, continue until no job is left that can still run
    #[arg(long)]
    wait_jobs: bool,
    /// The command to run when the cluster is ready; its exit code becomes the container's
    #[arg(last = true, value_name = "CMD")]
    pub(crate) cmd: Vec<OsString>,
}

fn parse_role(text: &str) -> Result<Role, &'static str> {
    word(text).map_err(|_| "want all, controller, compute, login or none")
}

/// The command line of `slurminit-init`.
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version, about = "PID 1 of slurminit; `slurminit run` starts it")]
pub struct Init {
    #[command(flatten)]
    start: Start,
}

impl Start {
    /// Makes this process `slurminit-init`. Returns only if that fails.
    pub(crate) fn become_init(&self) -> io::Error {
        match self.exec() {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    fn exec(&self) -> io::Result<Infallible> {
        let program = std::env::current_exe()?.with_file_name(PROGRAM);
        let words = std::iter::once(PROGRAM.into()).chain(self.words());
        let words: Vec<CString> = words.map(|word| CString::new(word.as_bytes())).collect::<Result<_, _>>()?;
        // Rust's runtime has changed what happens to SIGPIPE; std's own exec would also clear the mask.
        Inherited::capture().restore();
        Ok(nix::unistd::execv(&CString::new(program.as_os_str().as_bytes())?, &words)?)
    }

    /// The same as a command line.
    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(role) = self.role {
            words.extend(["--role".into(), role.to_string().into()]);
        }
        if let Some(file) = &self.config {
            words.extend(["--config".into(), file.into()]);
        }
        if let Some(nodes) = self.nodes {
            words.extend(["--nodes".into(), nodes.to_string().into()]);
        }
        if self.wait_jobs {
            words.push("--wait-jobs".into());
        }
        words.push("--".into());
        words.extend(self.cmd.iter().cloned());
        words
    }

    fn configuration(&self) -> anyhow::Result<(Config, Held, &'static Target)> {
        let mut config = load_config::load(self.config.as_deref())?;
        let held = Held::of(&config);
        if let Some(role) = self.role {
            config.role = role;
            if let Some(joined) = load_config::joined()? {
                joined.check(&config)?;
            }
        }
        if let Some(nodes) = self.nodes {
            config = config.with_simulated_nodes(nodes)?;
        }
        config.jobs.wait |= self.wait_jobs;
        let target = Target::of(&config);
        if !target.has_cluster && self.cmd.is_empty() {
            anyhow::bail!("the role none runs CMD and nothing else: give one after `--`")
        }
        Ok((config, held, target))
    }
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
            Err(running) => return refuse(&running.to_string(), exit_code::FAILURE),
        };
        let Start { config: file, cmd, .. } = self.start;
        let default_level = if cmd.is_empty() { Level::Info } else { Level::Warn };
        let logs = Logs::install(config.log.format, config.log.level.unwrap_or(default_level));
        warn_at_the_start(&config, &lock);
        let watched_file = load_config::file(file.as_deref());
        let job = Job { target, config, config_file: file, watched_file, held, cmd };
        supervise::run(job, inherited, logs).unwrap_or_else(|error| refuse(&format!("{error:#}"), exit_code::FAILURE))
    }
}

fn refuse(why: &str, code: u8) -> u8 {
    eprintln!("slurminit: {}", printable::lines(why));
    code
}

fn warn_at_the_start(config: &Config, lock: &Lock) {
    if std::env::var_os("SLURMINIT_DEMO").is_some_and(|value| !value.is_empty()) {
        warn!("DEMO: the GPUs of this cluster are SIMULATED; no job computes anything on them");
    }
    if let Some(nodes) = config.simulated() {
        let count = nodes.names.len();
        warn!("the nodes of this cluster are SIMULATED: {count} slurmd in one container, which share what it has");
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
