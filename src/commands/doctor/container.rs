//! Looks at the container.

use std::io::{Read as _, Write as _};
use std::path::Path;

use super::{Args, ask, within};
use crate::commands::health::is_alive;
use crate::commands::load_config;
use crate::commands::prepare::{PlanError, Planned, plan_files};
use crate::config::Config;
use crate::doctor::facts::{CheapFacts, ContainerFacts, Credential, Looked, SlurmFacts};
use crate::doctor::look::{self, Ask, Places};
use crate::install;
use crate::inventory::{Finding, Inventory, Vendor};
use crate::supervise::machine::Snapshot;
use crate::supervise::sockets;
use crate::supervise::status;

/// No credential is longer.
const LONGEST_CREDENTIAL: u64 = 1 << 20;

pub(super) fn facts(args: &Args, inventory: &Inventory) -> ContainerFacts {
    let ask = ask(args);
    let (config, configuration) = match load_config::load(args.config.as_deref()) {
        Ok(config) => (config, Ok(())),
        Err(error) => (Config::default(), Err(error.to_string())),
    };
    let planned = planned(args, &config, inventory);
    let status = snapshot(&config, &args.root);
    let node = planned.node.clone();
    let slurm = match &status {
        Ok(_) => look::slurm(&ask, &node),
        Err(why) => unasked(why),
    };
    let munge = if status.is_ok() { look::own_credential(&ask) } else { Err("no cluster runs here".to_owned()) };
    ContainerFacts {
        configuration,
        cheap: cheap(args, &config, inventory, planned.cluster),
        findings: planned.findings,
        stale_files: planned.stale_files,
        isolation: planned.isolation,
        foreign_credential: args.credential.as_deref().map(|file| foreign_credential(&ask, file)),
        has_address: look::address(&ask, &inventory.hostname),
        status,
        slurm,
        munge,
    }
}

/// What a start would do now.
struct WouldDo {
    findings: Vec<Finding>,
    stale_files: Looked<Vec<String>>,
    isolation: Option<String>,
    cluster: String,
    node: String,
}

fn planned(args: &Args, config: &Config, inventory: &Inventory) -> WouldDo {
    let look = {
        let (config, inventory, root) = (config.clone(), inventory.clone(), args.root.clone());
        move || would_do(&config, &inventory, &root)
    };
    let nothing = || WouldDo {
        findings: inventory.findings.clone(),
        stale_files: Err("the files of Slurm could not be read in time: their file system hangs".to_owned()),
        isolation: None,
        cluster: String::new(),
        node: config.node.name.to_string(),
    };
    within(args.timeout, look).unwrap_or_else(nothing)
}

fn would_do(config: &Config, inventory: &Inventory, root: &Path) -> WouldDo {
    let mut findings = inventory.findings.clone();
    let mut would_do = WouldDo {
        findings: Vec::new(),
        stale_files: Ok(Vec::new()),
        isolation: None,
        cluster: String::new(),
        node: config.node.name.to_string(),
    };
    match plan_files(config, inventory, root) {
        Ok(Planned { plan, files, customized }) => {
            findings.extend(plan.findings);
            if plan.cgroup.proctrack != "proctrack/cgroup" {
                would_do.isolation = Some(plan.cgroup.why);
            }
            would_do.node =
                customized.node(&inventory.hostname).map_or_else(|| plan.node.name.to_string(), |(name, _)| name);
            let differs = |name: &str, text: &str| {
                let path = install::under(root, &config.paths.slurm.join(name));
                std::fs::read_to_string(path).is_ok_and(|installed| installed != text)
            };
            let stale = files.iter().filter(|file| differs(file.name.as_str(), &file.text));
            would_do.stale_files = Ok(stale.map(|file| file.name.as_str().to_owned()).collect());
            would_do.cluster = crate::commands::prepare::cluster_name(&files);
        }
        Err(PlanError::Refused(refusal)) => {
            findings.push(refusal.finding);
            would_do.stale_files = Err("a start would be refused now".to_owned());
        }
        Err(PlanError::Unreadable(error)) => would_do.stale_files = Err(error.to_string()),
    }
    would_do.findings = findings;
    would_do
}

fn snapshot(config: &Config, root: &Path) -> Looked<Snapshot> {
    let directory = install::under(root, &config.paths.run);
    let status =
        status::read(&directory).map_err(|_| "no cluster runs here: PID 1 is no slurminit, or not yet".to_owned())?;
    if is_alive(status.pid) { Ok(status.snapshot) } else { Err(format!("slurminit (pid {}) is gone", status.pid)) }
}

fn unasked(why: &str) -> SlurmFacts {
    let nothing = || why.to_owned();
    SlurmFacts {
        controller: Err(nothing()),
        node: Err(nothing()),
        gpu_jobs: Err(nothing()),
        waiting_jobs: Err(nothing()),
    }
}

fn cheap(args: &Args, config: &Config, inventory: &Inventory, cluster: String) -> CheapFacts {
    let state = config.paths.state.display().to_string();
    let look = {
        let (root, config, inventory, cluster) =
            (args.root.clone(), config.clone(), inventory.clone(), cluster.clone());
        move || look_cheaply(&root, &config, &inventory, &cluster)
    };
    within(args.timeout, look).unwrap_or_else(|| CheapFacts {
        key: None,
        cluster,
        saved_cluster: None,
        state_disk: Err(format!("{state} did not answer in time: its file system hangs")),
        state,
        ports: Vec::new(),
        cuda: crate::doctor::facts::CudaFacts::default(),
        memory_kills: Err("it was not looked at".to_owned()),
        has_kfd: false,
    })
}

/// What the start looks at too.
pub(in crate::commands) fn look_cheaply(
    root: &Path,
    config: &Config,
    inventory: &Inventory,
    cluster: &str,
) -> CheapFacts {
    let places = Places {
        root,
        key: &config.paths.munge_key,
        state: &config.paths.state,
        cluster,
        has_nvidia: inventory.drivers.iter().any(|driver| driver.vendor == Vendor::Nvidia),
        ports: [("slurmctld", config.slurm.controller_port), ("slurmd", config.slurm.daemon_port)],
    };
    // The ports of this machine say nothing about another root.
    let listens =
        |port| if root == Path::new("/") { sockets::listeners(port).map(|found| !found.is_empty()) } else { None };
    look::cheap(&places, &listens)
}

/// Standard input is copied into a file, for unmunge to be given a deadline.
fn foreign_credential(ask: Ask<'_>, file: &Path) -> Looked<Credential> {
    if file != Path::new("-") {
        return look::credential(ask, file);
    }
    let copy = || {
        let mut text = Vec::new();
        std::io::stdin().take(LONGEST_CREDENTIAL).read_to_end(&mut text)?;
        let path = std::env::temp_dir().join(format!("slurminit-credential-{}", std::process::id()));
        // Not through a link that somebody else laid there.
        std::fs::OpenOptions::new().write(true).create_new(true).open(&path)?.write_all(&text)?;
        Ok::<_, std::io::Error>(path)
    };
    let path = copy().map_err(|error| format!("the credential cannot be read: {error}"))?;
    let credential = look::credential(ask, &path);
    let _ = std::fs::remove_file(path);
    credential
}
