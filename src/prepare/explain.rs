//! Finds out what a daemon's last words say about the configuration. Only Slurm's daemons know everything that they
//! reject.

use std::path::Path;

use super::{Sources, load};
use crate::config::{Config, Fault};
use crate::exit_code;
use crate::install;
use crate::load_config;
use crate::plan::{self, Blame, Culprit, Customized, Refusal, Text};

/// The line that killed the daemon, according to its last words. At a start, `None` if they are not about the
/// configuration.
pub(crate) fn explain(sources: &Sources<'_>, daemon: &str, words: &str, is_reload: bool) -> Option<Refusal> {
    let config = load(sources).ok()?;
    let files = install::read_applied(&config.paths, sources.root).ok()?;
    let own = plan::choose(&config, &install::find_user_files(&config.paths, sources.root).ok()?);
    let words: Vec<&str> = words.lines().collect();
    let cause = format!("{daemon} does not start with it");
    refusal(&config, sources.config, &files, &own, &words, &cause).or_else(|| last_words(is_reload, &words, &cause))
}

/// A reload that is taken back reports its reason even if that is not about a line.
fn last_words(is_reload: bool, words: &[&str], cause: &str) -> Option<Refusal> {
    let last = words.last().filter(|_| is_reload)?;
    let repair = "see its lines in the log, correct what changed and reload again";
    Some(Refusal::new(exit_code::CONFIG, format!("its last words are: {last}"), cause, repair))
}

/// The line that Slurm's message is about, if any.
pub(super) fn refusal(
    config: &Config,
    config_file: Option<&Path>,
    files: &[Text],
    own: &Customized,
    words: &[&str],
    cause: &str,
) -> Option<Refusal> {
    let Blame { culprit, words } = plan::blame(config, files, own, words)?;
    let (what, file) = match culprit {
        Culprit::Configuration(path) => {
            let error = load_config::locate(config_file, Fault::new(path, format!("Slurm refuses it: {words}")));
            let source = load_config::source(config_file);
            (error.to_string(), source.map_or_else(|_| load_config::file(config_file), |source| source.origin))
        }
        Culprit::File(path, line) => (format!("Slurm refuses {}:{line}: {words}", path.display()), path),
    };
    Some(Refusal::new(exit_code::CONFIG, what, cause, format!("correct that line of {}", file.display())))
}
