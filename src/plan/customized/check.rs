//! Foreseeable problems with the user's files on this machine.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

use crate::gpus::{auto_detect_fault, plugin};
use crate::{FileName, Plan, cgroups, login};
use config::{Config, Role};
use model::inventory::gres::gpus;
use model::inventory::{Finding, Inventory, Kind, Severity, Vendor};

use super::{Customized, Names, UserFile, own_node, parse};

/// The context of the checks.
pub(super) struct Context<'a> {
    pub(super) config: &'a Config,
    pub(super) inventory: &'a Inventory,
    pub(super) names: &'a Names,
    /// Whether a file exists.
    pub(super) exists: &'a dyn Fn(&Path) -> bool,
}

impl Context<'_> {
    /// Whether slurmd runs here, so that lines about this node count.
    pub(super) fn has_node(&self) -> bool {
        !matches!(self.config.role, Role::Controller | Role::Login)
    }

    /// Whether slurmctld runs here.
    pub(super) fn has_controller(&self) -> bool {
        !matches!(self.config.role, Role::Compute | Role::Login)
    }
}

/// Runs all checks.
pub(super) fn check(plan: &Plan, customized: &Customized, context: &Context<'_>) -> Vec<Finding> {
    let mut check = Check { plan, inventory: context.inventory, findings: Vec::new() };
    let node = customized.own_node.as_ref();
    let planned = plan.node_names();
    // If the user's slurm.conf does not have this node, its generated name is unknown.
    let is_generated = customized.get(FileName::SlurmConf).is_none();
    let name = node.map(|node| node.name.as_str()).or(is_generated.then_some(planned.as_str()));
    let is_own = |hosts: &str| own_node::is_for_node(hosts, name, context.names);
    let lines_of = |gres: &UserFile| parse::gres_lines(&gres.read.text, &is_own);
    let gres = customized.get(FileName::GresConf).map(|file| (file, lines_of(file))).filter(|_| context.has_node());
    if let Some((file, own)) = &gres {
        check.gres(file, own, context.exists);
    }
    let Some(slurm) = customized.get(FileName::SlurmConf) else { return check.findings };
    let lines = slurm.lines();
    let value = |key: &str| lines.iter().rev().find_map(|line| line.get(key));
    check.ports(slurm, &value);
    if context.has_controller() {
        check.host(slurm, &lines, context.names);
    }
    check.gres_types(slurm, &own_node::nodes(&lines), &value);
    if context.has_node() {
        check.login(slurm, &value);
        if let Some(node) = node {
            check.node(slurm, gres.as_ref().map(|(file, own)| (*file, own)), &node.line, &value);
        }
        check.cgroup(slurm, &value);
    }
    check.findings
}

/// The plan, and the problems so far.
struct Check<'a> {
    plan: &'a Plan,
    inventory: &'a Inventory,
    findings: Vec<Finding>,
}

/// The last value of a key.
type Value<'a> = dyn Fn(&str) -> Option<&'a str> + 'a;

fn finding(severity: Severity, file: &UserFile, what: impl Display, cause: &str, repair: impl Into<String>) -> Finding {
    Finding::new(Kind::OwnFiles, severity, format!("{}: {what}", file.path.display()), cause, repair)
}

impl Check<'_> {
    fn gres(&mut self, gres: &UserFile, own: &parse::GresLines, exists: &dyn Fn(&Path) -> bool) {
        let Check { plan, inventory, findings } = self;
        let mut seen = BTreeSet::new();
        for file in own.gpus.iter().flat_map(|(_, files)| files) {
            if !seen.insert(file) {
                let (what, cause) = (format!("duplicate File={file}"), "slurmd exits at a duplicate device file");
                findings.push(finding(Severity::Error, gres, what, cause, "remove one of the lines"));
            } else if !exists(Path::new(file)) {
                let cause = "slurmd waits about 19 s for the device file, then exits";
                let repair =
                    "remove the line, or pass the device to the container; `slurminit detect` lists the devices";
                findings.push(finding(
                    Severity::Error,
                    gres,
                    format_args!("File={file} does not exist"),
                    cause,
                    repair,
                ));
            }
        }
        if own.gpus.iter().any(|(_, files)| files.is_empty()) && own.auto_detect.is_none() {
            let cause = "Slurm ignores a GPU without a device file, and drains the node";
            findings.push(finding(Severity::Error, gres, "a GPU has no File=", cause, "add File=/dev/..."));
        }
        let own = own.auto_detect.as_deref().unwrap_or_default().to_ascii_lowercase();
        let Some(vendor) = Vendor::ALL.into_iter().find(|vendor| vendor.traits().slurm.auto_detect == own) else {
            return;
        };
        let plugin = plugin(vendor);
        if let Some(fault) = auto_detect_fault(vendor, inventory, &plan.nodes.node) {
            let what = format!("AutoDetect={own} will fail here");
            findings.push(finding(fault.severity, gres, what, &fault.cause, fault.repair));
        }
        if !inventory.slurm.has_plugin(&plugin) {
            let cause = "slurmd then finds no GPU, and Slurm drains the node";
            let repair = "install the plugin, add File= lines for the devices, or remove the file to generate it";
            let what = format!("AutoDetect needs Slurm's plugin {plugin}, which is not installed");
            findings.push(finding(Severity::Error, gres, what, cause, repair));
        }
    }

    fn login(&mut self, slurm: &UserFile, value: &Value<'_>) {
        if login::is_fatal_with(value(login::KEY), self.inventory) {
            let repair =
                format!("add the line {}=0, so that slurmd reads env_cache/USER, written at each start", login::KEY);
            let what = format!("{} is not 0: {}", login::KEY, login::WHAT);
            self.findings.push(finding(Severity::Warning, slurm, what, login::CAUSE, repair));
        }
    }

    /// Checks GresTypes: slurmctld exits at a Gres that is missing there.
    fn gres_types(&mut self, slurm: &UserFile, nodes: &[parse::Line], value: &Value<'_>) {
        let types = value("GresTypes").unwrap_or_default();
        let has_gpus = nodes.iter().filter_map(|node| node.get("Gres")).any(|gres| gpus(gres) > 0);
        if has_gpus && !types.split(',').any(|name| name.trim().eq_ignore_ascii_case("gpu")) {
            let cause = "Slurm then rejects gpu in Gres=";
            let repair = "add the line GresTypes=gpu before NodeName";
            let lacks = finding(Severity::Error, slurm, "GresTypes lacks gpu", cause, repair);
            self.findings.push(Finding { kind: Kind::Gres, ..lacks });
        }
    }

    /// The line of this node.
    fn node(&mut self, slurm: &UserFile, gres: Option<Gres<'_>>, node: &parse::Line, value: &Value<'_>) {
        let claimed = node.get("Gres").map_or(0, gpus);
        let miscount = self.gpus(claimed, slurm, gres);
        self.findings.extend(miscount.map(|finding| Finding { kind: Kind::Gres, ..finding }));
        // Slurm matches the word in any case, and also without its last letter.
        let overrides =
            value("SlurmdParameters").is_some_and(|value| value.to_ascii_lowercase().contains("config_override"));
        self.cpus_and_memory(slurm, node, overrides);
    }

    /// The first SlurmctldHost is the primary controller, others take over from it.
    fn host(&mut self, slurm: &UserFile, lines: &[parse::Line], names: &Names) {
        let of = |key: &'static str| lines.iter().filter_map(move |line| line.get(key));
        let hosts = of("SlurmctldHost").chain(of("ControlMachine")).chain(of("BackupController"));
        let hosts: Vec<&str> = hosts.map(|host| host.split('(').next().unwrap_or(host)).collect();
        let Some(first) = hosts.first().filter(|_| !hosts.iter().any(|host| names.has(host))) else { return };
        let own = &self.inventory.hostname;
        let cause = "slurmctld exits on a host that is not listed";
        let repair = format!("write SlurmctldHost={own}, or start the container with --hostname {first}");
        let what = format!("SlurmctldHost={}, but this host is {own}", hosts.join(" and "));
        self.findings.push(finding(Severity::Error, slurm, what, cause, repair));
    }

    fn ports(&mut self, slurm: &UserFile, value: &Value<'_>) {
        let Check { plan, findings, .. } = self;
        // The defaults are Slurm's (slurm.conf(5)).
        for (key, default, name) in
            [("SlurmctldPort", "6817", "controller_port"), ("SlurmdPort", "6818", "daemon_port")]
        {
            let (own, port) = (plan.port(key), value(key).unwrap_or(default));
            if port != own {
                let cause = "slurminit checks the daemon at the port of slurminit.toml";
                let repair = format!("set {name} = {port} in [slurm] of slurminit.toml");
                let what = format!("{key}={port}, but slurminit.toml has {own}");
                findings.push(finding(Severity::Error, slurm, what, cause, repair));
            }
        }
    }

    /// The problem with the GPU count in the node's line.
    fn gpus(&self, claimed: u64, slurm: &UserFile, gres: Option<Gres<'_>>) -> Option<Finding> {
        let Check { plan, inventory, .. } = self;
        let own_gres = gres.map(|(_, own)| own);
        let offered = match own_gres {
            Some(own) if own.gpus.is_empty() => inventory.usable_gpus().count(),
            Some(own) => own.count(),
            None => plan.nodes.gres.lines.len(),
        } as u64;
        // The user's gres.conf decides, whatever hardware there is.
        let fitting = own_gres.filter(|own| !own.gpus.is_empty()).map_or(plan.node_gres(), |own| own.node_gres());
        if claimed < offered {
            let what = format!("Gres= has {claimed} GPUs, but {offered} are available");
            let cause = "jobs cannot request the others";
            return Some(finding(Severity::Warning, slurm, what, cause, format!("write Gres={fitting}")));
        }
        let cause =
            "Slurm drains a node with fewer GPUs than configured (gres/gpu count reported lower than configured)";
        let what = format!("Gres= has {claimed} GPUs, but only {offered} are available");
        let more_lines = match gres.filter(|_| inventory.usable_gpus().count() as u64 >= claimed) {
            Some((gres, _)) => format!(", or add lines for the other GPUs to {}", gres.path.display()),
            None => String::new(),
        };
        let repair = match fitting.as_str() {
            "" => "remove Gres= from the node's line".to_owned(),
            fitting => format!("write Gres={fitting}{more_lines}"),
        };
        (claimed > offered).then(|| finding(Severity::Error, slurm, what, cause, repair))
    }

    /// With `overrides`, slurmctld ignores slurmd's detection (`SlurmdParameters=config_overrides`).
    fn cpus_and_memory(&mut self, slurm: &UserFile, node: &parse::Line, overrides: bool) {
        let Check { plan, inventory, findings } = self;
        let name = node.get("NodeName").unwrap_or_default();
        let usable = inventory.memory.usable_mib();
        if let Some(memory) = node.number("RealMemory").filter(|memory| *memory > usable) {
            let (severity, cause) = if memory > inventory.memory.total_mib && !overrides {
                (Severity::Error, "Slurm drains a node with less memory than configured (Low RealMemory)")
            } else if memory > inventory.memory.total_mib {
                (
                    Severity::Warning,
                    "with config_overrides Slurm allocates more memory than available, which causes OOM kills",
                )
            } else {
                (Severity::Warning, "the container's memory limit is lower, which causes OOM kills")
            };
            let what = format!("{name} has RealMemory={memory}, but only {usable} MiB are available");
            let repair = format!("write RealMemory={}", plan.nodes.node.memory_mib.unwrap_or(usable));
            findings.push(Finding { kind: Kind::RealMemory, ..finding(severity, slurm, what, cause, repair) });
        }
        let machine_cpus = inventory.cpu.sockets.iter().flatten().map(|core| core.len() as u64).sum::<u64>();
        if let Some(cpus) = node.number("CPUs").filter(|cpus| machine_cpus > 0 && *cpus > machine_cpus) {
            let (severity, cause) = if overrides {
                (Severity::Info, "with config_overrides Slurm runs more tasks than CPUs at once")
            } else {
                (Severity::Error, "Slurm drains a node with fewer CPUs than configured")
            };
            let what = format!("{name} has CPUs={cpus}, but only {machine_cpus} are available");
            let repair = match overrides {
                true => "no action if intended".to_owned(),
                false => {
                    format!("write CPUs={}, or SlurmdParameters=config_overrides if intended", plan.nodes.node.cpus)
                }
            };
            findings.push(finding(severity, slurm, what, cause, repair));
        }
    }

    /// Settings that need unusable cgroups but at which slurmd does not exit.
    fn cgroup(&mut self, slurm: &UserFile, value: &Value<'_>) {
        let Some(obstacle) = cgroups::obstacle(self.inventory) else { return };
        let plan = &self.plan.cgroup;
        let uses = |key: &str| value(key).filter(|value| value.contains("cgroup"));
        let (what, repair) = match (uses("ProctrackType").or_else(|| uses("JobAcctGatherType")), value("ProctrackType"))
        {
            (Some(value), _) => {
                let repair = format!("write ProctrackType={} and TaskPlugin={}", plan.proctrack, plan.task);
                (format!("{value} cannot work here"), repair)
            }
            // Slurm's own default is proctrack/cgroup.
            (None, None) => {
                let what = "ProctrackType is not set (Slurm's default is proctrack/cgroup)";
                (what.to_owned(), format!("add the line ProctrackType={}", plan.proctrack))
            }
            (None, Some(_)) => return,
        };
        self.findings.push(finding(Severity::Error, slurm, what, &obstacle.why, repair));
    }
}

/// The user's gres.conf, and its lines for this node.
type Gres<'a> = (&'a UserFile, &'a parse::GresLines);
