//! What will go wrong with the user's files on this machine.

use std::collections::BTreeSet;
use std::path::Path;

use crate::inventory::{Finding, Inventory, Severity};
use crate::plan::gpus::auto_detect_fault;
use crate::plan::{AutoDetect, FileName, Plan, login};

use super::{Customized, UserFile, parse};

/// Everything that is foreseeable.
pub(super) fn check(
    plan: &Plan,
    customized: &Customized,
    inventory: &Inventory,
    exists: &dyn Fn(&Path) -> bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let gres = customized.get(FileName::GresConf);
    if let Some(gres) = gres {
        check_gres(gres, plan, inventory, exists, &mut findings);
    }
    if let Some(slurm) = customized.get(FileName::SlurmConf) {
        check_slurm(slurm, gres, plan, inventory, &mut findings);
        if customized.get(FileName::CgroupConf).is_none() {
            check_cgroup(slurm, plan, &mut findings);
        }
    }
    findings
}

fn finding(
    severity: Severity,
    file: &UserFile,
    what: impl std::fmt::Display,
    cause: &str,
    repair: impl Into<String>,
) -> Finding {
    Finding {
        severity,
        what: format!("{}: {what}", file.path.display()),
        cause: cause.to_owned(),
        repair: repair.into(),
    }
}

fn check_gres(
    gres: &UserFile,
    plan: &Plan,
    inventory: &Inventory,
    exists: &dyn Fn(&Path) -> bool,
    findings: &mut Vec<Finding>,
) {
    let own = parse::gres_lines(&gres.text);
    let mut seen = BTreeSet::new();
    for file in own.gpus.iter().flat_map(|(_, files)| files) {
        if !seen.insert(file) {
            let cause = "slurmd dies of a device file that is named twice";
            findings.push(finding(
                Severity::Error,
                gres,
                format_args!("File={file} is there twice"),
                cause,
                "remove one of the lines",
            ));
        } else if !exists(Path::new(file)) {
            let cause = "slurmd waits about 19 seconds for the device file, then ends";
            let repair = "remove the line, or pass the device to the container; `slurminit detect` shows what is there";
            findings.push(finding(Severity::Error, gres, format_args!("File={file} does not exist"), cause, repair));
        }
    }
    if own.gpus.iter().any(|(_, files)| files.is_empty()) && own.auto_detect.is_none() {
        let cause = "Slurm ignores a GPU without a device file, and takes the node out of service for it";
        findings.push(finding(Severity::Error, gres, "a GPU has no File=", cause, "add File=/dev/..."));
    }
    let (plugin, choice) = match own.auto_detect.as_deref().map(str::to_ascii_lowercase).as_deref() {
        Some("nvml") => ("gpu_nvml", AutoDetect::Nvml),
        Some("rsmi") => ("gpu_rsmi", AutoDetect::Rsmi),
        _ => return,
    };
    if let Some(fault) = auto_detect_fault(choice, inventory, &plan.node) {
        let what = format!("AutoDetect={} will not do well here", choice.as_str());
        findings.push(finding(fault.severity, gres, what, &fault.cause, fault.repair));
    }
    if !inventory.slurm.has_plugin(plugin) {
        let cause = "slurmd then finds no GPU, and the node is taken out of service";
        let repair =
            "install the plugin, or name the devices with File= lines, or remove the file to have it generated";
        findings.push(finding(
            Severity::Error,
            gres,
            format_args!("AutoDetect needs Slurm's plugin {plugin}, which is not installed"),
            cause,
            repair,
        ));
    }
}

fn check_slurm(
    slurm: &UserFile,
    gres: Option<&UserFile>,
    plan: &Plan,
    inventory: &Inventory,
    findings: &mut Vec<Finding>,
) {
    let lines = parse::lines(&slurm.text);
    let value = |key: &str| lines.iter().rev().find_map(|line| line.get(key));
    let nodes =
        || lines.iter().filter(|line| line.get("NodeName").is_some_and(|name| !name.eq_ignore_ascii_case("DEFAULT")));

    let host =
        value("SlurmctldHost").or_else(|| value("ControlMachine")).map(|host| host.split('(').next().unwrap_or(host));
    let own = inventory.hostname.as_str();
    if let Some(host) = host.filter(|host| !["localhost", own, own.split('.').next().unwrap_or(own)].contains(host)) {
        let cause = "slurmctld ends at once on a host that is not named there";
        let repair = format!("write SlurmctldHost={own}, or start the container with --hostname {host}");
        findings.push(finding(
            Severity::Error,
            slurm,
            format_args!("SlurmctldHost={host}, and this host is {own}"),
            cause,
            repair,
        ));
    }

    for (key, own) in [("SlurmctldPort", plan.port("SlurmctldPort")), ("SlurmdPort", plan.port("SlurmdPort"))] {
        // 6817 and 6818 are Slurm's own defaults (slurm.conf(5)).
        let default = if key == "SlurmctldPort" { "6817" } else { "6818" };
        let port = value(key).unwrap_or(default);
        if port != own {
            let cause = "slurminit waits for the daemon at the port of its own configuration";
            let name = if key == "SlurmctldPort" { "controller_port" } else { "daemon_port" };
            let repair = format!("set {name} = {port} in [slurm] of slurminit.toml");
            findings.push(finding(
                Severity::Error,
                slurm,
                format_args!("{key}={port}, and slurminit.toml says {own}"),
                cause,
                repair,
            ));
        }
    }

    if login::is_fatal_with(value(login::KEY), inventory) {
        let repair =
            format!("add the line {}=0: slurmd then reads env_cache/USER, which is written at each start", login::KEY);
        let what = format!("{} is not 0, and {}", login::KEY, login::WHAT);
        findings.push(finding(Severity::Warning, slurm, what, login::CAUSE, repair));
    }

    let claimed: u64 = nodes().filter_map(|line| line.get("Gres")).map(parse::claimed_gpus).sum();
    let types = value("GresTypes").unwrap_or_default();
    if claimed > 0 && !types.split(',').any(|name| name.trim().eq_ignore_ascii_case("gpu")) {
        let cause = "Slurm does not know the word gpu in Gres= then";
        findings.push(finding(
            Severity::Error,
            slurm,
            "GresTypes lacks gpu",
            cause,
            "add the line GresTypes=gpu before NodeName",
        ));
    }
    let own_gres = gres.map(|gres| parse::gres_lines(&gres.text));
    let offered = match &own_gres {
        Some(own) if own.gpus.is_empty() => inventory.usable_gpus().count(),
        Some(own) => own.count(),
        None => plan.gres.lines.len(),
    } as u64;
    // A gres.conf of one's own decides, whatever else the machine has.
    let fitting = own_gres.filter(|own| !own.gpus.is_empty()).map_or(plan.node.gres.clone(), |own| own.node_gres());
    if claimed > offered {
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
        findings.push(finding(Severity::Error, slurm, what, cause, repair));
    } else if claimed < offered {
        let what = format!("Gres= has {claimed} GPUs, and {offered} could be offered");
        let cause = "jobs cannot ask for the others";
        findings.push(finding(Severity::Warning, slurm, what, cause, format!("write Gres={fitting}")));
    }

    let machine_cpus: usize = inventory.cpu.sockets.iter().flatten().map(|core| core.len()).sum();
    for node in nodes() {
        let name = node.get("NodeName").unwrap_or_default();
        if let Some(memory) = node.number("RealMemory").filter(|memory| *memory > inventory.memory.usable_mib()) {
            let usable = inventory.memory.usable_mib();
            let beyond_machine = memory > inventory.memory.total_mib;
            let cause = if beyond_machine {
                "a node with less memory than it claims is taken out of service (Low RealMemory)"
            } else {
                "the container's limit is lower: the kernel kills processes before Slurm stops giving memory away"
            };
            let severity = if beyond_machine { Severity::Error } else { Severity::Warning };
            let what = format!("{name} claims RealMemory={memory}, and there are {usable} MiB");
            findings.push(finding(
                severity,
                slurm,
                what,
                cause,
                format!("write RealMemory={}", plan.node.memory_mib.unwrap_or(usable)),
            ));
        }
        if let Some(cpus) = node.number("CPUs").filter(|cpus| machine_cpus > 0 && *cpus > machine_cpus as u64) {
            let cause = "a node with fewer CPUs than it claims is taken out of service";
            let what = format!("{name} claims CPUs={cpus}, and there are {machine_cpus}");
            findings.push(finding(Severity::Error, slurm, what, cause, format!("write CPUs={}", plan.node.cpus)));
        }
    }
}

/// A generated cgroup.conf beside a slurm.conf of the user that wants cgroups.
fn check_cgroup(slurm: &UserFile, plan: &Plan, findings: &mut Vec<Finding>) {
    let lines = parse::lines(&slurm.text);
    let wants = |key: &str| lines.iter().rev().find_map(|line| line.get(key)).filter(|value| value.contains("cgroup"));
    let Some(value) = wants("ProctrackType").or_else(|| wants("TaskPlugin")).or_else(|| wants("JobAcctGatherType"))
    else {
        // Slurm's own default is proctrack/cgroup.
        if lines.iter().all(|line| line.get("ProctrackType").is_none()) && plan.cgroup.proctrack != "proctrack/cgroup" {
            let repair = format!("add the line ProctrackType={}", plan.cgroup.proctrack);
            let what = "ProctrackType is not set, and Slurm's default is proctrack/cgroup";
            findings.push(finding(Severity::Error, slurm, what, &plan.cgroup.why, repair));
        }
        return;
    };
    if plan.cgroup.proctrack != "proctrack/cgroup" {
        let repair = format!("write ProctrackType={} and TaskPlugin={}", plan.cgroup.proctrack, plan.cgroup.task);
        findings.push(finding(
            Severity::Error,
            slurm,
            format_args!("{value} cannot work here"),
            &plan.cgroup.why,
            repair,
        ));
    }
}
