//! What a daemon's last words say about the configuration. Slurm's daemons are the parsers of their files: no other knows
//! all that they refuse.

use std::path::Path;

use super::{Args, Failure, load};
use crate::commands::load_config;
use crate::config::{Config, Fault};
use crate::exit_code;
use crate::install;
use crate::plan::{self, Blame, Culprit, Customized, Text};

/// The line that the daemon died of; `None` where its words are not about the configuration, or nothing can be read.
pub(super) fn explain(args: &Args, daemon: &str) -> Option<Failure> {
    let config = load(args).ok()?;
    let files = install::read_applied(&config.paths, &args.root).ok()?;
    let own = plan::choose(&config, &install::find_user_files(&config.paths, &args.root).ok()?);
    let words: Vec<&str> = args.words.lines().collect();
    refusal(&config, args.config.as_deref(), &files, &own, &words, &format!("{daemon} does not start with it"))
}

/// The line that Slurm's words are about, if they are about one.
pub(super) fn refusal(
    config: &Config,
    config_file: Option<&Path>,
    files: &[Text],
    own: &Customized,
    words: &[&str],
    cause: &str,
) -> Option<Failure> {
    let Blame { culprit, words } = plan::blame(config, files, own, words)?;
    let (what, file) = match culprit {
        Culprit::Configuration(path) => {
            let error = load_config::locate(config_file, Fault::new(path, format!("Slurm refuses it: {words}")));
            (error.to_string(), load_config::file(config_file))
        }
        Culprit::File(path, line) => (format!("Slurm refuses {}:{line}: {words}", path.display()), path),
    };
    Some(Failure::new(exit_code::CONFIG, what, cause, &format!("correct that line of {}", file.display())))
}
