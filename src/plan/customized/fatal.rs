//! Settings that certainly make a daemon exit or block for a minute, or keep jobs from running. They are rejected before the start, with a
//! message that names the line, if the setting is in the operator's files.
//!
//! Other errors are traced to a setting after the first crash of a daemon (`plan::blame`).

use std::path::{Path, PathBuf};

use crate::{Culprit, FileName, Plan, cgroups};

use super::check::Context;
use super::include::{MAX_DEPTH, MissingInclude};
use super::{Customized, parse, programs};

/// A setting that certainly makes a daemon exit or block, or keeps jobs from running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fatal {
    /// The location of the setting in the operator's files; `None` if they do not set it.
    pub culprit: Option<Culprit>,
    /// The problem.
    pub what: String,
    /// The cause of the problem, its consequence, or both.
    pub cause: String,
    /// The fix.
    pub fix: String,
}

/// A key, its plugin, file names of which one must exist in Slurm's directory, and whether only slurmctld needs the file.
type RequiredFile = (&'static str, &'static str, &'static [&'static str], bool);

/// Tested with Slurm 24.11.5: the daemons or commands wait one minute for a missing configuration file, and exit if a script or key is
/// missing.
const REQUIRED_FILES: [RequiredFile; 9] = [
    ("TopologyPlugin", "topology/tree", &["topology.conf", "topology.yaml"], false),
    ("TopologyPlugin", "topology/block", &["topology.conf", "topology.yaml"], false),
    ("JobContainerType", "job_container/tmpfs", &["job_container.conf"], false),
    ("NodeFeaturesPlugins", "node_features/helpers", &["helpers.conf"], false),
    ("JobSubmitPlugins", "job_submit/lua", &["job_submit.lua"], true),
    ("BurstBufferType", "burst_buffer/lua", &["burst_buffer.lua"], true),
    ("CliFilterPlugins", CLI_FILTER, &["cli_filter.lua"], false),
    ("AuthType", "auth/slurm", &["slurm.key", "slurm.jwks"], false),
    ("CredType", "cred/slurm", &["slurm.key", "slurm.jwks"], false),
];

/// A plugin whose file slurminit generates, unless this Slurm cannot run it or [slurm.conf] sets `CliFilterPlugins`. A slurm.conf that
/// the user copied from a generated one names the plugin.
const CLI_FILTER: &str = "cli_filter/lua";

/// Finds the first fatal setting.
pub(super) fn find(plan: &Plan, customized: &Customized, context: &Context<'_>) -> Option<Fatal> {
    let included = customized.files.iter().find_map(|file| file.missing.as_ref());
    if let Some(missing) = included {
        return Some(missing_include(missing));
    }
    let checks = Checks { plan, customized, context, lines: lines(plan, customized) };
    checks
        .no_node()
        .or_else(|| checks.cgroups())
        .or_else(|| checks.missing_files())
        .or_else(|| checks.missing_plugin())
        .or_else(|| checks.missing_program())
        .or_else(|| checks.equal_ports())
}

fn missing_include(missing: &MissingInclude) -> Fatal {
    let MissingInclude { path, line, name, why } = missing;
    let (why, cause, fix) = match why {
        Some(why) => (
            why.as_str(),
            "slurminit cannot check the file; without it, Slurm waits a minute, then its daemons exit".to_owned(),
            match Path::new(name).is_absolute() {
                true => format!("provide a readable text file at {name}, or remove the line"),
                false => format!("put a text file {name} beside {}, or remove the line", path.display()),
            },
        ),
        None => (
            "circular or too deep",
            format!("a file includes itself, or Include lines are nested more than {MAX_DEPTH} levels deep"),
            "remove the line".to_owned(),
        ),
    };
    Fatal { culprit: Some(Culprit::File(path.clone(), *line)), what: format!("Include {name}: {why}"), cause, fix }
}

/// The keys and values of the user's slurm.conf, or the cluster-wide ones of the generated slurm.conf.
fn lines(plan: &Plan, customized: &Customized) -> Vec<(String, String)> {
    match customized.get(FileName::SlurmConf) {
        Some(file) => file.lines().iter().flat_map(|line| line.pairs().to_vec()).collect(),
        None => plan.settings.iter().map(|setting| (setting.key.clone(), setting.value.clone())).collect(),
    }
}

/// Plugins without which slurmd exits, or every job or command for jobs fails. Each row is a key and the prefix of its plugins' file names.
const JOB_PLUGINS: [(&str, &str); 11] = [
    ("MpiDefault", "mpi"),
    ("SwitchType", "switch"),
    ("TaskPlugin", "task"),
    ("ProctrackType", "proctrack"),
    ("JobAcctGatherType", "jobacct_gather"),
    ("JobContainerType", "job_container"),
    ("CliFilterPlugins", "cli_filter"),
    ("AcctGatherEnergyType", "acct_gather_energy"),
    ("AcctGatherFilesystemType", "acct_gather_filesystem"),
    ("AcctGatherInterconnectType", "acct_gather_interconnect"),
    ("AcctGatherProfileType", "acct_gather_profile"),
];

struct Checks<'a> {
    plan: &'a Plan,
    customized: &'a Customized,
    context: &'a Context<'a>,
    lines: Vec<(String, String)>,
}

impl Checks<'_> {
    fn value(&self, key: &str) -> Option<&str> {
        self.lines.iter().rev().find(|(own, _)| own.eq_ignore_ascii_case(key)).map(|(_, value)| value.as_str())
    }

    fn fatal(&self, key: &str, what: String, cause: String, fix: String) -> Fatal {
        let culprit = self.customized.culprit(self.context.config, key);
        let file = self.customized.get(FileName::SlurmConf).filter(|_| culprit.is_none());
        let what = file.map_or_else(|| what.clone(), |file| format!("{}: {what}", file.path.display()));
        Fatal { culprit, what, cause, fix }
    }

    /// Checks that the user's slurm.conf contains this node. A dynamic or simulated node, or a slurmd with the
    /// operator's command, needs no line.
    fn no_node(&self) -> Option<Fatal> {
        let Context { config, names, .. } = self.context;
        let has_own_command = config.daemons.get(&config::DaemonName::Slurmd).is_some_and(|own| own.command.is_some());
        let is_configured = config.has_dynamic_node() || config.simulated().is_some() || has_own_command;
        if !self.context.has_node() || is_configured || self.customized.own_node.is_some() {
            return None;
        }
        let file = self.customized.get(FileName::SlurmConf)?;
        let nodes = super::own_node::nodes(&file.lines());
        let first = nodes.iter().find_map(|node| model::hostlist::expand(node.get("NodeName")?).into_iter().next());
        let (what, fix) = match first {
            Some(first) => {
                let what = format!("no NodeName line matches this host, {}", names.hostname);
                let fix = format!(
                    "start the container with --hostname {first} or SLURMINIT_NODE_NAME={first}, or add NodeName={}",
                    names.hostname
                );
                (what, fix)
            }
            None => ("no NodeName line".to_owned(), format!("add NodeName={}", names.hostname)),
        };
        let cause = "slurmd cannot determine its node name, and exits".to_owned();
        let culprit =
            self.customized.culprit(config, "NodeName").unwrap_or_else(|| Culprit::File(file.path.clone(), 1));
        Some(Fatal { culprit: Some(culprit), what, cause, fix })
    }

    /// Checks for settings that make slurmd exit because they need cgroups, which it cannot use here or which cgroup.conf disables.
    fn cgroups(&self) -> Option<Fatal> {
        if !self.context.has_node() {
            return None;
        }
        let (proctrack, task, gather) = ("ProctrackType", "TaskPlugin", "JobAcctGatherType");
        let is_cgroup = |key: &&str| match self.value(key) {
            // TaskPlugin can list several plugins, with or without the prefix.
            Some(value) => value.split(',').any(|name| name.trim().rsplit('/').next() == Some("cgroup")),
            // Slurm's default.
            None => *key == proctrack,
        };
        let cgroup_conf = self.cgroup_conf();
        let is_set = |key: &str, wanted: &str| {
            cgroup_conf.iter().any(|(own, value)| own.eq_ignore_ascii_case(key) && value.eq_ignore_ascii_case(wanted))
        };
        let is_disabled = is_set("CgroupPlugin", "disabled");
        let constrains =
            ["Cores", "RAMSpace", "SwapSpace", "Devices"].iter().any(|what| is_set(&format!("Constrain{what}"), "yes"));
        let obstacle = cgroups::obstacle(self.context.inventory);
        let (key, cause) = match obstacle {
            _ if is_disabled => {
                let why = obstacle.map_or_else(String::new, |obstacle| format!(": {}", obstacle.why));
                let key = [proctrack, task, gather].into_iter().find(is_cgroup)?;
                (key, format!("slurmd exits, because cgroup.conf has CgroupPlugin=disabled{why}"))
            }
            Some(obstacle) if obstacle.ends_slurmd => {
                let key = [proctrack, gather]
                    .into_iter()
                    .find(is_cgroup)
                    .or(Some(task).filter(is_cgroup).filter(|_| constrains))?;
                (key, format!("{}; slurmd exits", obstacle.why))
            }
            _ => return None,
        };
        let own = &self.plan.cgroup;
        let usable = match key {
            "ProctrackType" if own.is_used() => "proctrack/linuxproc",
            "ProctrackType" => own.proctrack,
            "TaskPlugin" if own.is_used() || own.task.contains("cgroup") => "task/none",
            "TaskPlugin" => own.task,
            _ => "jobacct_gather/linux",
        };
        let fix = match is_disabled && own.is_used() {
            true => format!("write {key}={usable}, or remove CgroupPlugin=disabled from cgroup.conf"),
            false => format!("write {key}={usable}"),
        };
        let what = match self.value(key) {
            Some(value) => format!("{key}={value} cannot work here"),
            None => format!("{key} is not set (Slurm's default is proctrack/cgroup)"),
        };
        Some(self.fatal(key, what, cause, fix))
    }

    /// The keys and values of the cgroup.conf that Slurm reads, the user's or a generated one.
    fn cgroup_conf(&self) -> Vec<(String, String)> {
        match self.customized.get(FileName::CgroupConf) {
            Some(file) => parse::lines(&file.text).iter().flat_map(|line| line.pairs().to_vec()).collect(),
            None => {
                self.plan.cgroup.lines.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
            }
        }
    }

    /// Checks for plugins whose required file is missing.
    fn missing_files(&self) -> Option<Fatal> {
        let directory = &self.context.config.paths.slurm;
        let is_written = |plugin: &str| plugin == CLI_FILTER && self.plan.cli_filter.is_some();
        let is_missing = |(_, plugin, files, _): &&RequiredFile| {
            !is_written(plugin) && !files.iter().any(|file| self.context.exists(&directory.join(file)))
        };
        let is_used = |(key, plugin, ..): &&RequiredFile| {
            let short = plugin.rsplit('/').next().unwrap_or(plugin);
            let mut names = self.value(key).unwrap_or_default().split(',').map(str::trim);
            names.any(|name| name == *plugin || name == short)
        };
        let is_here = |(.., is_for_controller): &&RequiredFile| !is_for_controller || self.context.has_controller();
        let (key, plugin, files, _) = REQUIRED_FILES.iter().filter(is_here).filter(is_used).find(is_missing)?;
        let file: PathBuf = directory.join(files.first()?);
        let what = format!("{key}={plugin} requires the file {}, which is missing", file.display());
        let cause = "Slurm's daemons or commands wait for the file, or exit without it".to_owned();
        let fix = format!("mount the file there, or remove {key}");
        Some(self.fatal(key, what, cause, fix))
    }

    /// Checks for plugins that are not installed. Plugins of a kind that the inventory does not list are not checked.
    fn missing_plugin(&self) -> Option<Fatal> {
        let installed = &self.context.inventory.slurm.plugins;
        JOB_PLUGINS.iter().find_map(|(key, kind)| {
            let file = |name: &str| format!("{kind}_{}", name.rsplit('/').next().unwrap_or(name));
            let is_listed = installed.iter().any(|plugin| plugin.starts_with(&file("")));
            // Slurm 23.02 has a plugin named `none`, but 24.11 does not.
            let is_named = |name: &&str| !name.is_empty() && !name.ends_with("none");
            let mut names = self.value(key)?.split(',').map(str::trim).filter(is_named);
            let missing = names.find(|name| is_listed && !installed.contains(&file(name)))?;
            let others: Vec<&str> = installed.iter().filter_map(|plugin| plugin.strip_prefix(&file(""))).collect();
            let what =
                format!("{key}={missing}: Slurm's plugin {} is not installed, or cannot be loaded here", file(missing));
            let cause = "without the plugin slurmd exits, or every job fails".to_owned();
            let fix = format!("remove {key}, or write one of: {}", others.join(", "));
            Some(self.fatal(key, what, cause, fix))
        })
    }

    /// Checks for programs that are missing or not executable, and without which jobs cannot run normally.
    fn missing_program(&self) -> Option<Fatal> {
        programs::missing(&self.lines, self.context).find(|program| program.ends_jobs()).and_then(|program| {
            // slurminit's own programs are written after this check.
            self.customized.culprit(self.context.config, program.key())?;
            let (what, cause, fix) = program.texts();
            Some(self.fatal(program.key(), what, cause, fix))
        })
    }

    /// Checks that slurmctld and slurmd in the same container do not use the same port.
    fn equal_ports(&self) -> Option<Fatal> {
        if !self.context.has_node() || !self.context.has_controller() {
            return None;
        }
        let port = |key, default| self.value(key).unwrap_or(default);
        let (controller, daemon) = (port("SlurmctldPort", "6817"), port("SlurmdPort", "6818"));
        let is_set = |key: &&str| self.customized.culprit(self.context.config, key).is_some();
        let key = ["SlurmdPort", "SlurmctldPort"].into_iter().find(is_set)?;
        (controller == daemon).then(|| {
            let what = format!("SlurmctldPort and SlurmdPort are both {daemon}");
            let cause = "the daemon that starts second cannot listen on this port".to_owned();
            self.fatal(
                key,
                what,
                cause,
                "write SlurmdPort=6818 and SlurmctldPort=6817, or other ports that differ".to_owned(),
            )
        })
    }
}
