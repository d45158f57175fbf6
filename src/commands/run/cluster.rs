//! What the command line says of a new cluster, and whether the one that runs is such a one.

use std::ffi::OsString;
use std::time::Duration;

use crate::commands::Configuration;
use crate::config::{Config, DaemonName, Held, Role};
use crate::load_config;
use crate::supervise::machine::Snapshot;
use crate::text_type::word;

#[derive(Debug, clap::Args)]
pub(in crate::commands) struct Cluster {
    /// Which daemons to run: all, controller, compute, login, or none for a plain init of CMD
    #[arg(long, value_parser = parse_role)]
    role: Option<Role>,
    #[command(flatten)]
    pub(in crate::commands) at: Configuration,
    /// Simulate a cluster of so many nodes in this container
    #[arg(long, value_name = "N")]
    pub(super) nodes: Option<u32>,
}

fn parse_role(text: &str) -> Result<Role, &'static str> {
    word(text).map_err(|_| "want all, controller, compute, login or none")
}

impl Cluster {
    /// The configuration, and what of it counts from the start on.
    ///
    /// # Errors
    /// It is not valid.
    pub(in crate::commands) fn load(&self) -> anyhow::Result<(Config, Held)> {
        let mut config = self.at.load()?;
        let held = Held::of(&config);
        if let Some(role) = self.role {
            config.role = role;
            if let Some(joined) = load_config::joined()? {
                joined.check(&config)?;
            }
        }
        if let Some(nodes) = self.nodes {
            config = config.with_simulated_nodes(nodes)?;
        }
        Ok((config, held))
    }

    /// The same for another process, in another directory.
    pub(in crate::commands) fn arguments(&self) -> std::io::Result<Vec<OsString>> {
        let mut arguments: Vec<OsString> = Vec::new();
        if let Some(role) = self.role {
            arguments.extend(["--role".into(), role.to_string().into()]);
        }
        if let Some(file) = load_config::named(self.at.file()) {
            arguments.extend(["--config".into(), std::path::absolute(file)?.into_os_string()]);
        }
        if let Some(nodes) = self.nodes {
            arguments.extend(["--nodes".into(), nodes.to_string().into()]);
        }
        Ok(arguments)
    }

    /// How long a start may take.
    pub(in crate::commands) fn patience(&self) -> Duration {
        let supervise = self.load().map(|(config, _)| config.supervise).unwrap_or_default();
        supervise.prepare_timeout + supervise.ready_timeout
    }

    /// What the cluster that runs is not.
    pub(super) fn contradiction(&self, running: &Snapshot) -> Option<String> {
        let (role, nodes) = (role(running), running.prepared.as_ref().map_or(0, |prepared| prepared.simulated_nodes));
        if let Some(wanted) = self.role.filter(|wanted| *wanted != role) {
            return Some(format!("has the role {role}, not {wanted}"));
        }
        let wanted = self.nodes.filter(|wanted| usize::try_from(*wanted) != Ok(nodes))?;
        let has = if nodes == 0 { "no simulated nodes".to_owned() } else { format!("{nodes} simulated nodes") };
        Some(format!("has {has}, not {wanted}"))
    }
}

/// A role is what it runs.
fn role(running: &Snapshot) -> Role {
    let runs = |daemon: DaemonName| running.units.iter().any(|unit| unit.name == daemon.as_str());
    match (runs(DaemonName::Slurmctld), runs(DaemonName::Slurmd)) {
        (true, true) => Role::All,
        (true, false) => Role::Controller,
        (false, true) => Role::Compute,
        (false, false) => Role::Login,
    }
}
