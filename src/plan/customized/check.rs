//! Foreseeable problems with the user's files on this machine.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

use crate::inventory::gres::gpus;
use crate::inventory::{Finding, Inventory, Kind, Severity, Vendor};
use crate::plan::gpus::{auto_detect_fault, plugin};
use crate::plan::{FileName, Plan, login};

use super::{Customized, UserFile, parse};

/// Runs all checks.
pub(super) fn check(
    plan: &Plan,
    customized: &Customized,
    inventory: &Inventory,
    exists: &dyn Fn(&Path) -> bool,
) -> Vec<Finding> {
    let mut check = Check { plan, inventory, findings: Vec::new() };
    let gres = customized.get(FileName::GresConf);
    if let Some(gres) = gres {
        check.gres(gres, exists);
    }
    if let Some(slurm) = customized.get(FileName::SlurmConf) {
        check.slurm(slurm, gres);
        if customized.get(FileName::CgroupConf).is_none() {
            check.cgroup(slurm);
        }
    }
    check.findings
}

/// What the files are compared with, and the problems so far.
struct Check<'a> {
    plan: &'a Plan,
    inventory: &'a Inventory,
    findings: Vec<Finding>,
}

fn finding(severity: Severity, file: &UserFile, what: impl Display, cause: &str, repair: impl Into<String>) -> Finding {
    Finding::new(Kind::OwnFiles, severity, format!("{}: {what}", file.path.display()), cause, repair)
}

impl Check<'_> {
    fn gres(&mut self, gres: &UserFile, exists: &dyn Fn(&Path) -> bool) {
        let Check { plan, inventory, findings } = self;
        let own = parse::gres_lines(&gres.text);
        let mut seen = BTreeSet::new();
        for file in own.gpus.iter().flat_map(|(_, files)| files) {
            if !seen.insert(file) {
                let (what, cause) =
                    (format!("File={file} is there twice"), "slurmd dies of a device file that is named twice");
                findings.push(finding(Severity::Error, gres, what, cause, "remove one of the lines"));
            } else if !exists(Path::new(file)) {
                let cause = "slurmd waits about 19 seconds for the device file, then ends";
                let repair =
                    "remove the line, or pass the device to the container; `slurminit detect` shows what is there";
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
            let cause = "Slurm ignores a GPU without a device file, and takes the node out of service for it";
            findings.push(finding(Severity::Error, gres, "a GPU has no File=", cause, "add File=/dev/..."));
        }
        let own = own.auto_detect.unwrap_or_default().to_ascii_lowercase();
        let Some(vendor) = Vendor::ALL.into_iter().find(|vendor| vendor.traits().slurm.auto_detect == own) else {
            return;
        };
        let plugin = plugin(vendor);
        if let Some(fault) = auto_detect_fault(vendor, inventory, &plan.nodes.node) {
            let what = format!("AutoDetect={own} will not do well here");
            findings.push(finding(fault.severity, gres, what, &fault.cause, fault.repair));
        }
        if !inventory.slurm.has_plugin(&plugin) {
            let cause = "slurmd then finds no GPU, and the node is taken out of service";
            let repair =
                "install the plugin, or name the devices with File= lines, or remove the file to have it generated";
            let what = format!("AutoDetect needs Slurm's plugin {plugin}, which is not installed");
            findings.push(finding(Severity::Error, gres, what, cause, repair));
        }
    }

    fn slurm(&mut self, slurm: &UserFile, gres: Option<&UserFile>) {
        let lines = parse::lines(&slurm.text);
        let value = |key: &str| lines.iter().rev().find_map(|line| line.get(key));
        self.host_and_ports(slurm, &value);
        if login::is_fatal_with(value(login::KEY), self.inventory) {
            let repair = format!(
                "add the line {}=0: slurmd then reads env_cache/USER, which is written at each start",
                login::KEY
            );
            let what = format!("{} is not 0, and {}", login::KEY, login::WHAT);
            self.findings.push(finding(Severity::Warning, slurm, what, login::CAUSE, repair));
        }
        let is_default = |name: &str| name.eq_ignore_ascii_case("DEFAULT");
        let nodes = || lines.iter().filter(|line| line.get("NodeName").is_some_and(|name| !is_default(name)));
        let claimed: u64 = nodes().filter_map(|line| line.get("Gres")).map(gpus).sum();
        let types = value("GresTypes").unwrap_or_default();
        if claimed > 0 && !types.split(',').any(|name| name.trim().eq_ignore_ascii_case("gpu")) {
            let cause = "Slurm does not know the word gpu in Gres= then";
            let repair = "add the line GresTypes=gpu before NodeName";
            let lacks = finding(Severity::Error, slurm, "GresTypes lacks gpu", cause, repair);
            self.findings.push(Finding { kind: Kind::Gres, ..lacks });
        }
        let miscount = self.gpus(claimed, slurm, gres);
        self.findings.extend(miscount.map(|finding| Finding { kind: Kind::Gres, ..finding }));

        // Slurm matches the word in any case, and also without its last letter.
        let overrides =
            value("SlurmdParameters").is_some_and(|value| value.to_ascii_lowercase().contains("config_override"));
        for node in nodes() {
            self.cpus_and_memory(slurm, node, overrides);
        }
    }

    fn host_and_ports<'a>(&mut self, slurm: &UserFile, value: &dyn Fn(&str) -> Option<&'a str>) {
        let Check { plan, inventory, findings } = self;
        let host = value("SlurmctldHost")
            .or_else(|| value("ControlMachine"))
            .map(|host| host.split('(').next().unwrap_or(host));
        let own = inventory.hostname.as_str();
        if let Some(host) = host.filter(|host| !["localhost", own, own.split('.').next().unwrap_or(own)].contains(host))
        {
            let cause = "slurmctld ends at once on a host that is not named there";
            let repair = format!("write SlurmctldHost={own}, or start the container with --hostname {host}");
            let what = format!("SlurmctldHost={host}, and this host is {own}");
            findings.push(finding(Severity::Error, slurm, what, cause, repair));
        }
        // The defaults are Slurm's (slurm.conf(5)).
        for (key, default, name) in
            [("SlurmctldPort", "6817", "controller_port"), ("SlurmdPort", "6818", "daemon_port")]
        {
            let (own, port) = (plan.port(key), value(key).unwrap_or(default));
            if port != own {
                let cause = "slurminit waits for the daemon at the port of its own configuration";
                let repair = format!("set {name} = {port} in [slurm] of slurminit.toml");
                let what = format!("{key}={port}, and slurminit.toml says {own}");
                findings.push(finding(Severity::Error, slurm, what, cause, repair));
            }
        }
    }

    /// What is wrong with so many GPUs, which the lines of the nodes claim.
    fn gpus(&self, claimed: u64, slurm: &UserFile, gres: Option<&UserFile>) -> Option<Finding> {
        let Check { plan, inventory, .. } = self;
        let own_gres = gres.map(|gres| parse::gres_lines(&gres.text));
        let offered = match &own_gres {
            Some(own) if own.gpus.is_empty() => inventory.usable_gpus().count(),
            Some(own) => own.count(),
            None => plan.nodes.gres.lines.len(),
        } as u64;
        // The user's gres.conf decides, whatever hardware there is.
        let fitting = own_gres.filter(|own| !own.gpus.is_empty()).map_or(plan.node_gres(), |own| own.node_gres());
        if claimed < offered {
            let what = format!("Gres= has {claimed} GPUs, and {offered} could be offered");
            let cause = "jobs cannot ask for the others";
            return Some(finding(Severity::Warning, slurm, what, cause, format!("write Gres={fitting}")));
        }
        let cause = "a node with fewer GPUs than it claims is taken out of service (gres/gpu count reported lower than configured)";
        let what = format!("Gres= claims {claimed} GPUs, and {offered} can be offered");
        let more_lines = match gres.filter(|_| inventory.usable_gpus().count() as u64 >= claimed) {
            Some(gres) => format!(", or add lines for the other GPUs to {}", gres.path.display()),
            None => String::new(),
        };
        let repair = match fitting.as_str() {
            "" => "remove Gres= from the line of the node".to_owned(),
            fitting => format!("write Gres={fitting}{more_lines}"),
        };
        (claimed > offered).then(|| finding(Severity::Error, slurm, what, cause, repair))
    }

    /// With `overrides`, slurmctld trusts the line, whatever slurmd finds (`SlurmdParameters=config_overrides`).
    fn cpus_and_memory(&mut self, slurm: &UserFile, node: &parse::Line, overrides: bool) {
        let Check { plan, inventory, findings } = self;
        let name = node.get("NodeName").unwrap_or_default();
        let usable = inventory.memory.usable_mib();
        if let Some(memory) = node.number("RealMemory").filter(|memory| *memory > usable) {
            let (severity, cause) = if memory > inventory.memory.total_mib && !overrides {
                (Severity::Error, "a node with less memory than it claims is taken out of service (Low RealMemory)")
            } else if memory > inventory.memory.total_mib {
                (
                    Severity::Warning,
                    "with config_overrides Slurm gives away memory that is not there, until the kernel kills processes",
                )
            } else {
                (
                    Severity::Warning,
                    "the container's limit is lower: the kernel kills processes before Slurm stops giving memory away",
                )
            };
            let what = format!("{name} claims RealMemory={memory}, and there are {usable} MiB");
            let repair = format!("write RealMemory={}", plan.nodes.node.memory_mib.unwrap_or(usable));
            findings.push(Finding { kind: Kind::RealMemory, ..finding(severity, slurm, what, cause, repair) });
        }
        let machine_cpus = inventory.cpu.sockets.iter().flatten().map(|core| core.len() as u64).sum::<u64>();
        if let Some(cpus) = node.number("CPUs").filter(|cpus| machine_cpus > 0 && *cpus > machine_cpus) {
            let (severity, cause) = if overrides {
                (
                    Severity::Info,
                    "with config_overrides Slurm uses the node all the same, and more tasks than CPUs run at once",
                )
            } else {
                (Severity::Error, "a node with fewer CPUs than it claims is taken out of service")
            };
            let what = format!("{name} claims CPUs={cpus}, and there are {machine_cpus}");
            let repair = match overrides {
                true => "nothing, if that is meant".to_owned(),
                false => {
                    format!("write CPUs={}, or SlurmdParameters=config_overrides if it is meant", plan.nodes.node.cpus)
                }
            };
            findings.push(finding(severity, slurm, what, cause, repair));
        }
    }

    /// Checks a generated cgroup.conf beside a user's slurm.conf that needs cgroups.
    fn cgroup(&mut self, slurm: &UserFile) {
        let Check { plan, findings, .. } = self;
        let lines = parse::lines(&slurm.text);
        let wants =
            |key: &str| lines.iter().rev().find_map(|line| line.get(key)).filter(|value| value.contains("cgroup"));
        let Some(value) = wants("ProctrackType").or_else(|| wants("TaskPlugin")).or_else(|| wants("JobAcctGatherType"))
        else {
            // Slurm's own default is proctrack/cgroup.
            if lines.iter().all(|line| line.get("ProctrackType").is_none()) && !plan.cgroup.is_used() {
                let repair = format!("add the line ProctrackType={}", plan.cgroup.proctrack);
                let what = "ProctrackType is not set, and Slurm's default is proctrack/cgroup";
                findings.push(finding(Severity::Error, slurm, what, &plan.cgroup.why, repair));
            }
            return;
        };
        if !plan.cgroup.is_used() {
            let repair = format!("write ProctrackType={} and TaskPlugin={}", plan.cgroup.proctrack, plan.cgroup.task);
            let what = format!("{value} cannot work here");
            findings.push(finding(Severity::Error, slurm, what, &plan.cgroup.why, repair));
        }
    }
}
