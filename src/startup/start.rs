//! The command-line options of `slurminit run` and `slurminit up`.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{Config, ConfigError, Role, StartOnlyTables};
use install::load_config;
use machine::Snapshot;
use model::text_type::word;
use plan::target::Target;

/// The options of a new cluster.
#[derive(Debug, clap::Args)]
pub struct Cluster {
    /// Which daemons to run: all, controller, compute, login, or none (a plain init for CMD)
    #[arg(long, value_parser = parse_role)]
    pub role: Option<Role>,
    /// The configuration file that the command line names, if any.
    #[arg(skip)]
    pub config: Option<PathBuf>,
    /// Simulate a cluster with this number of nodes in this container
    #[arg(long, value_name = "N")]
    pub nodes: Option<u32>,
}

fn parse_role(text: &str) -> Result<Role, &'static str> {
    word(text).map_err(|_| "not a role; use all, controller, compute, login or none")
}

impl Cluster {
    /// The configuration file that the command line names, if any.
    pub fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// The configuration without these options.
    ///
    /// # Errors
    /// The configuration is invalid.
    pub fn configured(&self) -> Result<Config, ConfigError> {
        load_config::load(self.file())
    }

    /// The configuration with the options applied, and checksums of the settings that take effect only at a start.
    ///
    /// # Errors
    /// The configuration is invalid, or an option contradicts it.
    pub fn load(&self) -> anyhow::Result<(Config, StartOnlyTables)> {
        let mut config = self.configured()?;
        if let Some(nodes) = self.nodes {
            config = config.with_simulated_nodes(nodes)?;
        }
        if let Some(role) = self.role {
            config.role = role;
            if load_config::joined()?.is_some() {
                let refused = |what| ConfigError { place: "the option --role".to_owned(), what };
                config::check_joined_role(role).map_err(refused)?;
            }
        }
        let held = StartOnlyTables::of(&config);
        Ok((config, held))
    }

    /// These options as arguments for another process, which may run in another directory.
    ///
    /// # Errors
    /// The configuration's path is relative, and there is no current directory.
    pub fn arguments(&self) -> io::Result<Vec<OsString>> {
        let file = load_config::named(self.file()).map(std::path::absolute).transpose()?;
        let mut arguments: Vec<OsString> = Vec::new();
        if let Some(role) = self.role {
            arguments.extend(["--role".into(), role.to_string().into()]);
        }
        if let Some(file) = file {
            arguments.extend(["--config".into(), file.into()]);
        }
        if let Some(nodes) = self.nodes {
            arguments.extend(["--nodes".into(), nodes.to_string().into()]);
        }
        Ok(arguments)
    }

    /// Timeout of a start.
    pub fn start_timeout(&self) -> Duration {
        let supervise = self.load().map(|(config, _)| config.supervise).unwrap_or_default();
        supervise.prepare_timeout() + supervise.ready_timeout
    }

    /// How the running cluster differs from these options.
    pub fn contradiction(&self, running: &Snapshot) -> Option<String> {
        let (role, nodes) = (running.role(), running.prepared.as_ref().map_or(0, |prepared| prepared.simulated_nodes));
        if let Some(requested) = self.role.filter(|requested| *requested != role) {
            return Some(format!("has the role {role}, not {requested}"));
        }
        let requested = self.nodes.filter(|requested| usize::try_from(*requested) != Ok(nodes))?;
        let actual = if nodes == 0 { "no simulated nodes".to_owned() } else { format!("{nodes} simulated nodes") };
        Some(format!("has {actual}, not {requested}"))
    }
}

/// The options of the cluster, and the command to run in it.
#[derive(Debug, clap::Args)]
pub struct Start {
    /// The options of the cluster.
    #[command(flatten)]
    pub cluster: Cluster,
    /// Continue after the end of CMD until no job is left that can still run
    #[arg(long)]
    wait_jobs: bool,
    /// The command to run when the cluster is ready; its exit code becomes the container's
    #[arg(last = true, value_name = "CMD")]
    pub cmd: Vec<OsString>,
}

impl Start {
    /// The configuration, checksums of the settings that take effect only at a start, and the daemons of the role.
    ///
    /// # Errors
    /// The configuration is invalid, an option contradicts it, or a required command is missing.
    pub fn configuration(&self) -> anyhow::Result<(Config, StartOnlyTables, &'static Target)> {
        let (mut config, held) = self.cluster.load()?;
        config.jobs.wait |= self.wait_jobs;
        let target = Target::of(&config);
        if !target.has_cluster && self.cmd.is_empty() {
            anyhow::bail!(
                "the role `none` requires a command: add one after `slurminit run --`, or after the image's name"
            )
        }
        Ok((config, held, target))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::UnitSnapshot;
    use model::prepared::Prepared;

    fn cluster(role: Option<Role>, nodes: Option<u32>) -> Cluster {
        Cluster { role, config: Some("lab.toml".into()), nodes }
    }

    #[test]
    fn passes_options_to_another_process_with_absolute_path() {
        let file = std::env::current_dir().unwrap().join("lab.toml");
        let arguments = cluster(Some(Role::Controller), Some(3)).arguments().unwrap();
        assert_eq!(
            arguments.join(" ".as_ref()).to_str().unwrap(),
            format!("--role controller --config {} --nodes 3", file.display())
        );
        assert_eq!(cluster(None, None).arguments().unwrap(), ["--config".into(), file.into_os_string()]);
    }

    #[test]
    fn names_option_that_contradicts_running_cluster() {
        let running = |daemons: &[&str], simulated_nodes| Snapshot {
            units: daemons
                .iter()
                .map(|name| UnitSnapshot { name: (*name).to_owned(), ..UnitSnapshot::default() })
                .collect(),
            prepared: Some(Prepared { simulated_nodes, ..Prepared::default() }),
            ..Snapshot::default()
        };
        for (daemons, role) in [
            (&["munged", "slurmctld", "slurmd"][..], Role::All),
            (&["munged", "slurmctld"], Role::Controller),
            (&["munged", "slurmd"], Role::Compute),
            (&["munged"], Role::Login),
        ] {
            let contradictions = [Role::All, Role::Controller, Role::Compute, Role::Login].map(|requested| {
                let contradiction = cluster(Some(requested), None).contradiction(&running(daemons, 0));
                let expected = (requested != role).then(|| format!("has the role {role}, not {requested}"));
                (contradiction, expected)
            });
            contradictions.into_iter().for_each(|(contradiction, expected)| assert_eq!(contradiction, expected));
        }
        let nodes = |requested, simulated| cluster(None, requested).contradiction(&running(&[], simulated));
        assert_eq!([nodes(None, 2), nodes(Some(2), 2)], [None, None]);
        assert_eq!(nodes(Some(2), 0).unwrap(), "has no simulated nodes, not 2");
        assert_eq!(nodes(Some(2), 4).unwrap(), "has 4 simulated nodes, not 2");
    }

    #[test]
    fn start_may_take_time_of_preparation_and_of_daemons() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[supervise]\nprepare_timeout = 40\nready_timeout = 50\n").unwrap();
        let cluster = Cluster { role: None, config: Some(file.path().to_owned()), nodes: None };
        assert_eq!(cluster.start_timeout(), Duration::from_secs(90));
    }
}
