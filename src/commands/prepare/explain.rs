//! What a daemon's last words say about the configuration. Slurm's daemons are the parsers of their files: no other knows
//! all that they refuse.

use std::path::Path;

use super::{Args, Failure, load};
use crate::commands::load_config;
use crate::config::{Config, Fault};
use crate::exit_code;
use crate::install;
use crate::plan::{self, Blame, Culprit, Customized, Text};

/// The line that the daemon died of; at a start `None` where its words are not about the configuration.
pub(super) fn explain(args: &Args, daemon: &str) -> Option<Failure> {
    let config = load(args).ok()?;
    let files = install::read_applied(&config.paths, &args.root).ok()?;
    let own = plan::choose(&config, &install::find_user_files(&config.paths, &args.root).ok()?);
    let words: Vec<&str> = args.words.lines().collect();
    let cause = format!("{daemon} does not start with it");
    refusal(&config, args.config.as_deref(), &files, &own, &words, &cause).or_else(|| last_words(args, &words, &cause))
}

/// A reload that is taken back gives its reason, also where that is about no line.
fn last_words(args: &Args, words: &[&str], cause: &str) -> Option<Failure> {
    let last = words.last().filter(|_| !args.restore.is_empty())?;
    let repair = "see its lines in the log, correct what changed and reload again";
    Some(Failure::new(exit_code::CONFIG, format!("its last words are: {last}"), cause, repair))
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
