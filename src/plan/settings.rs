//! The keys of slurm.conf that concern the whole cluster, and the partitions.

use crate::config::{Config, DaemonName, NodeName, SlurmSettings};
use crate::inventory::Inventory;

use super::names::HostName;
use super::{CgroupPlan, Decision, Epilog, GresPlan, NodePlan, TaskProlog, login};

/// A line of slurm.conf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key.
    pub key: String,
    /// The value, without quotes.
    pub value: String,
    /// Why, where it is not obvious.
    pub why: Option<String>,
}

/// A PartitionName line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionPlan {
    /// PartitionName.
    pub name: String,
    /// The rest of the line.
    pub settings: Vec<(String, String)>,
}

/// The scripts of ours that Slurm runs.
pub(super) struct Scripts<'a> {
    pub(super) task_prolog: Option<&'a TaskProlog>,
    pub(super) epilog: Option<&'a Epilog>,
}

/// Generated, then overridden and extended by the operator.
pub(super) fn plan(
    config: &Config,
    host: &HostName,
    node: &NodePlan,
    cgroup: &CgroupPlan,
    scripts: &Scripts<'_>,
    inventory: &Inventory,
    decisions: &mut Vec<Decision>,
) -> Vec<Setting> {
    let mut settings = Settings::default();
    settings.identity(config, host);
    settings.files(config);
    settings.processes(cgroup);
    let task_prolog = scripts.task_prolog.map(|prolog| ("TaskProlog", &prolog.path, TaskProlog::WHY));
    let epilog = scripts.epilog.map(|epilog| ("Epilog", &epilog.path, Epilog::WHY));
    for (key, path, why) in task_prolog.into_iter().chain(epilog) {
        settings.add_because(key, path.display(), why);
        decisions.push(Decision::new(format!("{key}={}", path.display()), why));
    }
    if login::is_fatal(inventory) {
        settings.add_because(login::KEY, 0, login::WHY);
        decisions.push(Decision::new(format!("{}=0", login::KEY), login::WHY));
    }
    settings.scheduling(config, node, decisions);
    settings.lay_over(&config.slurm.conf, decisions);
    settings.0
}

#[derive(Default)]
struct Settings(Vec<Setting>);

impl Settings {
    fn add(&mut self, key: &str, value: impl ToString) {
        self.0.push(Setting { key: key.to_owned(), value: value.to_string(), why: None });
    }

    fn add_because(&mut self, key: &str, value: impl ToString, why: &str) {
        self.0.push(Setting { key: key.to_owned(), value: value.to_string(), why: Some(why.to_owned()) });
    }

    fn identity(&mut self, config: &Config, host: &HostName) {
        let cluster = config.cluster_name.as_ref().map_or("slurminit", NodeName::as_str);
        self.add_because("ClusterName", cluster, "slurmctld refuses saved state of another name");
        let why = "must be this host's name; its address stays inside, so a new container address changes nothing";
        self.add_because("SlurmctldHost", format_args!("{host}(127.0.0.1)"), why);
        self.add("SlurmctldPort", config.slurm.controller_port);
        self.add("SlurmdPort", config.slurm.daemon_port);
        let user = config.daemons.get(&DaemonName::Slurmctld).and_then(|settings| settings.user.as_deref());
        self.add("SlurmUser", user.unwrap_or("slurm"));
        self.add("AuthType", "auth/munge");
        self.add("AuthInfo", format_args!("socket={}", config.paths.munge_socket.display()));
    }

    fn files(&mut self, config: &Config) {
        let (state, run) = (config.paths.state.display(), config.paths.run.display());
        self.add("StateSaveLocation", format_args!("{state}/slurmctld"));
        self.add("SlurmdSpoolDir", format_args!("{state}/slurmd"));
        // slurmctld writes its pid file as SlurmUser, who may not write into the run directory itself.
        self.add("SlurmctldPidFile", format_args!("{run}/slurm/slurmctld.pid"));
        self.add("SlurmdPidFile", format_args!("{run}/slurmd.pid"));
        self.add_because(
            "MailProg",
            "/bin/true",
            "the image has no mail program, and slurmctld complains about a missing one",
        );
    }

    fn processes(&mut self, cgroup: &CgroupPlan) {
        self.add_because("ProctrackType", cgroup.proctrack, &cgroup.why);
        self.add("TaskPlugin", cgroup.task);
        self.add("MpiDefault", "none");
        let why = "connections that say nothing, which any user can make, keep out nobody; Slurm's own limit is 50";
        self.add_because("SlurmctldParameters", "conmgr_max_connections=1024", why);
        self.add_because("SlurmdParameters", "conmgr_max_connections=1024", why);
        self.add_because("ReturnToService", 2, "a node that registers with a true configuration is used again");
        let why = "so long an srun that slurmctld's restart met waits before it asks again; Slurm takes no less, and 120 by itself";
        self.add_because("SlurmctldTimeout", 60, why);
    }

    fn scheduling(&mut self, config: &Config, node: &NodePlan, decisions: &mut Vec<Decision>) {
        self.add("SchedulerType", "sched/backfill");
        let why = "a waiting batch job starts within a second of another's end; Slurm's own default waits for three";
        self.add_because("SchedulerParameters", "batch_sched_delay=0", why);
        self.add("SelectType", "select/cons_tres");
        let unit = if node.topology.is_some() { "CR_Core" } else { "CR_CPU" };
        let why = match (node.topology.is_some(), node.memory_mib.is_some()) {
            (true, true) => "jobs share the node by cores and memory",
            (false, true) => "jobs share the node by CPUs and memory; cores are not known here",
            (true, false) => "jobs share the node by cores; its memory is not known",
            (false, false) => "jobs share the node by CPUs; neither cores nor memory are known",
        };
        let select = if node.memory_mib.is_some() { format!("{unit}_Memory") } else { unit.to_owned() };
        decisions.push(Decision::new(format!("SelectTypeParameters={select}"), why));
        self.add_because("SelectTypeParameters", select, why);
        if let Some(memory) = node.memory_mib {
            let share = (memory / u64::from(node.cpus.max(1))).clamp(1, 2048);
            let why =
                "MiB for each CPU of a job that does not say; at most an equal share, so that a job may take every CPU";
            decisions.push(Decision::new(format!("DefMemPerCPU={share}"), why));
            decisions.push(Decision::new(
                "no MaxMemPerCPU",
                "with it Slurm gives a job more CPUs than it asked for, and a job for one GPU could not take most of the \
                 memory; set it in [slurm.conf] if you want it",
            ));
            self.add_because("DefMemPerCPU", share, why);
        }
        self.add_because(
            "GresTypes",
            GresPlan::types(config),
            "also without a GPU: then a job that asks for one is refused, not misunderstood",
        );
    }

    /// The operator's keys replace what is there, in any case of letters, and add what is not. An empty value removes.
    fn lay_over(&mut self, own: &SlurmSettings, decisions: &mut Vec<Decision>) {
        for (key, value) in own.iter() {
            let place = self.0.iter().position(|setting| key.is(&setting.key));
            let why = match place {
                Some(at) => format!("[slurm.conf] of the operator, in place of {}", self.0[at].value),
                None => "[slurm.conf] of the operator".to_owned(),
            };
            decisions.push(Decision::new(format!("{}={}", key.as_str(), value.as_str()), why.clone()));
            match (place, value.as_str()) {
                (Some(at), "") => drop(self.0.remove(at)),
                (None, "") => {}
                (Some(at), value) => {
                    self.0[at].value = value.to_owned();
                    self.0[at].why = Some(why);
                }
                (None, value) => self.add_because(key.as_str(), value, &why),
            }
        }
    }
}

/// The operator's partitions, else one for everybody.
pub(super) fn partitions(config: &Config, decisions: &mut Vec<Decision>) -> Vec<PartitionPlan> {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    if config.partitions.is_empty() {
        decisions.push(Decision::new("PartitionName=debug", "one partition for everybody, without a time limit"));
        let settings =
            vec![pair("Nodes", "ALL"), pair("Default", "YES"), pair("MaxTime", "INFINITE"), pair("State", "UP")];
        return vec![PartitionPlan { name: "debug".to_owned(), settings }];
    }
    // Without a default partition every job would have to name one.
    let no_default = !config.partitions.iter().any(|partition| partition.settings.get("Default").is_some());
    let mut plans = Vec::new();
    for (index, partition) in config.partitions.iter().enumerate() {
        let own = &partition.settings;
        let mut settings = Vec::new();
        if own.get("Nodes").is_none() {
            settings.push(pair("Nodes", "ALL"));
        }
        if no_default && index == 0 {
            settings.push(pair("Default", "YES"));
        }
        settings.extend(
            own.iter()
                .filter(|(_, value)| !value.as_str().is_empty())
                .map(|(key, value)| pair(key.as_str(), value.as_str())),
        );
        decisions.push(Decision::new(format!("PartitionName={}", partition.name), "[[partition]] of the operator"));
        plans.push(PartitionPlan { name: partition.name.to_string(), settings });
    }
    plans
}
