//! The table of daemons for each role.

use std::time::Duration;

use crate::units;
use config::{AccountingMode, Config, DaemonName, Role};
use model::unit::{JobCare, Spec};

/// The daemons and settings of a role.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    /// Whether there is a cluster. If so, slurminit runs hooks, the preparation and services, writes a status file, and
    /// listens on a control socket. Without a cluster, slurminit is a plain init for its command: it may run as any user, and writes no files.
    pub has_cluster: bool,
    /// The jobs that slurminit handles.
    pub jobs: JobCare,
    /// Whether slurmctld runs here for nodes in other containers.
    pub has_other_nodes: bool,
    /// The required daemons in start order, each with the daemons that must be ready first.
    daemons: &'static [(DaemonName, &'static [DaemonName])],
}

const ALL: Target = Target {
    has_cluster: true,
    jobs: JobCare::Cluster,
    has_other_nodes: false,
    daemons: &[
        (DaemonName::Munged, &[]),
        (DaemonName::Slurmctld, &[DaemonName::Munged]),
        (DaemonName::Slurmd, &[DaemonName::Slurmctld]),
    ],
};

/// The first container in a cluster of several containers. It handles the jobs of its own node.
const ALL_OF_SEVERAL: Target = Target { jobs: JobCare::Node, has_other_nodes: true, ..ALL };

const CONTROLLER: Target = Target {
    has_cluster: true,
    jobs: JobCare::OtherContainers,
    has_other_nodes: true,
    daemons: &[(DaemonName::Munged, &[]), (DaemonName::Slurmctld, &[DaemonName::Munged])],
};

const COMPUTE: Target = Target {
    has_cluster: true,
    jobs: JobCare::Node,
    has_other_nodes: false,
    daemons: &[(DaemonName::Munged, &[]), (DaemonName::Slurmd, &[DaemonName::Munged])],
};

const LOGIN: Target = Target {
    has_cluster: true,
    jobs: JobCare::OtherContainers,
    has_other_nodes: false,
    daemons: &[(DaemonName::Munged, &[])],
};

const NONE: Target =
    Target { has_cluster: false, jobs: JobCare::OtherContainers, has_other_nodes: false, daemons: &[] };

impl Target {
    /// The row for the configured role.
    pub fn of(config: &Config) -> &'static Self {
        match config.role {
            Role::All if config.shares_a_cluster() => &ALL_OF_SEVERAL,
            Role::All => &ALL,
            Role::Controller => &CONTROLLER,
            Role::Compute => &COMPUTE,
            Role::Login => &LOGIN,
            Role::None => &NONE,
        }
    }

    /// Whether this container stores the cluster's state: slurmctld's job records, and an embedded accounting database.
    pub fn has_state(&self) -> bool {
        self.daemons.iter().any(|(name, _)| *name == DaemonName::Slurmctld)
    }

    /// The daemons, then the services in the order of the configuration.
    pub fn units(&self, config: &Config) -> Vec<Spec> {
        let daemons = self.daemons(config);
        let simulated = config.simulated();
        let daemons = daemons.iter().flat_map(|(name, after)| match &simulated {
            Some(nodes) if *name == DaemonName::Slurmd => units::simulated(config, nodes, after),
            _ => vec![units::daemon(config, *name, after)],
        });
        let daemons = daemons.map(|spec| self.with_controller_timeout(spec));
        let services = config.services.iter().filter(|_| self.has_cluster);
        daemons.chain(services.map(|service| units::service(config, service))).collect()
    }

    /// The role's daemons, then the enabled optional ones. With accounting, slurmdbd and an embedded database come before slurmctld, which
    /// waits for slurmdbd.
    fn daemons(&self, config: &Config) -> Vec<(DaemonName, &'static [DaemonName])> {
        let mut daemons = self.daemons.to_vec();
        if config.runs_rest() {
            daemons.push((DaemonName::Slurmrestd, &[DaemonName::Slurmctld]));
        }
        if config.runs_agent() {
            daemons.push((DaemonName::Agent, &[DaemonName::Slurmd]));
        }
        if config.runs_metrics() {
            daemons.push((DaemonName::Metrics, &[]));
        }
        if config.runs_sshd() {
            daemons.push((DaemonName::Sshd, &[]));
        }
        let slurmctld = daemons.iter().position(|(name, _)| *name == DaemonName::Slurmctld);
        let Some(at) = slurmctld.filter(|_| config.runs_accounting()) else { return daemons };
        daemons[at].1 = &[DaemonName::Munged, DaemonName::Slurmdbd];
        if config.accounting.mode() == AccountingMode::Embedded {
            daemons.insert(at, (DaemonName::Slurmdbd, &[DaemonName::Munged, DaemonName::Mariadbd]));
            daemons.insert(at, (DaemonName::Mariadbd, &[]));
        } else {
            daemons.insert(at, (DaemonName::Slurmdbd, &[DaemonName::Munged]));
        }
        daemons
    }

    /// Extends the readiness timeout of slurmd on a compute node, whose controller may start much later.
    fn with_controller_timeout(&self, spec: Spec) -> Spec {
        let is_elsewhere = !self.daemons.iter().any(|(name, _)| *name == DaemonName::Slurmctld);
        let waits = is_elsewhere && spec.daemon == Some(DaemonName::Slurmd);
        Spec {
            ready_timeout: if waits { CONTROLLER_TIMEOUT.max(spec.ready_timeout) } else { spec.ready_timeout },
            ..spec
        }
    }
}

/// The minimum readiness timeout of slurmd on a compute node, after which slurmd is restarted.
const CONTROLLER_TIMEOUT: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    fn units_of(config: &mut Config, role: Role) -> String {
        config.role = role;
        let units = Target::of(config).units(config).into_iter();
        units.map(|unit| format!("{} after {:?}", unit.name, unit.after)).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn slurms_daemons_get_the_variables_that_they_need_here() {
        let config = Config::default();
        let has = |daemon, name: &str, value: &str| {
            units::daemon(&config, daemon, &[]).default_env.contains(&(name.to_owned(), value.to_owned()))
        };
        let daemons = [DaemonName::Munged, DaemonName::Slurmctld, DaemonName::Slurmd, DaemonName::Slurmrestd];
        assert_eq!(daemons.map(|daemon| has(daemon, "SLURM_JWT", "daemon")), [false, false, false, true]);
        assert_eq!(daemons.map(|daemon| has(daemon, "PMIX_MCA_psec", "native")), [false, false, true, false]);
    }

    #[test]
    fn each_role_starts_its_units() {
        let mut config = Config::parse(
            "[[service]]\nname = 'api'\ncommand = ['api']\nafter = ['slurmd']\n",
            std::path::Path::new("x"),
        )
        .unwrap();
        let mut units = |role| units_of(&mut config, role);
        let all = r#"munged after [], slurmctld after ["munged"], slurmd after ["slurmctld"], agent after ["slurmd"], api after ["slurmd"]"#;
        assert_eq!(units(Role::All), all);
        assert_eq!(units(Role::None), "");
        assert_eq!(units(Role::Controller), r#"munged after [], slurmctld after ["munged"], api after ["slurmd"]"#);
        assert_eq!(
            units(Role::Compute),
            r#"munged after [], slurmd after ["munged"], agent after ["slurmd"], api after ["slurmd"]"#
        );
        assert_eq!(units(Role::Login), r#"munged after [], api after ["slurmd"]"#);
        config.accounting.mode = Some(AccountingMode::Embedded);
        config.services.clear();
        let mut units = |role| units_of(&mut config, role);
        let accounting = r#"munged after [], mariadbd after [], slurmdbd after ["munged", "mariadbd"], slurmctld after ["munged", "slurmdbd"]"#;
        assert_eq!(units(Role::Controller), accounting);
        assert_eq!(units(Role::Compute), r#"munged after [], slurmd after ["munged"], agent after ["slurmd"]"#);
        config.accounting.mode = None;
        config.metrics.listen = Some(([127, 0, 0, 1], 9835).into());
        let mut units = |role| {
            config.role = role;
            Target::of(&config).units(&config).into_iter().filter(|unit| unit.name == "metrics").count()
        };
        let all = [Role::All, Role::Controller, Role::Compute, Role::Login, Role::None];
        assert_eq!(all.map(&mut units), [1, 1, 1, 1, 0]);
        let has_state = all.map(|role| {
            config.role = role;
            Target::of(&config).has_state()
        });
        assert_eq!(has_state, [true, true, false, false, false]);
        config.login.port = std::num::NonZeroU16::new(22);
        let sshd = [Role::All, Role::Controller, Role::Compute, Role::Login, Role::None].map(|role| {
            config.role = role;
            Target::of(&config).units(&config).into_iter().filter(|unit| unit.name == "sshd").count()
        });
        assert_eq!(sshd, [1, 1, 1, 1, 0]);
        (config.role, config.slurm.controller) = (Role::All, "head".to_owned().try_into().ok());
        let several = Target::of(&config);
        assert_eq!((several.jobs, several.has_other_nodes, several.has_state()), (JobCare::Node, true, true));
        config.slurm.controller = None;
        config.simulate.nodes = Some(3);
        let slurmd_units = Target::of(&config).units(&config).into_iter();
        let slurmd_units = slurmd_units.filter(|unit| unit.daemon == Some(DaemonName::Slurmd));
        let commands: Vec<_> =
            slurmd_units.map(|unit| format!("{} {:?} {}", unit.name, unit.readiness, unit.command.join(" "))).collect();
        let expected = [
            "slurmd Port(6818) slurmd -D -N node1",
            "slurmd-2 Port(6819) slurmd -D -N node2",
            "slurmd-3 Port(6820) slurmd -D -N node3",
        ];
        assert_eq!(commands, expected);
    }
}
