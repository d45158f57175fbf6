//! `slurminit reload`: makes PID 1 run detection again and apply changes, and waits for the outcome.

use std::path::Path;

use super::Configuration;
use crate::output::{error_line, print, print_line};
use config::Config;
use control::reload;
use install::load_config;
use machine::Outcome;
use model::exit_code;
use model::prepared::Apply;
use startup::prepare;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show what would change and how it would be applied; changes nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<u8> {
    let config = configuration.load();
    if args.dry_run || load_config::is_missing(configuration.file()) {
        return dry_run(&config?, configuration.file());
    }
    // PID 1 itself reports a broken file. PID 1 is reachable if its run directory is the default one.
    let (config, config_error) = match config {
        Ok(config) => (config, None),
        Err(error) => (Config::default(), Some(error)),
    };
    let outcome = match (reload::reload(&config.paths.run, &config.supervise), config_error) {
        (Ok(outcome), _) => outcome,
        (Err(_), Some(error)) => return Err(error.into()),
        (Err(error), None) => return Err(error),
    };
    let is_applied = matches!(outcome.outcome, Outcome::Applied | Outcome::Unchanged);
    if is_applied {
        print_line(model::printable::line(&outcome.text))?
    } else {
        error_line(format_args!("slurminit: {}: {}", label(outcome.outcome), model::printable::line(&outcome.text)))
    }
    Ok(if is_applied { exit_code::SUCCESS } else { exit_code::FAILURE })
}

fn label(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Unchanged => "nothing changed",
        Outcome::Applied => "reloaded",
        Outcome::Refused => "refused, nothing changed",
        Outcome::RolledBack => "rolled back",
        Outcome::Failed => "failed",
    }
}

fn dry_run(config: &Config, config_file: Option<&Path>) -> anyhow::Result<u8> {
    let effect = match prepare::dry_run(config, config_file) {
        Ok(effect) => effect,
        Err(refusal) => {
            error_line(format_args!("slurminit: refused: {}", model::printable::line(&refusal.finding.to_string())));
            return Ok(exit_code::FAILURE);
        }
    };
    print(&effect.difference)?;
    match effect.change.apply {
        Apply::Nothing => print_line("the daemons need no restart")?,
        Apply::Reconfigure => {
            print_line(format_args!("needs `scontrol reconfigure`: {}", effect.change.changes.join(", ")))?
        }
        Apply::Restart => {
            print_line(format_args!("needs a restart of slurmctld and slurmd: {}", effect.change.changes.join(", ")))?
        }
    }
    for kept in &effect.kept {
        print_line(model::printable::line(&kept.finding().to_string()))?;
    }
    if !effect.deferred.is_empty() {
        print_line(format_args!("takes effect at the next start of the container: {}", effect.deferred.join(", ")))?;
    }
    Ok(exit_code::SUCCESS)
}
