//! Finds the configuration error behind a daemon's last log lines, because only Slurm's daemons can check all their settings.

use std::path::Path;

use super::{Sources, load};
use crate::jobs::cluster_id;
use config::Config;
use install::planned::{locate_fault, state_directory};
use model::exit_code;
use plan::{Blame, Customized, Refusal, Text};

/// The configuration line that made the daemon exit, according to its last log lines. At a start, `None` if they do not refer to the
/// configuration.
pub fn explain(sources: &Sources<'_>, daemon: &str, log_lines: &str, is_reload: bool) -> Option<Refusal> {
    let config = load(sources).ok()?;
    let files = install::read_applied(&config.paths, sources.root).ok()?;
    let customized = plan::select_user_files(&config, &install::find_user_files(&config.paths, sources.root).ok()?);
    let log_lines: Vec<&str> = log_lines.lines().collect();
    let cause = format!("{daemon} exits because of this setting");
    let state = state_directory(&config, sources.root, &files);
    cluster_id::resolve_mismatch(&state, &log_lines)
        .or_else(|| refusal(&config, sources.config, &files, &customized, &log_lines, &cause))
        .or_else(|| no_network(daemon, &log_lines))
        .or_else(|| last_line(is_reload, &log_lines, &cause))
}

/// slurmctld and slurmd cannot listen in a container that has only its loopback interface (24.11, `xgetaddrinfo`).
fn no_network(daemon: &str, log_lines: &[&str]) -> Option<Refusal> {
    log_lines.iter().find(|line| line.contains("Unable to resolve \"(null)\""))?;
    let exit_code = if daemon == "slurmd" { exit_code::SLURMD } else { exit_code::SLURMCTLD };
    let what = format!("{daemon} cannot listen: only the loopback interface has an address");
    let cause = "Slurm cannot run in a container without a network (--network none)";
    Some(Refusal::new(
        exit_code,
        what,
        cause,
        "start the container in a network; `docker network create --internal` makes one without outside access",
    ))
}

/// A reload that is rolled back reports its reason even if the reason refers to no line.
fn last_line(is_reload: bool, log_lines: &[&str], cause: &str) -> Option<Refusal> {
    let last = log_lines.last().filter(|_| is_reload)?;
    let fix = "see its log, correct the change and reload again";
    Some(Refusal::new(exit_code::CONFIG, format!("the daemon's last log line: {last}"), cause, fix))
}

/// The line that Slurm's message refers to, if any.
pub(super) fn refusal(
    config: &Config,
    config_file: Option<&Path>,
    files: &[Text],
    customized: &Customized,
    words: &[&str],
    cause: &str,
) -> Option<Refusal> {
    let Blame { culprit, message } = plan::blame(config, files, customized, words)?;
    let (what, file) = locate_fault(config_file, Some(&culprit), &format!("rejected by Slurm: {message}"));
    Some(Refusal::new(exit_code::CONFIG, what, cause, format!("correct that line of {}", file.display())))
}
