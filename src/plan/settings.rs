//! The keys of slurm.conf that apply to the whole cluster, and the partitions.

use std::path::Path;

use config::{Config, DaemonName, FeatureName, SlurmSettings};
use model::inventory::{Inventory, Kind};

use super::customized::last_value;
use super::names::HostName;
use super::{
    CgroupPlan, CliFilter, Epilog, GresPlan, NodePlan, Prolog, Reasons, TaskProlog, accounting, autoscale, cli_filter,
    cluster, login, mail, preemption, rest,
};

/// A line of slurm.conf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key.
    pub key: String,
    /// The value, without quotes.
    pub value: String,
    /// The reason, if it is not obvious.
    pub why: Option<String>,
}

impl Setting {
    /// The line with this key.
    pub(super) fn find<'a>(settings: &'a [Self], key: &str) -> Option<&'a Self> {
        settings.iter().find(|setting| setting.key.eq_ignore_ascii_case(key))
    }

    /// Whether the key's value is this path.
    pub(super) fn is_path(settings: &[Self], key: &str, path: &Path) -> bool {
        Self::find(settings, key).is_some_and(|setting| path.to_str() == Some(setting.value.as_str()))
    }
}

/// A PartitionName line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionPlan {
    /// The value of PartitionName.
    pub name: String,
    /// The settings after the name, each a key and its value.
    pub settings: Vec<(String, String)>,
    /// Whether the partition is no longer configured, and is kept only for the jobs that use it.
    pub is_kept: bool,
}

/// slurminit's scripts that Slurm runs on a node for a job or task.
pub(super) struct Scripts<'a> {
    pub(super) task_prolog: Option<&'a TaskProlog>,
    pub(super) prolog: Option<&'a Prolog>,
    pub(super) epilog: &'a Epilog,
}

/// The generated settings, after the operator's have replaced, added or removed keys.
pub(super) fn plan(
    config: &Config,
    host: &HostName,
    node: &NodePlan,
    cgroup: &CgroupPlan,
    scripts: &Scripts<'_>,
    inventory: &Inventory,
    reasons: &mut Reasons,
) -> Vec<Setting> {
    let mut settings = Settings::default();
    settings.identity(config, host, inventory);
    settings.files(config, inventory);
    settings.processes(config, cgroup, inventory, reasons);
    let task_prolog = scripts.task_prolog.map(|prolog| ("TaskProlog", &prolog.path, prolog.why));
    let epilog = Some(("Epilog", &scripts.epilog.path, scripts.epilog.why()));
    let prolog = scripts.prolog.map(|prolog| ("Prolog", &prolog.path, prolog.why()));
    for (key, path, why) in [task_prolog, prolog, epilog].into_iter().flatten() {
        settings.add_because(key, path.display(), why);
        reasons.decide(format!("{key}={}", path.display()), why);
    }
    if login::is_fatal(inventory) {
        settings.add_because(login::KEY, 0, login::WHY);
        reasons.decide(format!("{}=0", login::KEY), login::WHY);
    }
    settings.scheduling(config, node, reasons);
    for (key, value) in rest::authentication(config).into_iter().flatten() {
        settings.add(key, value);
    }
    if config.accounting.is_on() {
        accounting::settings(&mut settings, config, host);
    }
    preemption::settings(&mut settings, config);
    if !config.autoscale.nodes.is_empty() {
        autoscale::settings(&mut settings, config);
    }
    settings.override_with(&config.slurm.conf, reasons);
    settings.0
}

/// Slurm does not start a batch job immediately: it checks for new jobs every second, and by default it also waits three seconds.
/// `sched_interval` limits the wait of a job whose start time has come, such as a requeued one. Without `nohold_on_prolog_fail`, a job
/// whose launch fails is held until `scontrol release`, even if it failed because the node was being stopped.
const SCHEDULER: &str = "batch_sched_delay=0,sched_interval=5,nohold_on_prolog_fail";
const SCHEDULER_WHY: &str = "if resources are free, a batch job starts within 1 s, or at most 5 s after its requested start time; a job whose launch fails is requeued instead of held";
/// The backfill scheduler runs on its own timer; these values limit the cost of a long queue. slurmctld does not save
/// its state after backfill has started a job, so `slurminit jobs follow` makes it save when its log reports such a
/// start.
const BACKFILL: &str = "bf_interval=1,bf_max_time=30,bf_continue,bf_yield_interval=20000";
/// Log levels at which slurmctld does not log the jobs that backfill starts.
const QUIET_LEVELS: [&str; 3] = ["quiet", "fatal", "error"];

/// How long slurmd accepts the credential of a step, in seconds: `cred_expire` in AuthInfo, or Slurm's default.
pub fn step_credential_lifetime(slurm_conf: &str) -> i64 {
    let options = last_value(slurm_conf, "AuthInfo").unwrap_or_default();
    let lifetime = options.split(',').find_map(|option| option.trim().strip_prefix("cred_expire="));
    lifetime.and_then(|seconds| seconds.parse().ok()).unwrap_or(120)
}

#[derive(Default)]
pub(super) struct Settings(Vec<Setting>);

impl Settings {
    pub(super) fn add(&mut self, key: &str, value: impl ToString) {
        self.0.push(Setting { key: key.to_owned(), value: value.to_string(), why: None });
    }

    pub(super) fn add_because(&mut self, key: &str, value: impl ToString, why: &str) {
        self.0.push(Setting { key: key.to_owned(), value: value.to_string(), why: Some(why.to_owned()) });
    }

    fn identity(&mut self, config: &Config, host: &HostName, inventory: &Inventory) {
        let cluster = config.cluster_name();
        self.add_because("ClusterName", cluster, "slurmctld rejects state that was saved under another cluster name");
        let why = "must be this host's name; the loopback address stays valid if the container's address changes";
        if config.shares_a_cluster() {
            self.add("SlurmctldHost", cluster::controller(config, host.as_str()));
            self.add("MaxNodeCount", config.slurm.max_nodes);
            let why =
                "a node that does not respond for this time is down, and its jobs are requeued; Slurm's default is 300";
            self.add_because("SlurmdTimeout", 30, why);
        } else {
            self.add_because("SlurmctldHost", format_args!("{host}({})", inventory.loopback()), why);
        }
        if inventory.ipv6_alone {
            let why = "this container has no IPv4 address, and Slurm does not use IPv6 by default";
            self.add_because("CommunicationParameters", "EnableIPv6", why);
        }
        self.add("SlurmctldPort", config.slurm.controller_port);
        self.add("SlurmdPort", config.slurm.daemon_port);
        let user = config.daemons.get(&DaemonName::Slurmctld).and_then(|settings| settings.user.as_deref());
        self.add("SlurmUser", user.unwrap_or("slurm"));
        self.add("AuthType", "auth/munge");
        let socket = config.paths.munge_socket.display();
        if config.shares_a_cluster() {
            // Keeps Slurm's default lifetime of credentials: srun may copy a program to the nodes before a step starts, and the nodes'
            // clocks may differ.
            self.add("AuthInfo", format_args!("socket={socket}"));
        } else {
            let why = "a requeued job waits until its old credentials expire: 11 s, instead of 121 s by default";
            self.add_because("AuthInfo", format_args!("socket={socket},cred_expire=10"), why);
        }
    }

    fn files(&mut self, config: &Config, inventory: &Inventory) {
        let (state, run) = (config.paths.state.display(), config.paths.run.display());
        self.add("StateSaveLocation", format_args!("{state}/slurmctld"));
        let of_node = if config.simulated().is_some() { ["/%n", "-%n"] } else { [""; 2] };
        self.add("SlurmdSpoolDir", format_args!("{state}/slurmd{}", of_node[0]));
        if config.simulated().is_some() {
            let why =
                "without a directory for each node, steps on several nodes would share one PMIx directory and fail";
            self.add_because("TmpFS", format_args!("{run}/tmp/%n"), why);
        }
        // slurmctld writes its PID file as SlurmUser, who may not write to the run directory itself.
        self.add("SlurmctldPidFile", format_args!("{run}/slurm/slurmctld.pid"));
        self.add("SlurmdPidFile", format_args!("{run}/slurmd{}.pid", of_node[1]));
        let (program, why) = mail::program(config);
        self.add_because("MailProg", program, why);
        if inventory.slurm.has_plugin("jobcomp_filetxt") {
            let why = "records finished jobs for `sacct -c`; slurmctld purges a job after five minutes";
            self.add_because("JobCompType", "jobcomp/filetxt", why);
            self.add("JobCompLoc", config.paths.ended_jobs().display());
        }
    }

    fn processes(&mut self, config: &Config, cgroup: &CgroupPlan, inventory: &Inventory, reasons: &mut Reasons) {
        self.add_because("ProctrackType", cgroup.proctrack, &cgroup.why);
        self.add("TaskPlugin", cgroup.task);
        if inventory.slurm.has_plugin("mpi_pmix") {
            let why = "`srun` starts the ranks of one MPI job instead of separate one-rank jobs";
            reasons.decide("MpiDefault=pmix", "Slurm's PMIx plugin and its library are installed");
            self.add_because("MpiDefault", "pmix", why);
        } else {
            self.add("MpiDefault", "none");
        }
        if let Some(filter) = CliFilter::plan(config, inventory) {
            self.add_because(cli_filter::KEY, "lua", filter.why());
        }
        let why =
            "idle connections, which any user can open, must not lock out other clients; Slurm's default limit is 50";
        self.add_because("SlurmctldParameters", "conmgr_max_connections=1024", why);
        match config.simulated() {
            Some(_) => {
                let why = "simulated nodes use the configured resources; connection limit as for slurmctld";
                self.add_because("SlurmdParameters", "conmgr_max_connections=1024,config_overrides", why);
            }
            None => self.add_because("SlurmdParameters", "conmgr_max_connections=1024", why),
        }
        self.add_because("ReturnToService", 2, "a down node that registers with a valid configuration is resumed");
        self.add_because("ScronParameters", "enable", "`scrontab`: periodic jobs");
        let why = "the interval in seconds at which srun retries after a restart of slurmctld; 60 is the minimum, Slurm's default is 120";
        self.add_because("SlurmctldTimeout", 60, why);
    }

    fn scheduling(&mut self, config: &Config, node: &NodePlan, reasons: &mut Reasons) {
        self.add("SchedulerType", "sched/backfill");
        let debug = config.slurm.conf.iter().find(|(key, _)| key.is("SlurmctldDebug"));
        let is_too_quiet =
            debug.is_some_and(|(_, level)| QUIET_LEVELS.iter().any(|quiet| level.as_str().eq_ignore_ascii_case(quiet)));
        match is_too_quiet {
            true => self.add_because("SchedulerParameters", SCHEDULER, SCHEDULER_WHY),
            false => self.add_because("SchedulerParameters", format_args!("{SCHEDULER},{BACKFILL}"), SCHEDULER_WHY),
        }
        self.add("SelectType", "select/cons_tres");
        let why = "a job above the limits of all its partitions is rejected, instead of pending forever";
        self.add_because("EnforcePartLimits", "ANY", why);
        if config.shares_a_cluster() {
            let why = "jobs share a node by cores and memory; node-specific values are in the node's registration";
            self.add_because("SelectTypeParameters", "CR_Core_Memory", why);
            let why = "default MiB per CPU of a job; without it a job would get all memory of its node";
            self.add_because("DefMemPerCPU", 512, why);
        } else {
            self.sharing(node, reasons);
        }
        self.add_because(
            "GresTypes",
            GresPlan::types(config),
            "set even without a GPU, so that Slurm rejects a GPU request instead of misreading it",
        );
    }

    /// Adds the keys that determine how jobs share a node of a cluster in a single container.
    fn sharing(&mut self, node: &NodePlan, reasons: &mut Reasons) {
        let unit = if node.topology.is_some() { "CR_Core" } else { "CR_CPU" };
        let why = match (node.topology.is_some(), node.memory_mib.is_some()) {
            (true, true) => "jobs share the node by cores and memory",
            (false, true) => "jobs share the node by CPUs and memory (the node's line does not list cores)",
            (true, false) => "jobs share the node by cores (memory unknown)",
            (false, false) => "jobs share the node by CPUs (the node's line does not list cores; memory unknown)",
        };
        let select = if node.memory_mib.is_some() { format!("{unit}_Memory") } else { unit.to_owned() };
        reasons.decide(format!("SelectTypeParameters={select}"), why);
        self.add_because("SelectTypeParameters", select, why);
        if let Some(memory) = node.memory_mib {
            let share = (memory / u64::from(node.cpus.max(1))).clamp(1, 2048);
            let why = "default MiB per CPU of a job; at most an equal share, so that a job can use every CPU";
            reasons.decide(format!("DefMemPerCPU={share}"), why);
            reasons.decide(
                "no MaxMemPerCPU",
                "not set: with it, Slurm adds CPUs to a job for its memory, so a one-GPU job could not use most of the memory without most of the CPUs",
            );
            self.add_because("DefMemPerCPU", share, why);
        }
    }

    /// Applies the operator's keys: they replace existing keys, regardless of case, or are added. An empty value removes a key.
    fn override_with(&mut self, own: &SlurmSettings, reasons: &mut Reasons) {
        for (key, value) in own.iter() {
            let place = self.0.iter().position(|setting| key.is(&setting.key));
            let why = match place {
                Some(at) => format!("[slurm.conf] of the operator, replaces {}", self.0[at].value),
                None => "[slurm.conf] of the operator".to_owned(),
            };
            reasons.decide(format!("{}={}", key.as_str(), value.as_str()), why.clone());
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

/// The operator's partitions, or one for all users if there are none.
pub(super) fn partitions(config: &Config, reasons: &mut Reasons) -> Vec<PartitionPlan> {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    if config.partitions.is_empty() {
        reasons.decide("PartitionName=debug", "one partition for all users, without a time limit");
        let settings =
            vec![pair("Nodes", "ALL"), pair("Default", "YES"), pair("MaxTime", "INFINITE"), pair("State", "UP")];
        return vec![PartitionPlan { name: "debug".to_owned(), settings, is_kept: false }];
    }
    if config.partitions.iter().all(|partition| partition.preempt.is_some()) {
        let (what, cause) = (
            "`preempt` of [[partition]] has no effect",
            "every [[partition]] sets `preempt`, so no job preempts another",
        );
        reasons.warn(Kind::Settings, what, cause, "add a [[partition]] without `preempt`");
    }
    // Without a default partition every job would have to name one.
    let no_default = !config.partitions.iter().any(|partition| partition.settings.get("Default").is_some());
    let mut plans = Vec::new();
    for (index, partition) in config.partitions.iter().enumerate() {
        let own = &partition.settings;
        let mut settings = Vec::new();
        if own.get("Nodes").is_none() {
            let set = partition.feature.as_ref().filter(|_| config.shares_a_cluster());
            settings.push(pair("Nodes", set.map_or("ALL", FeatureName::as_str)));
        }
        if no_default && index == 0 {
            settings.push(pair("Default", "YES"));
        }
        let (keys, why) = preemption::of_partition(config, partition);
        let keys: Vec<_> = keys.into_iter().filter(|(key, _)| own.get(key).is_none()).collect();
        if !keys.is_empty() {
            let line: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            reasons.decide(format!("PartitionName={} {}", partition.name, line.join(" ")), why);
        }
        settings.extend(keys.iter().map(|(key, value)| pair(key, value)));
        settings.extend(
            own.iter()
                .filter(|(_, value)| !value.as_str().is_empty())
                .map(|(key, value)| pair(key.as_str(), value.as_str())),
        );
        reasons.decide(format!("PartitionName={}", partition.name), "[[partition]] of the operator");
        plans.push(PartitionPlan { name: partition.name.to_string(), settings, is_kept: false });
    }
    plans
}
