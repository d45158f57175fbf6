//! Finds the configuration error behind a daemon's last log lines, because only Slurm's daemons can check all their settings.

use std::path::Path;

use super::{Sources, load};
use crate::jobs::cluster_id;
use config::Config;
use install::planned::{locate_fault, state_directory};
use model::exit_code;
use plan::{Blame, Customized, Refusal, Text};

/// Why the daemon exited, according to its last log lines: another cluster's database, a line of the configuration or a missing network. If
/// the log lines show none of these, returns `None` at a start, and the last log line at a reload. Also `None` if the configuration cannot be
/// read. If the cluster IDs differ and the database contains no jobs of this cluster, adopts the database's ID.
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
        .or_else(|| last_line(is_reload, &log_lines, daemon))
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
        "start the container in a network; `docker network create --internal` creates one without outside access",
    ))
}

/// A reload that is rolled back reports its reason even if the reason refers to no line of the configuration.
fn last_line(is_reload: bool, log_lines: &[&str], daemon: &str) -> Option<Refusal> {
    let last = log_lines.last().filter(|_| is_reload)?;
    let what = format!("{daemon}'s last log line: {last}");
    let fix = format!("see `slurminit logs {daemon}`, correct the change and reload again");
    Some(Refusal::new(exit_code::CONFIG, what, format!("{daemon} exited after the reload"), fix))
}

/// The refusal that names the line of the configuration to which Slurm's messages refer, if any.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_without_network_has_exit_code_of_its_own() {
        let exit_code = |daemon, line| no_network(daemon, &["x", line]).map(|refusal| refusal.exit_code);
        let line = "slurmctld: error: xgetaddrinfo: Unable to resolve \"(null)\": Address family not supported";
        assert_eq!(
            [exit_code("slurmd", line), exit_code("slurmctld", line)],
            [Some(exit_code::SLURMD), Some(exit_code::SLURMCTLD)]
        );
        assert_eq!(exit_code("slurmd", "Unable to resolve \"head\""), None);
    }
}
