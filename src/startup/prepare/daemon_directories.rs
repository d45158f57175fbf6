//! Creates the directories that the user's slurm.conf sets for the daemons. Slurm creates at most the last part of a path, and
//! slurmctld exits if its user cannot write there.

use std::path::Path;

use super::Sources;
use config::{Config, DaemonName, Role};
use install::planned::{Planned, locate_fault};
use model::exit_code;
use model::inventory::Finding;
use plan::Refusal;

/// Creates missing directories. `config` has the user of slurmctld.
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
        let own = planned.customized.last_value(key);
        let of_toml = || config.slurm.conf.get(key).map(|value| value.as_str().to_owned());
        let Some(value) = own.or_else(of_toml).filter(|value| value.starts_with('/')) else { continue };
        let value = value.replace("%n", &planned.node().0).replace("%h", host);
        let made = install::make_daemon_directory(config, sources.root, Path::new(&value), *daemon);
        findings.extend(made.map_err(|error| {
            let culprit = planned.customized.culprit(config, key);
            let (what, _) = locate_fault(sources.config, culprit.as_ref(), &format!("{key}={value}: {error}"));
            let repair = format!("set {key} to a directory that exists or that root can create, or remove {key}");
            Refusal::new(exit_code::CONFIG, what, format!("{daemon} exits if it cannot write there"), repair)
        })?);
    }
    Ok(findings)
}
