//! The command-line options of `slurminit run` and `slurminit up`.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{Config, ConfigError, DaemonName, Role, StartOnlyTables};
use install::load_config;
use machine::Snapshot;
use model::text_type::word;
use plan::target::Target;

/// The options of a new cluster.
#[derive(Debug, clap::Args)]
pub struct Cluster {
    /// Which daemons to run: all, controller, compute, login, or none for a plain init of CMD
    #[arg(long, value_parser = parse_role)]
    pub role: Option<Role>,
    /// The configuration's file, if one was given.
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
    /// The configuration's file, if one was given.
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

    /// The configuration with the options applied, and the settings that apply from the start on.
    ///
    /// # Errors
    /// The configuration is invalid.
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
        let (role, nodes) = (role(running), running.prepared.as_ref().map_or(0, |prepared| prepared.simulated_nodes));
        if let Some(requested) = self.role.filter(|requested| *requested != role) {
            return Some(format!("has the role {role}, not {requested}"));
        }
        let requested = self.nodes.filter(|requested| usize::try_from(*requested) != Ok(nodes))?;
        let actual = if nodes == 0 { "no simulated nodes".to_owned() } else { format!("{nodes} simulated nodes") };
        Some(format!("has {actual}, not {requested}"))
    }
}

/// Compares roles by the daemons that they run.
fn role(running: &Snapshot) -> Role {
    let runs = |daemon: DaemonName| running.units.iter().any(|unit| unit.name == daemon.as_str());
    match (runs(DaemonName::Slurmctld), runs(DaemonName::Slurmd)) {
        (true, true) => Role::All,
        (true, false) => Role::Controller,
        (false, true) => Role::Compute,
        (false, false) => Role::Login,
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
    /// The configuration and command to start.
    ///
    /// # Errors
    /// The configuration is invalid, or there is nothing to do.
    pub fn configuration(&self) -> anyhow::Result<(Config, StartOnlyTables, &'static Target)> {
        let (mut config, held) = self.cluster.load()?;
        config.jobs.wait |= self.wait_jobs;
        let target = Target::of(&config);
        if !target.has_cluster && self.cmd.is_empty() {
            anyhow::bail!("the role none requires a command: add CMD after `--`")
        }
        Ok((config, held, target))
    }
}
