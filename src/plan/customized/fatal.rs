//! Settings with which a daemon certainly exits or blocks for a minute, or every job fails. They are rejected before the start, with the line.
//!
//! Other errors are attributed after the first crash of a daemon (`plan::blame`).

use std::path::PathBuf;

use crate::{Culprit, FileName, Plan, cgroups};

use super::check::Context;
use super::include::MissingInclude;
use super::{Customized, parse, programs};

/// A setting that certainly makes a daemon exit or block, or every job fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fatal {
    /// The place in the operator's files.
    pub culprit: Option<Culprit>,
    /// The problem.
    pub what: String,
    /// The daemon's reaction.
    pub cause: String,
    /// The fix.
    pub fix: String,
}

/// A key, a plugin, the plugin's files, one of which must be in Slurm's directory, and whether only slurmctld needs them.
type RequiredFile = (&'static str, &'static str, &'static [&'static str], bool);

/// Tested with Slurm 24.11.5: the daemons wait one minute for a missing configuration file, and exit if a script or key is missing.
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

/// A plugin whose file slurminit generates, if this Slurm can run it. A slurm.conf that the user copied from a
/// generated one names the plugin.
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
    Fatal {
        culprit: Some(Culprit::File(path.clone(), *line)),
        what: format!("Include {name}: {why}"),
        cause: "Slurm waits a minute for the file, then its daemons exit".to_owned(),
        fix: format!("put {name} beside {}, use an absolute path, or remove the line", path.display()),
    }
}

/// The keys of the slurm.conf that Slurm reads, generated or the user's.
fn lines(plan: &Plan, customized: &Customized) -> Vec<(String, String)> {
    match customized.get(FileName::SlurmConf) {
        Some(file) => file.lines().iter().flat_map(|line| line.pairs().to_vec()).collect(),
        None => plan.settings.iter().map(|setting| (setting.key.clone(), setting.value.clone())).collect(),
    }
}

/// Plugins that only jobs and clients load: the daemons start without them, and every job fails. Each key, and the first part of the name of its
/// plugins' files.
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

    /// Checks that the user's slurm.conf contains this node, unless the operator configured slurmd's command.
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

    /// Checks for settings that need unusable cgroups.
    fn cgroups(&self) -> Option<Fatal> {
        if !self.context.has_node() {
            return None;
        }
        let (proctrack, task, gather) = ("ProctrackType", "TaskPlugin", "JobAcctGatherType");
        let is_cgroup = |key: &&str| match self.value(key) {
            // TaskPlugin has several names, with or without the prefix.
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
                (key, format!("cgroup.conf has CgroupPlugin=disabled; slurmd exits with both{why}"))
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

    /// The keys of the cgroup.conf that Slurm reads.
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
            // Slurm 23.02 has a plugin named `none`, and 24.11 has not.
            let is_named = |name: &&str| !name.is_empty() && !name.ends_with("none");
            let mut names = self.value(key)?.split(',').map(str::trim).filter(is_named);
            let missing = names.find(|name| is_listed && !installed.contains(&file(name)))?;
            let others: Vec<&str> = installed.iter().filter_map(|plugin| plugin.strip_prefix(&file(""))).collect();
            let what =
                format!("{key}={missing}: Slurm's plugin {} is not installed, or cannot be loaded here", file(missing));
            let cause = "the daemons start without it, and every job fails".to_owned();
            let fix = format!("remove {key}, or write one of: {}", others.join(", "));
            Some(self.fatal(key, what, cause, fix))
        })
    }

    /// Checks for missing programs that every job needs.
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
            let cause = "the second daemon cannot listen".to_owned();
            self.fatal(
                key,
                what,
                cause,
                "write SlurmdPort=6818 and SlurmctldPort=6817, or other ports that differ".to_owned(),
            )
        })
    }
}
