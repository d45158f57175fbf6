//! Creates the directories that the user's slurm.conf, or `[slurm.conf]` in slurminit.toml, sets for the daemons. Slurm creates at most the
//! last component of a path, and slurmctld exits if its user cannot write to the directory.

use std::path::Path;

use super::Sources;
use config::{Config, DaemonName, Role};
use install::planned::{Planned, locate_fault};
use model::exit_code;
use model::inventory::{Finding, Kind};
use plan::{DEFAULT_STATE_DIRECTORY, FileName, Refusal, UserFile};

/// Creates each daemon's directories, or gives empty ones to the daemon's user. `config` names slurmctld's user.
pub(super) fn make(
    config: &Config,
    sources: &Sources<'_>,
    planned: &Planned,
    host: &str,
) -> Result<Vec<Finding>, Refusal> {
    let keys: &[(&str, DaemonName)] = match config.role {
        Role::Controller => &[("StateSaveLocation", DaemonName::Slurmctld)],
        Role::Compute => &[("SlurmdSpoolDir", DaemonName::Slurmd)],
        Role::Login => &[],
        Role::All | Role::None => {
            &[("StateSaveLocation", DaemonName::Slurmctld), ("SlurmdSpoolDir", DaemonName::Slurmd)]
        }
    };
    let mut findings = Vec::new();
    for (key, daemon) in keys {
        let own = planned.customized.get(FileName::SlurmConf);
        let value = match own {
            Some(_) => planned.customized.last_value(key),
            None => config.slurm.conf.get(key).map(|value| value.as_str().to_owned()),
        };
        if let Some(file) = own.filter(|_| value.is_none() && *daemon == DaemonName::Slurmctld) {
            findings.push(check_default_state(config, sources, file)?);
        }
        let Some(value) = value.filter(|value| value.starts_with('/')) else { continue };
        let value = value.replace("%n", &planned.node().0).replace("%h", host);
        let made = install::make_daemon_directory(config, sources.root, Path::new(&value), *daemon);
        findings.extend(made.map_err(|error| {
            let culprit = planned.customized.culprit(config, key);
            let (what, _) = locate_fault(sources.config, culprit.as_ref(), &format!("{key}={value}: {error}"));
            let fix = format!(
                "set {key} to an empty directory, to one that {daemon}'s user owns, or to one that root can create; or remove {key}"
            );
            Refusal::new(exit_code::CONFIG, what, format!("{daemon} exits if it cannot write there"), fix)
        })?);
    }
    Ok(findings)
}

/// Checks that slurmctld can use Slurm's default for a `StateSaveLocation` that the user's slurm.conf does not set. The
/// default is a system directory, so its owner is not changed.
fn check_default_state(config: &Config, sources: &Sources<'_>, slurm_conf: &UserFile) -> Result<Finding, Refusal> {
    let directory = DEFAULT_STATE_DIRECTORY;
    let what = format!("{}: StateSaveLocation is not set (Slurm's default is {directory})", slurm_conf.path.display());
    let fix = format!("add the line StateSaveLocation={}/slurmctld", config.paths.state.display());
    if install::is_usable_by(DaemonName::Slurmctld, config, sources.root, Path::new(directory))? {
        let cause = format!("saved jobs are lost with the container unless {directory} is a volume");
        return Ok(Finding::warning(Kind::OwnFiles, what, cause, fix));
    }
    let cause = format!("slurmctld exits: its user cannot write to {directory}");
    Err(Refusal::new(exit_code::CONFIG, what, cause, fix))
}
