//! A cluster of several containers: dynamic nodes, and a slurm.conf that is the same in all containers except for the plugins that depend on a
//! node's cgroups.

use config::{Config, FeatureName, NodeName, Role};
use model::exit_code;
use model::inventory::{Cgroup, Cpu, Finding, Inventory, Kind};

use super::Refusal;

/// The inventory without its GPUs.
pub(super) fn without_gpus(inventory: &Inventory) -> Inventory {
    Inventory { gpus: Vec::new(), ..inventory.clone() }
}

/// The inventory from which the common slurm.conf is planned: Slurm's installation and the host's network, without hardware, capabilities or
/// cgroups. Plugins that only slurmd loads are chosen from the node's own inventory.
pub(super) fn common_inventory(inventory: &Inventory) -> Inventory {
    Inventory {
        slurm: inventory.slurm.clone(),
        hostname: inventory.hostname.clone(),
        cgroup: Cgroup::default(),
        makes_namespaces: false,
        ipv6_alone: inventory.ipv6_alone,
        cpu: Cpu { binding_denied: true, ..Cpu::default() },
        ..Inventory::default()
    }
}

/// Rejects a compute or login container without a `controller` in `[slurm]`, and a controller's container whose host name differs from it.
pub(super) fn check(config: &Config, inventory: &Inventory) -> Result<(), Refusal> {
    if !config.shares_a_cluster() {
        return Ok(());
    }
    require_controller(config)?;
    let own = short(&inventory.hostname);
    match &config.slurm.controller {
        Some(controller)
            if matches!(config.role, Role::Controller | Role::All) && short(controller.as_str()) != own =>
        {
            Err(Refusal::new(
                exit_code::CONFIG,
                format!("`controller` is {controller}, but this container's host name is {own}"),
                "slurmctld starts only on the host that slurm.conf names",
                format!("start the container with --hostname {controller}"),
            ))
        }
        _ => Ok(()),
    }
}

/// Rejects a compute or login container without a configured controller.
///
/// # Errors
/// No controller is configured.
pub fn require_controller(config: &Config) -> Result<(), Refusal> {
    match (&config.slurm.controller, config.role) {
        (None, Role::Compute | Role::Login) => Err(Refusal::new(
            exit_code::CONFIG,
            "no controller address configured",
            "a compute or login container requires a controller",
            "set SLURMINIT_CONTROLLER, or `controller` in [slurm], to the host name of the controller's container",
        )),
        _ => Ok(()),
    }
}

/// The controller's host name: the configured one, or else `host`, the name of this host.
pub fn controller(config: &Config, host: &str) -> String {
    config.slurm.controller.as_ref().map_or_else(|| short(host).to_owned(), NodeName::to_string)
}

/// The name of a dynamic node: the configured name, or else the container's name, its host name, or `localhost`, whichever is the first valid one.
pub(super) fn node_name(config: &Config, inventory: &Inventory) -> NodeName {
    if !config.names_node_after_container() {
        return config.node.name.clone();
    }
    let names = [inventory.container_name.as_deref(), Some(inventory.hostname.as_str())].into_iter().flatten();
    names.filter_map(|name| NodeName::try_from(short(name).to_owned()).ok()).next().unwrap_or_default()
}

/// Reports that the host name differs from the name of a node that is named after its container, as in a Docker Compose service without `hostname`.
pub(super) fn check_host_name(config: &Config, inventory: &Inventory) -> Option<Finding> {
    let (host, name) = (short(&inventory.hostname), node_name(config, inventory));
    let differs = config.names_node_after_container() && name.as_str() != host;
    differs.then(|| {
        let what = format!("`hostname` returns {host} in jobs on the node {name}");
        let cause = "the container was started without --hostname, and slurminit cannot change its host name";
        Finding::info(
            Kind::Settings,
            what,
            cause,
            "start the container with --hostname, or use the variable SLURMD_NODENAME in jobs",
        )
    })
}

fn short(host: &str) -> &str {
    host.split('.').next().unwrap_or_default()
}

/// The features that partitions require.
pub(super) fn node_sets(config: &Config) -> Vec<FeatureName> {
    let mut sets: Vec<FeatureName> =
        config.partitions.iter().filter_map(|partition| partition.feature.clone()).collect();
    sets.sort();
    sets.dedup();
    sets
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::render;
    use model::inventory::{CgroupVersion, CpuSet, SlurmInstall, SlurmVersion};

    fn inventory(hostname: &str, cpus: &str, version: (u16, u16)) -> Inventory {
        let mut inventory = Inventory { hostname: hostname.to_owned(), ..Inventory::default() };
        inventory.cpu.allowed = cpus.parse::<CpuSet>().unwrap();
        let version = SlurmVersion { year: version.0, month: version.1 };
        inventory.slurm = SlurmInstall { version: Some(version), ..SlurmInstall::default() };
        inventory
    }

    fn config(role: &str, more: &str) -> Config {
        Config::parse(&format!("role = \"{role}\"\n[slurm]\ncontroller = \"head\"\n{more}"), Path::new("x")).unwrap()
    }

    fn slurm_conf(role: &str, inventory: &Inventory, more: &str) -> String {
        let plan = crate::plan(&config(role, more), inventory).unwrap();
        render::render(&plan).swap_remove(0).text
    }

    /// Docker's default host name is the container's ID.
    #[test]
    fn reports_host_name_that_differs_from_node_name() {
        let mut inventory = inventory("3f2a9c0d1e5b", "0-3", (24, 11));
        let finding = |role: &str, inventory: &Inventory| check_host_name(&config(role, ""), inventory);
        assert_eq!(finding("compute", &inventory), None);
        inventory.container_name = Some("compute-3".to_owned());
        let finding_of_node = finding("compute", &inventory).unwrap();
        assert!(finding_of_node.what.contains("compute-3") && finding_of_node.what.contains("3f2a9c0d1e5b"));
        inventory.hostname = "compute-3".to_owned();
        assert_eq!(finding("compute", &inventory), None);
        assert_eq!(finding("login", &inventory), None);
    }

    /// A cluster keeps Slurm's credential lifetime: `srun --bcast` may take longer than the short lifetime of a single
    /// container, and clocks differ.
    #[test]
    fn cluster_keeps_slurms_credential_lifetime() {
        let lifetime = |text: &str| crate::step_credential_lifetime(text);
        let of_cluster = slurm_conf("controller", &inventory("head", "0-3", (24, 11)), "");
        assert_eq!(lifetime(&of_cluster), 120, "{of_cluster}");
        let one = crate::plan(&Config::default(), &inventory("head", "0-3", (24, 11))).unwrap();
        assert_eq!(lifetime(&render::render(&one).swap_remove(0).text), 10);
        assert_eq!((lifetime("AuthInfo=cred_expire=30,socket=/s\n"), lifetime("AuthInfo=socket=/s\n")), (30, 120));
    }

    /// slurmctld rejects a node with another slurm.conf.
    #[test]
    fn token_carries_every_key_that_changes_slurm_conf() {
        const VALUES: [&str; 22] = [
            "true",
            "false",
            "1",
            "7",
            "1.5",
            "'/other'",
            "'other'",
            "'127.0.0.1:7777'",
            "['/other']",
            "['other']",
            "'8.0'",
            "'embedded'",
            "'json'",
            "'index'",
            "'autodetect'",
            "'uuid'",
            "'fail'",
            "'hold'",
            "'none'",
            "'drain'",
            "'oldest'",
            "'debug'",
        ];
        let inventory = inventory("c1", "0-3", (24, 11));
        let slurm_conf = |more: &str| {
            let toml = format!("role = 'compute'\nslurm.controller = 'head'\n{more}");
            let plan = crate::plan(&Config::parse(&toml, Path::new("x")).ok()?, &inventory).ok()?;
            Some(render::render(&plan).swap_remove(0).text)
        };
        let base = slurm_conf("");
        let defaults = config::Layers::merge("", Path::new("x"), None, &|_| None).unwrap().settings();
        let (mut changing, mut missing) = (0, Vec::new());
        for key in defaults.into_iter().map(|setting| setting.key) {
            let changes = |value: &&str| slurm_conf(&format!("{key} = {value}")).is_some_and(|text| Some(text) != base);
            if let Some(value) = VALUES.into_iter().find(changes) {
                changing += 1;
                if !config::is_shared(&key.split('.').collect::<Vec<_>>()) {
                    missing.push(format!("{key} = {value}"));
                }
            }
        }
        assert!(changing > 8, "only {changing} keys change slurm.conf");
        assert_eq!(missing, [""; 0]);
    }

    #[test]
    fn slurm_conf_is_identical_on_different_machines() {
        let more = "[[partition]]\nname = \"big\"\nfeature = \"h200\"\n";
        let head = slurm_conf("controller", &inventory("head", "0-3", (24, 11)), more);
        let mut other = inventory("c1", "0-63", (24, 11));
        other.makes_namespaces = true;
        other.refuses_peer_memory = true;
        assert_eq!(slurm_conf("compute", &other, more), head);
        assert_eq!(slurm_conf("login", &other, more), head);
        assert_eq!(slurm_conf("all", &inventory("head", "0-7", (24, 11)), more), head);
        assert!(
            head.contains("TaskPlugin=task/none"),
            "on nodes without CAP_SYS_NICE, jobs of users other than root fail: {head}"
        );
        assert!(!head.contains("NodeName") && head.contains("SlurmctldHost=head\n"), "{head}");
        assert!(
            head.contains("NodeSet=h200 Feature=h200\n") && head.contains("PartitionName=big Nodes=h200"),
            "{head}"
        );
    }

    #[test]
    fn node_plugins_follow_cgroups_of_own_container() {
        let plain = inventory("c1", "0-3", (24, 11));
        let shared = slurm_conf("compute", &plain, "");
        let cgroup = Cgroup {
            version: CgroupVersion::V2,
            writable: true,
            controllers: vec!["cpuset".to_owned(), "memory".to_owned()],
            ..Cgroup::default()
        };
        let mut confined = Inventory { cgroup, ..inventory("c2", "0-3", (24, 11)) };
        confined.slurm.plugins.push("cgroup_v2".to_owned());
        let files = |role: &str, inventory: &Inventory, more| {
            let texts = render::render(&crate::plan(&config(role, more), inventory).unwrap());
            (texts[0].text.clone(), texts[2].text.clone())
        };
        let (slurm_conf, cgroup_conf) = files("compute", &confined, "");
        assert!(cgroup_conf.contains("ConstrainRAMSpace=yes\nConstrainDevices=yes\n"), "{cgroup_conf}");
        let own = |line: &&str| !line.starts_with('#') && !shared.lines().any(|other| other == *line);
        let differing: Vec<&str> = slurm_conf.lines().filter(own).collect();
        assert_eq!(differing, ["ProctrackType=proctrack/cgroup", "TaskPlugin=task/cgroup"]);
        // A container without slurmd, or with read-only cgroups, uses the shared slurm.conf.
        let read_only = Inventory { cgroup: Cgroup { writable: false, ..confined.cgroup.clone() }, ..confined.clone() };
        assert_eq!(files("login", &confined, "").0, shared);
        let (slurm_conf, cgroup_conf) = files("compute", &read_only, "");
        assert_eq!(slurm_conf, shared);
        assert!(cgroup_conf.contains("not writable"), "{cgroup_conf}");
    }

    #[test]
    fn over_memory_kill_disables_cgroup_memory_limit() {
        let mut inventory = inventory("c2", "0-3", (24, 11));
        inventory.cgroup.version = CgroupVersion::V2;
        inventory.cgroup.writable = true;
        inventory.cgroup.controllers = vec!["cpuset".to_owned(), "memory".to_owned()];
        inventory.slurm.plugins.push("cgroup_v2".to_owned());
        let lines = |more: &str| crate::plan(&config("compute", more), &inventory).unwrap().cgroup.lines;
        let constrains = |more: &str| lines(more).contains(&("ConstrainRAMSpace", "yes"));
        assert!(constrains(""));
        assert!(constrains("[slurm.conf]\nJobAcctGatherParams = \"UsePss\"\n"));
        assert!(!constrains("[slurm.conf]\nJobAcctGatherParams = \"UsePss,OverMemoryKill\"\n"));
    }

    #[test]
    fn node_name_defaults_to_container_name() {
        let machine = inventory("c1.lab", "0-3", (24, 11));
        let node = |more| crate::plan(&config("compute", more), &machine).unwrap().nodes.node;
        assert_eq!(node("").name.as_str(), "c1");
        assert_eq!(node("[node]\nname = \"gpu7\"\n").name.as_str(), "gpu7");
        let replica =
            Inventory { container_name: Some("compute-3".to_owned()), ..inventory("3feeba991c75", "0", (24, 11)) };
        assert_eq!(crate::plan(&config("compute", ""), &replica).unwrap().nodes.node.name.as_str(), "compute-3");
        assert!(render::dynamic_node(&crate::plan(&config("compute", ""), &machine).unwrap()).starts_with("CPUs=4"));
    }

    #[test]
    fn rejects_unsupported_roles_with_fix() {
        let refusal = |role: &str, host: &str, version| {
            crate::plan(&config(role, ""), &inventory(host, "0", version)).map(drop).unwrap_err().finding
        };
        assert!(refusal("controller", "somebody", (24, 11)).fix.contains("--hostname head"));
        assert!(refusal("all", "somebody", (24, 11)).fix.contains("--hostname head"));
        let invalid = crate::plan(&config("all", ""), &inventory("x y", "0", (24, 11))).map(drop).unwrap_err();
        assert_eq!(invalid.exit_code, crate::exit_code::CONFIG);
        assert!(invalid.finding.fix.contains("--hostname NAME"), "{}", invalid.finding);
        let nameless = Config::parse("role = \"login\"", Path::new("x")).unwrap();
        assert!(require_controller(&nameless).unwrap_err().finding.fix.contains("SLURMINIT_CONTROLLER"));
    }
}
