//! Foreseeable problems with the user's files on this machine.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;

use crate::gpus::{auto_detect_fault, plugin};
use crate::{FileName, Plan, cgroups, login};
use config::{Config, Role};
use model::inventory::gres::{gpus, types};
use model::inventory::{Finding, Inventory, Kind, Severity, Vendor};

use super::{Customized, FileState, Names, UserFile, own_node, parse, programs};

/// The context of the checks.
pub(super) struct Context<'a> {
    pub(super) config: &'a Config,
    pub(super) inventory: &'a Inventory,
    pub(super) names: &'a Names,
    /// Returns what exists at a path.
    pub(super) state: &'a dyn Fn(&Path) -> FileState,
}

impl Context<'_> {
    pub(super) fn exists(&self, path: &Path) -> bool {
        (self.state)(path) != FileState::Missing
    }

    /// Whether slurmd runs here, so that lines about this node apply.
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
    // If this node is missing from the user's slurm.conf, its name is unknown.
    let is_generated = customized.get(FileName::SlurmConf).is_none();
    let name = node.map(|node| node.name.as_str()).or(is_generated.then_some(planned.as_str()));
    let is_own = |hosts: &str| own_node::is_for_node(hosts, name, context.names);
    let lines_of = |gres: &UserFile| parse::gres_lines(&gres.read.text, &is_own);
    let gres = customized.get(FileName::GresConf).map(|file| (file, lines_of(file))).filter(|_| context.has_node());
    if let Some((file, own)) = &gres {
        check.gres(file, own, &|path| context.exists(path));
    }
    let Some(slurm) = customized.get(FileName::SlurmConf) else { return check.findings };
    let lines = slurm.lines();
    let value = |key: &str| lines.iter().rev().find_map(|line| line.get(key));
    check.ports(slurm, &value);
    let pairs: Vec<(String, String)> = lines.iter().flat_map(|line| line.pairs().to_vec()).collect();
    for program in programs::missing(&pairs, context).filter(|program| !program.ends_jobs()) {
        let (what, cause, fix) = program.texts();
        check.findings.push(finding(Severity::Warning, slurm, what, &cause, fix));
    }
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

/// Returns the last value of a key.
type Value<'a> = dyn Fn(&str) -> Option<&'a str> + 'a;

fn finding(severity: Severity, file: &UserFile, what: impl Display, cause: &str, fix: impl Into<String>) -> Finding {
    Finding::new(Kind::OwnFiles, severity, format!("{}: {what}", file.path.display()), cause, fix)
}

/// A finding about the node's line.
fn node_finding(
    severity: Severity,
    file: &UserFile,
    node: &parse::Line,
    what: impl Display,
    cause: &str,
    fix: impl Into<String>,
) -> Finding {
    let (path, line) = file.place_read(node.number_in_file());
    let name = node.get("NodeName").unwrap_or_default();
    Finding::new(Kind::OwnFiles, severity, format!("{}:{line}: {name} has {what}", path.display()), cause, fix)
}

/// The boards, sockets, cores and threads that a node's line sets, as text, and the number of CPUs that results from them.
fn layout(node: &parse::Line) -> Option<(String, u64)> {
    const KEYS: [&[&str]; 4] = [&["Boards"], &["Sockets", "SocketsPerBoard"], &["CoresPerSocket"], &["ThreadsPerCore"]];
    let set =
        |keys: &&[&str]| keys.iter().find_map(|key| Some((format!("{key}={}", node.get(key)?), node.number(key)?)));
    let found: Vec<(String, u64)> = KEYS.iter().filter_map(set).collect();
    // `Sockets` is the number for all boards together.
    let counts =
        found.iter().filter(|(words, _)| !words.starts_with("Boards") || node.get("SocketsPerBoard").is_some());
    let count = counts.map(|(_, count)| *count).fold(1_u64, u64::saturating_mul);
    let words: Vec<String> = found.into_iter().map(|(words, _)| words).collect();
    (!words.is_empty()).then(|| (words.join(" "), count))
}

impl Check<'_> {
    fn gres(&mut self, gres: &UserFile, own: &parse::GresLines, exists: &dyn Fn(&Path) -> bool) {
        let Check { plan, inventory, findings } = self;
        let mut seen = BTreeSet::new();
        for file in own.gpus.iter().flat_map(|line| &line.files) {
            if !seen.insert(file) {
                let (what, cause) = (format!("duplicate File={file}"), "slurmd exits at a duplicate device file");
                findings.push(finding(Severity::Error, gres, what, cause, "remove one of the lines"));
            } else if !exists(Path::new(file)) {
                let cause = "slurmd waits about 19 s for the device file, then exits";
                let fix = "remove the line, or pass the device to the container; `slurminit detect` lists the devices";
                findings.push(finding(Severity::Error, gres, format_args!("File={file} does not exist"), cause, fix));
            }
        }
        if own.gpus.iter().any(|line| line.files.is_empty()) && own.auto_detect.is_none() {
            let cause = "Slurm ignores a GPU without a device file, and drains the node";
            findings.push(finding(Severity::Error, gres, "a GPU has no File=", cause, "add File=/dev/..."));
        }
        let cores = inventory.cpu.sockets.iter().flatten().count();
        for (line, list) in &own.cores {
            let last = list.split(',').filter_map(|range| range.rsplit('-').next()?.trim().parse::<usize>().ok()).max();
            let Some(last) = last.filter(|last| cores > 0 && *last >= cores) else { continue };
            let (path, line) = gres.place_read(*line);
            let what =
                format!("{}:{line}: Cores={list}, but the last core of this machine is {}", path.display(), cores - 1);
            let cause = format!("slurmctld refuses core {last}, and marks the node invalid (state inval)");
            let fix = "remove Cores=, or write core numbers of this machine, which begin with 0";
            findings.push(Finding::new(Kind::Gres, Severity::Error, what, cause, fix));
        }
        let own = own.auto_detect.as_deref().unwrap_or_default().to_ascii_lowercase();
        let Some(vendor) = Vendor::ALL.into_iter().find(|vendor| vendor.traits().slurm.auto_detect == own) else {
            return;
        };
        let plugin = plugin(vendor);
        if let Some(fault) = auto_detect_fault(vendor, inventory, &plan.nodes.node) {
            let what = format!("AutoDetect={own} will cause errors here");
            findings.push(finding(fault.severity, gres, what, &fault.cause, fault.fix));
        }
        if !inventory.slurm.has_plugin(&plugin) {
            let cause = "without the plugin slurmd finds no GPU, and Slurm drains the node";
            let fix = "install the plugin, replace AutoDetect with File= lines for the devices, or remove the file, so that slurminit generates it";
            let what = format!("AutoDetect needs Slurm's plugin {plugin}, which is not installed");
            findings.push(finding(Severity::Error, gres, what, cause, fix));
        }
    }

    fn login(&mut self, slurm: &UserFile, value: &Value<'_>) {
        if login::is_fatal_with(value(login::KEY), self.inventory) {
            let fix = format!(
                "add the line {}=0, so that slurmd reads env_cache/USER, which slurminit writes at each start",
                login::KEY
            );
            let what = format!("{} is not 0: {}", login::KEY, login::WHAT);
            self.findings.push(finding(Severity::Warning, slurm, what, login::CAUSE, fix));
        }
    }

    /// Checks that GresTypes contains gpu if a node has GPUs, because slurmctld exits if a name in Gres is missing from it.
    fn gres_types(&mut self, slurm: &UserFile, nodes: &[parse::Line], value: &Value<'_>) {
        let types = value("GresTypes").unwrap_or_default();
        let has_gpus = nodes.iter().filter_map(|node| node.get("Gres")).any(|gres| gpus(gres) > 0);
        if has_gpus && !types.split(',').any(|name| name.trim().eq_ignore_ascii_case("gpu")) {
            let cause = "Slurm rejects a name in Gres= that is missing from GresTypes";
            let fix = match types.is_empty() {
                true => "add the line GresTypes=gpu before NodeName",
                false => "add gpu to GresTypes",
            };
            let missing = finding(Severity::Error, slurm, "gpu is missing from GresTypes", cause, fix);
            self.findings.push(Finding { kind: Kind::Gres, ..missing });
        }
    }

    /// Checks the line of this node.
    fn node(&mut self, slurm: &UserFile, gres: Option<Gres<'_>>, node: &parse::Line, value: &Value<'_>) {
        let claimed = node.get("Gres").map_or(0, gpus);
        let miscount = match self.gpus(claimed, slurm, gres, node) {
            Some(finding) if finding.severity == Severity::Error => Some(finding),
            fewer => self.gpu_types(slurm, gres, node).or(fewer),
        };
        self.findings.extend(miscount.map(|finding| Finding { kind: Kind::Gres, ..finding }));
        self.hardware(slurm, node, value);
    }

    /// Checks SlurmctldHost, or its older names. The first host is the primary controller, and the others are its backups.
    fn host(&mut self, slurm: &UserFile, lines: &[parse::Line], names: &Names) {
        let of = |key: &'static str| lines.iter().filter_map(move |line| line.get(key));
        let hosts = of("SlurmctldHost").chain(of("ControlMachine")).chain(of("BackupController"));
        let hosts: Vec<&str> = hosts.map(|host| host.split('(').next().unwrap_or(host)).collect();
        let Some(first) = hosts.first().filter(|_| !hosts.iter().any(|host| names.has(host))) else { return };
        let own = &self.inventory.hostname;
        let cause = "slurmctld exits on a host that is not listed";
        let fix = format!("write SlurmctldHost={own}, or start the container with --hostname {first}");
        let what = format!("SlurmctldHost={}, but this host is {own}", hosts.join(" and "));
        self.findings.push(finding(Severity::Error, slurm, what, cause, fix));
    }

    fn ports(&mut self, slurm: &UserFile, value: &Value<'_>) {
        let Check { plan, findings, .. } = self;
        // The defaults are Slurm's (slurm.conf(5)).
        for (key, default, name) in
            [("SlurmctldPort", "6817", "controller_port"), ("SlurmdPort", "6818", "daemon_port")]
        {
            let (own, port) = (plan.port(key), value(key).unwrap_or(default));
            if port != own {
                let cause = "slurminit checks the daemon at the port in [slurm] of slurminit.toml (default: 6817 for slurmctld, 6818 for slurmd)";
                let fix = format!("set {name} = {port} in [slurm] of slurminit.toml");
                let what = format!("{key}={port}, but slurminit uses {own}");
                findings.push(finding(Severity::Error, slurm, what, cause, fix));
            }
        }
    }

    /// The problem with the GPU count in the node's line, if any.
    fn gpus(&self, claimed: u64, slurm: &UserFile, gres: Option<Gres<'_>>, node: &parse::Line) -> Option<Finding> {
        let Check { plan, inventory, .. } = self;
        let own_gres = gres.map(|(_, own)| own);
        let offered = match own_gres {
            Some(own) if own.gpus.is_empty() => inventory.usable_gpus().count(),
            Some(own) => own.count(),
            None => plan.nodes.gres.lines.len(),
        } as u64;
        // The user's gres.conf determines the GPUs, regardless of the hardware.
        let fitting = own_gres.filter(|own| !own.gpus.is_empty()).map_or(plan.node_gres(), |own| own.node_gres());
        if claimed < offered {
            let what = format!("a GPU count of {claimed} in Gres=, but the available count is {offered}");
            let cause = "jobs can request only the GPUs in Gres=";
            let fix = format!("write Gres={fitting}");
            return Some(node_finding(Severity::Warning, slurm, node, what, cause, fix));
        }
        let cause =
            "Slurm drains a node with fewer GPUs than configured (gres/gpu count reported lower than configured)";
        let what = format!("a GPU count of {claimed} in Gres=, but the available count is only {offered}");
        let more_lines = match gres.filter(|_| inventory.usable_gpus().count() as u64 >= claimed) {
            Some((gres, _)) => format!(", or add lines for the other GPUs to {}", gres.path.display()),
            None => String::new(),
        };
        let fix = match fitting.as_str() {
            "" => "remove Gres= from the node's line".to_owned(),
            fitting => format!("write Gres={fitting}{more_lines}"),
        };
        (claimed > offered).then(|| node_finding(Severity::Error, slurm, node, what, cause, fix))
    }

    /// The problem with the GPU types in the node's line, if any. If slurm.conf and gres.conf both name types, slurmctld compares the number of
    /// GPUs of each type (24.11, `_valid_gres_types`).
    fn gpu_types(&self, slurm: &UserFile, gres: Option<Gres<'_>>, node: &parse::Line) -> Option<Finding> {
        let claimed = types(node.get("Gres")?);
        let (offered, source) = match gres {
            Some((_, own)) if own.auto_detect.is_some() => return None,
            Some((file, own)) => (own.node_gres(), file.path.display().to_string()),
            None => (self.plan.node_gres(), "the generated gres.conf".to_owned()),
        };
        let offered = types(&offered);
        let is_untyped = |types: &[&str]| types.is_empty() || types.contains(&"gpu");
        if is_untyped(&claimed) || is_untyped(&offered) {
            return None;
        }
        let count = |types: &[&str], name: &str| types.iter().filter(|other| **other == name).count();
        // slurmd ignores types that are missing from slurm.conf.
        let name = claimed.iter().find(|name| count(&offered, name) < count(&claimed, name))?;
        let what = format!(
            "a count of {} for GPU type {name} in Gres=, but {} in {source}",
            count(&claimed, name),
            count(&offered, name)
        );
        let cause = "slurmctld marks the node invalid (state inval, count too low)";
        let fitting = gres.map_or_else(|| self.plan.node_gres(), |(_, own)| own.node_gres());
        Some(node_finding(Severity::Error, slurm, node, what, cause, format!("write Gres={fitting}")))
    }

    /// Compares the node's line with the detected hardware, as Slurm does when the node registers (24.11, `validate_node_specs`).
    fn hardware(&mut self, slurm: &UserFile, node: &parse::Line, value: &Value<'_>) {
        // Slurm matches the word in any case, and also without its last letter.
        let overrides =
            value("SlurmdParameters").is_some_and(|value| value.to_ascii_lowercase().contains("config_override"));
        self.memory(slurm, node, overrides);
        self.cpus(slurm, node, overrides);
        let scratch = self.inventory.scratch_mib.filter(|_| value("TmpFS").is_none_or(|path| path == "/tmp"));
        let tmp_disk = node.number("TmpDisk").zip(scratch).filter(|(disk, found)| disk > found && !overrides);
        self.findings.extend(tmp_disk.map(|(disk, found)| {
            let what = format!("TmpDisk={disk}, but /tmp has {found} MiB");
            let cause = "Slurm drains a node with less disk space than configured (Low TmpDisk)";
            node_finding(Severity::Error, slurm, node, what, cause, format!("write TmpDisk={found}, or remove it"))
        }));
    }

    fn memory(&mut self, slurm: &UserFile, node: &parse::Line, overrides: bool) {
        let Check { plan, inventory, findings } = self;
        let usable = inventory.memory.usable_mib();
        let fitting = plan.nodes.node.memory_mib.unwrap_or(usable);
        let fix = format!("write RealMemory={fitting}");
        if node.get("RealMemory").is_none() {
            let is_set = |line: &parse::Line, key: &str| line.get(key).is_some_and(|value| value != "0");
            let has_default = |line: &parse::Line| is_set(line, "DefMemPerCPU") || is_set(line, "DefMemPerNode");
            let (severity, jobs) = match slurm.lines().iter().any(has_default) {
                true => (Severity::Error, "each job, because of DefMemPerCPU or DefMemPerNode"),
                false => (Severity::Warning, "jobs that request memory (--mem)"),
            };
            let cause = format!("Slurm assumes 1 MiB and rejects {jobs}");
            let finding = node_finding(severity, slurm, node, "no RealMemory", &cause, fix);
            findings.push(Finding { kind: Kind::RealMemory, ..finding });
            return;
        }
        let Some(memory) = node.number("RealMemory").filter(|memory| *memory > usable) else { return };
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
        let what = format!("RealMemory={memory}, but only {usable} MiB are available");
        let finding = node_finding(severity, slurm, node, what, cause, fix);
        findings.push(Finding { kind: Kind::RealMemory, ..finding });
    }

    fn cpus(&mut self, slurm: &UserFile, node: &parse::Line, overrides: bool) {
        let Check { plan, inventory, findings } = self;
        let machine = inventory.cpu.sockets.iter().flatten().map(|core| core.len() as u64).sum::<u64>();
        let fix = match overrides {
            true => "no action if intended".to_owned(),
            false => {
                format!("write CPUs={} instead, or SlurmdParameters=config_overrides if intended", plan.nodes.node.cpus)
            }
        };
        let (severity, cause) = if overrides {
            (Severity::Info, "with config_overrides Slurm runs more tasks than CPUs at once")
        } else {
            (
                Severity::Error,
                "Slurm drains a node with fewer CPUs than configured (Low CPUs, Low socket*core*thread count)",
            )
        };
        let cpus = ["CPUs", "Procs"].into_iter().find_map(|key| Some((key.to_owned(), node.number(key)?)));
        let configured = [cpus, layout(node)].into_iter().flatten().find(|(_, count)| machine > 0 && *count > machine);
        findings.extend(configured.map(|(words, count)| {
            let words =
                if words.contains('=') { format!("{words} ({count} CPUs)") } else { format!("{words}={count}") };
            let what = format!("{words}, but this machine has only {machine}");
            node_finding(severity, slurm, node, what, cause, fix)
        }));
    }

    /// Checks for settings that need cgroups although Slurm cannot use cgroups here.
    fn cgroup(&mut self, slurm: &UserFile, value: &Value<'_>) {
        let Some(obstacle) = cgroups::obstacle(self.inventory) else { return };
        let plan = &self.plan.cgroup;
        let tracking = match value("ProctrackType") {
            Some(tracker) if tracker.contains("cgroup") => {
                let fix = format!("write ProctrackType={} and TaskPlugin={}", plan.proctrack, plan.task);
                Some((format!("{tracker} cannot work here"), fix))
            }
            Some(_) => None,
            // Slurm's own default is proctrack/cgroup.
            None => {
                let what = "ProctrackType is not set (Slurm's default is proctrack/cgroup)";
                Some((what.to_owned(), format!("add the line ProctrackType={}", plan.proctrack)))
            }
        };
        let gathering = value("JobAcctGatherType").filter(|gatherer| gatherer.contains("cgroup")).map(|gatherer| {
            (format!("{gatherer} cannot work here"), "write JobAcctGatherType=jobacct_gather/linux".to_owned())
        });
        let found = tracking.into_iter().chain(gathering);
        self.findings.extend(found.map(|(what, fix)| finding(Severity::Error, slurm, what, &obstacle.why, fix)));
    }
}

/// The user's gres.conf, and its lines for this node.
type Gres<'a> = (&'a UserFile, &'a parse::GresLines);
