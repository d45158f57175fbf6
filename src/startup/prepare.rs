//! Everything that may hang or fail before the daemons start, at a start and at a reload. It runs in a child of
//! PID 1.

mod ask_slurm;
mod budget;
mod closed_partitions;
mod daemon_directories;
pub mod environments;
mod explain;
mod held_gpus;
mod in_use;
mod jobs_on_node;
mod joining;
mod key;
mod oom_group;
mod own_host_name;
mod reload;
mod remote_hosts;
mod saved_release;

pub use explain::explain;
pub use reload::{dry_run, reload, reopen, restore};

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use crate::oom_score;
use budget::Budget;
use config::{Config, ConfigError, DaemonName, JobHook, OnHookFailure, Role, StartOnlyTables};
use doctor::RootOnly;
use doctor::facts::StartFacts;
use install::exposure;
use install::load_config;
use install::planned::{Planned, cluster_name, plan_files, spool_directories, state_directory, with_slurm_user};
use install::{AccountError, InstallError, MungeKey};
use model::exit_code;
use model::inventory::{Finding, Gpu, Identity, Inventory, Kind, Obstacle};
use model::message;
use model::prepared::{OfferedGpu, PrepareEvent, Prepared};
use plan::Text;
use plan::render;
use plan::target::Target;
use plan::{DevicePath, FileName, Refusal};
use probe::job_map;
use sys::lock;
use sys::report;
use watch::agent;

/// The inputs of a start or reload.
#[derive(Debug)]
pub struct Sources<'a> {
    /// The operator's file, if the command line names one.
    pub config: Option<&'a Path>,
    /// The directory below which everything is read and written.
    pub root: &'a Path,
    /// The file of an inventory that replaces detection.
    pub inventory: Option<&'a Path>,
    /// Checksums of PID 1's settings that take effect only at a start.
    pub held: Option<&'a StartOnlyTables>,
    /// At a reload: the node's current name.
    pub node: Option<&'a str>,
    /// The time until PID 1 kills this process.
    pub time_limit: Option<Duration>,
}

/// Reports progress to PID 1.
pub type ReportProgress<'a> = &'a dyn Fn(&PrepareEvent) -> anyhow::Result<()>;

/// Prepares a start. The caller must still sync the key to disk.
pub fn start(sources: &Sources<'_>, report_progress: ReportProgress<'_>) -> Result<(Prepared, MungeKey), Refusal> {
    let (mut config, host_accounts) = load_with_accounts(sources)?;
    let budget = Budget::of(sources, &mut config);
    exposure::check(&config, sources.root)?;
    plan::require_controller(&config)?;
    let (what, cause) = ("slurminit already runs this cluster", "two instances would overwrite each other's files");
    if let Some(pid) = lock::holder_other_than_parent(sources.root, &config.paths.run) {
        let what = format!("{what} (pid {pid})");
        return Err(Refusal::new(exit_code::PREPARE, what, cause, "to apply new files, run `slurminit reload`"));
    }
    // The report of an earlier agent is outdated.
    let _ = agent::files::forget(&config.paths.run);
    let _ = oom_score::clear_record(&config.paths.run);
    // slurmctld opens all partitions at its start.
    let _ = install::forget_closed_partitions(&config.paths, sources.root);
    let joining = joining::check(&config, sources.root)?;
    let accounts = accounts(&config, sources)?;
    let owners = with_slurm_user(&config, sources.config, sources.root)?;
    let unusable = install::make_directories(&owners, sources.root)?;
    let key = match &joining {
        Some(joining) => joining.install(&config, sources.root)?,
        None => key::install(&config, sources.root, &budget)?,
    };
    let host = own_host_name::install(&config, sources.root);
    // munged starts while the driver is queried.
    report_or_fail(report_progress, &PrepareEvent::MungeKeyReady)?;

    let inventory = detected(&config, sources.root, sources.inventory)?;
    report_or_fail(report_progress, &PrepareEvent::Detected)?;
    plan::can_account(&config, &inventory)?;
    plan::can_authenticate(&config, &inventory)?;
    let mut planned = plan_files(&config, sources.config, &inventory, sources.root)?;
    check_cluster_name(&config, sources.root, &planned.files)?;
    saved_release::check(&config, sources.root, &planned.files, &inventory)?;
    let kept = in_use::keep_at_start(&config, sources.root, &mut planned)?;
    let directory_findings = daemon_directories::make(&owners, sources, &planned, &inventory.hostname)?;
    install::record_copies(&config.paths, sources.root, &planned.customized)?;
    make_simulated_gpus(&config, sources.root)?;
    let changed = install::install_files(&config.paths, sources.root, &planned.files)?;
    let accounting = install::install_accounting(&config, sources.root)?;
    let jwt_key = install::install_jwt_key(&owners, sources.root)?;
    let (sshd, _) = install::install_sshd(&config, sources.root)?;
    if let Err(error) = install::keep_applied(&config.paths, sources.root, &planned.files) {
        report::warn(message!(
            "applied-files-not-kept",
            "cannot record the applied files, so a reload may compare the new files with outdated ones: {error}",
            error
        ));
    }
    let device_files = close_device_files(&planned);
    let job_map = clear_job_map(&config, sources.root, &planned);
    let remote_hosts = remote_hosts::check(&planned.customized.remote_hosts, budget.timeout(remote_hosts::TIMEOUT));
    let oom_group = oom_group::turn_off(sources.root);
    let cheap = cheap_findings(&config, sources.root, &inventory, &planned.files);
    let mut prepared = prepared_result(&config, sources.root, planned, &inventory, changed);
    prepared.slurm_user = slurm_user(&owners);
    if let Some(held) = sources.held {
        // PID 1 sets these variables from the options of its command line, which a dry run does not have.
        let [nodes, role] = ["SLURMINIT_NODES", "SLURMINIT_ROLE"].map(|name| std::env::var(name).unwrap_or_default());
        let kept = format!("{held}\n{}\n{nodes}\n{role}", prepared.node_name);
        if let Err(error) = install::keep_start_only(&config.paths, sources.root, &kept) {
            report::warn(message!(
                "start-settings-not-kept",
                "cannot record the settings of this start, so `slurminit reload --dry-run` may not show changes that need a restart: {error}",
                error
            ));
        }
    }
    if !config.shares_a_cluster() {
        prepared.findings.extend(host_name(sources.root, &prepared.node_name, &inventory));
    }
    prepared.findings.extend(host);
    prepared.findings.extend(remote_hosts);
    prepared.findings.extend(kept);
    prepared.findings.extend(host_accounts);
    prepared.findings.extend(accounts);
    prepared.findings.extend(unusable);
    prepared.findings.extend(directory_findings);
    prepared.findings.extend(accounting);
    prepared.findings.extend(jwt_key);
    prepared.findings.extend(sshd);
    prepared.findings.extend(device_files);
    prepared.findings.extend(job_map);
    prepared.findings.extend(oom_group);
    prepared.findings.extend(cheap);
    prepared.findings.extend(key.findings.iter().cloned());
    prepared.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok((prepared, key))
}

/// The user of slurmctld, as named by the operator's slurm.conf or slurminit.toml.
fn slurm_user(owners: &Config) -> Option<String> {
    owners.daemons.get(&DaemonName::Slurmctld)?.user.clone()
}

/// Fails if the saved jobs belong to a cluster with another name, which makes slurmctld exit.
fn check_cluster_name(config: &Config, root: &Path, files: &[Text]) -> Result<(), Refusal> {
    let state = state_directory(config, root, files);
    let Some(saved) = doctor::look::saved_cluster(&state).ok().flatten().filter(|_| Target::of(config).has_state())
    else {
        return Ok(());
    };
    let name = cluster_name(files);
    // Slurm converts the name to lower case. A name in an included file is not found here.
    if name.is_empty() || name.eq_ignore_ascii_case(&saved) {
        return Ok(());
    }
    let state = state.display();
    let what = format!("the saved jobs in {state} belong to cluster {saved}, but this cluster is {name}");
    let cause = "slurmctld exits with CLUSTER NAME MISMATCH to protect them";
    let fix = format!(
        "set cluster_name = \"{saved}\" (in your own slurm.conf: ClusterName={saved}); to keep the jobs under the name {name}, \
         remove {state}/clustername; to start without them, use a new volume"
    );
    Err(Refusal::new(exit_code::CONFIG, what, cause, fix))
}

/// Lets programs in jobs resolve the node's name; returns a finding if that is impossible.
fn host_name(root: &Path, node_name: &str, inventory: &Inventory) -> Option<Finding> {
    // A user's slurm.conf may name several nodes at once: `gpu[1-4]`.
    let name = plan::HostName::try_from(node_name.to_owned()).ok()?;
    let error = install::install_host_name(root, name.as_str(), inventory.loopback()).err()?;
    Some(Finding::warning(
        Kind::Files,
        error.to_string(),
        "programs in jobs, such as PyTorch with MASTER_ADDR, may fail to resolve the node's name",
        "ignore this warning if no job resolves that name",
    ))
}

fn invalid(error: ConfigError) -> Refusal {
    Refusal::new(exit_code::CONFIG, error, "the configuration is not valid", "correct it")
}

fn load(sources: &Sources<'_>) -> Result<Config, Refusal> {
    load_config::load(sources.config).map_err(invalid)
}

/// The configuration with the host's users, and messages about them.
fn load_with_accounts(sources: &Sources<'_>) -> Result<(Config, Vec<Finding>), Refusal> {
    let mut config = load(sources)?;
    let findings = install::add_host_accounts(&mut config, sources.root)?;
    Ok((config, findings))
}

/// Creates the accounts of `[[user]]` and `[[group]]`, removes those no longer configured, and returns messages about them.
fn accounts(config: &Config, sources: &Sources<'_>) -> Result<Vec<Finding>, Refusal> {
    install::install_accounts(config, sources.root).map_err(|error| no_accounts(error, sources.config))
}

fn no_accounts(error: AccountError, config_file: Option<&Path>) -> Refusal {
    match error {
        AccountError::Refused(fault) => invalid(load_config::locate(config_file, fault)),
        AccountError::Install(error) => error.into(),
    }
}

fn detected(config: &Config, root: &Path, file: Option<&Path>) -> Result<Inventory, Refusal> {
    inventory(config, root, file).map_err(|error| {
        let (cause, fix) = ("the file of --inventory cannot be used", "create it with `slurminit detect --json`");
        Refusal::new(exit_code::PREPARE, format!("{error:#}"), cause, fix)
    })
}

/// Builds the result that is sent to PID 1.
fn prepared_result(
    config: &Config,
    root: &Path,
    planned: Planned,
    inventory: &Inventory,
    changed: Vec<PathBuf>,
) -> Prepared {
    let (node_name, gres) = match config.role {
        Role::Controller | Role::Login => (String::new(), String::new()),
        Role::All | Role::None | Role::Compute => planned.node(),
    };
    let spool_directories = match node_name.is_empty() {
        true => Vec::new(),
        false => spool_directories(&planned, &inventory.hostname),
    };
    let dynamic_node = config.has_dynamic_node().then(|| render::dynamic_node(&planned.plan));
    let state = state_directory(config, root, &planned.files);
    let (saved_jobs, new_state) = (has_saved_jobs(&state), is_empty(&state));
    let without_cgroups = !planned.plan.cgroup.is_used();
    let own_epilog = runs_own_epilog(&planned);
    let has_own_files = !planned.customized.files.is_empty();
    let has_own_command = config.daemons.get(&DaemonName::Slurmd).is_some_and(|slurmd| slurmd.command.is_some());
    let configured_node_name =
        planned.customized.own_node.as_ref().filter(|node| node.is_configured && !has_own_command);
    let configured_node_name = configured_node_name.map(|node| node.name.clone());
    let plan = planned.plan;
    let mut findings = plan.findings;
    findings.extend(inventory.findings.iter().cloned());
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let gpu = |line: &plan::GresLine| {
        let file = line.files.last().map_or("no file", DevicePath::as_str).to_owned();
        OfferedGpu {
            vendor: line.vendor,
            index: line.index,
            line: format!("{file}: {}", line.comment),
            model: line.name.clone(),
            memory_mib: line.memory_mib,
            pci_address: line.pci_address,
            instance: Some(line.runtime_name.clone()).filter(|name| name.starts_with("MIG-")),
            file,
        }
    };
    let gpus = plan.nodes.gres.lines.iter().map(gpu).collect();
    let is_awaited = |gpu: &&Gpu| gpu.access.obstacle() == Some(Obstacle::Starting);
    let awaited = inventory.gpus.iter().filter(is_awaited).map(Identity::from).collect();
    let summary = plan.summary;
    Prepared {
        node_name,
        simulated_nodes: config.simulated().map_or(0, |nodes| nodes.iter().count()),
        spool_directories,
        dynamic_node,
        configured_node_name,
        has_associations: config.has_associations(),
        gres,
        saved_jobs,
        new_state,
        without_cgroups,
        own_epilog,
        has_own_files,
        summary,
        gpus,
        awaited,
        changed,
        findings,
        ..Prepared::default()
    }
}

/// Whether slurm.conf, generated or not, sets only slurminit's own Epilog, and none of its hooks is configured to drain. Such an Epilog never fails.
fn runs_own_epilog(planned: &Planned) -> bool {
    let drains = |hook: &JobHook| hook.on_failure == OnHookFailure::Drain;
    let own = &planned.plan.epilog;
    !own.hooks.iter().any(drains) && is_only_value(planned, "Epilog", &own.path)
}

/// Whether slurm.conf, generated or not, sets this script and no other for the key.
fn is_only_value(planned: &Planned, key: &str, script: &Path) -> bool {
    let expected = format!("{key}={}", script.display());
    let mut set = text_of(planned, FileName::SlurmConf)
        .lines()
        .map(str::trim)
        .filter(|line| line.split_once('=').is_some_and(|(found, _)| found.trim().eq_ignore_ascii_case(key)));
    set.next() == Some(&expected) && set.next().is_none()
}

fn text_of(planned: &Planned, name: FileName) -> &str {
    planned.files.iter().find(|file| file.name == name).map_or("", |file| &file.text)
}

/// Closes the GPUs' device files to users, except to those of running jobs. Later the Prolog opens a file for a job's user, and the
/// Epilog closes it. So nothing is changed unless both are slurminit's own. Returns a warning about the first file that cannot be closed.
fn close_device_files(planned: &Planned) -> Option<Finding> {
    let prolog = planned.plan.prolog.as_ref().filter(|prolog| prolog.gives_gpus)?;
    // The Epilog closes the files before it runs hooks, so a hook that drains the node makes no difference.
    let scripts = [("Prolog", &prolog.path), ("Epilog", &planned.plan.epilog.path)];
    if scripts.iter().any(|(key, path)| !is_only_value(planned, key, path)) {
        return None;
    }
    let files = plan::gpu_files(text_of(planned, FileName::GresConf), &planned.node().0);
    let close = |file: &String| Some((file.clone(), install::close_device_file(Path::new(file)).err()?));
    // All files, even if one of them cannot be closed.
    let failed: Vec<_> = files.iter().filter_map(close).collect();
    let (file, error) = failed.first()?;
    let what = format!("cannot restrict {file} to the user of its job: {error}");
    let (cause, fix) = (
        "root has no capability to change files in /dev, or the file is missing or read-only",
        "start the container with --cap-add CHOWN; make sure that the file exists and is not mounted read-only",
    );
    Some(Finding::warning(Kind::JobsNotHeld, what, cause, fix))
}

fn make_simulated_gpus(config: &Config, root: &Path) -> Result<(), InstallError> {
    let groups = config.simulated().map(|nodes| nodes.groups).unwrap_or_default();
    let count = groups.iter().filter_map(|group| group.each.gpus).max().unwrap_or_default();
    if count == 0 { Ok(()) } else { install::make_simulated_gpus(root, Path::new(plan::SIMULATED_DEVICES), count) }
}

/// Clears the job map: jobs of an earlier start have ended.
fn clear_job_map(config: &Config, root: &Path, planned: &Planned) -> Option<Finding> {
    let dir = config.metrics.job_map.as_deref()?;
    let files = plan::gpu_files(text_of(planned, FileName::GresConf), &planned.node().0);
    let error = job_map::clear(root, dir, &files).err()?;
    let what = "exporters on the host cannot map GPUs to jobs";
    let cause = format!("`[metrics] job_map`: {error}");
    let fix = format!("mount a directory that is owned by root: --volume {0}:{0}", dir.display());
    Some(Finding::warning(Kind::Files, what, cause, fix))
}

/// The warnings and errors of `slurminit doctor`'s cheap checks: the key, the ports, the disk and the like.
fn cheap_findings(config: &Config, root: &Path, inventory: &Inventory, files: &[Text]) -> Vec<Finding> {
    let cheap = doctor::look::cheap_facts(root, config, inventory, &cluster_name(files));
    let environment = doctor::look::environment();
    doctor::startup_findings(&StartFacts {
        inventory: RootOnly::new(inventory),
        environment: &environment,
        cheap: &cheap,
    })
}

/// Whether an earlier slurmctld saved jobs or nodes. slurmctld reads the older file if the newer one is missing,
/// which happens for a moment at each save (Slurm 24.11, `job_mgr.c`).
fn has_saved_jobs(state: &Path) -> bool {
    ["job_state", "job_state.old", "node_state"].iter().any(|name| state.join(name).symlink_metadata().is_ok())
}

/// Whether the directory is missing, or contains no file except slurminit's lock. slurmctld writes its first file (`clustername`) at once.
/// Directories are not counted, because slurminit may have created them.
fn is_empty(state: &Path) -> bool {
    let is_file = |entry: std::io::Result<std::fs::DirEntry>| {
        let kind =
            |entry: std::fs::DirEntry| Ok(entry.file_name() != lock::state::FILE && !entry.file_type()?.is_dir());
        entry.and_then(kind).unwrap_or(true)
    };
    match std::fs::read_dir(state) {
        Ok(entries) => !entries.into_iter().any(is_file),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

fn report_or_fail(report_progress: ReportProgress<'_>, event: &PrepareEvent) -> Result<(), Refusal> {
    report_progress(event).map_err(|error| {
        Refusal::new(exit_code::INTERNAL, error, "PID 1 did not read the events", "report this as a bug")
    })
}

/// The inventory from a file, or from detection.
pub fn inventory(config: &Config, root: &Path, file: Option<&Path>) -> anyhow::Result<Inventory> {
    let Some(path) = file else {
        // Reads the same environment variables as `slurminit detect`.
        let mut options = probe::Options::from_environment(
            root.to_owned(),
            config.supervise.detect_timeout(config.gpu.detect_timeout),
        );
        options.queries_container_name = config.names_node_after_container();
        // The GPUs whose faults the agent reported are left out.
        options.left_out = agent::files::left_out(&config.paths.run);
        let mut inventory = probe::detect(&options);
        agent::files::leave_out(&config.paths.run, &mut inventory);
        return Ok(inventory);
    };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let inventory = serde_json::from_str(&text);
    inventory.with_context(|| format!("{} is not the output of `slurminit detect --json`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_is_new_only_if_directory_is_missing_or_has_no_file() {
        let state = tempfile::tempdir().unwrap();
        assert!(is_empty(state.path()) && is_empty(&state.path().join("missing")));
        std::fs::write(state.path().join("clustername"), "").unwrap();
        assert!(!is_empty(state.path()) && !is_empty(&state.path().join("clustername")), "it cannot be read");
    }

    #[test]
    fn device_files_are_closed_only_if_prolog_and_epilog_are_slurminits() {
        use std::os::unix::fs::PermissionsExt as _;

        let mut inventory: Inventory = serde_json::from_str(include_str!("../../tests/render/inventory.json")).unwrap();
        inventory.device_files = model::inventory::DeviceFiles::Open;
        for (index, gpu) in inventory.gpus.iter_mut().enumerate() {
            gpu.device_file = Some(format!("/dev/slurminit-test{index}").into());
        }
        let finding = |isolate: bool, conf: &str| {
            let root = tempfile::tempdir().unwrap();
            let script = root.path().join("script");
            std::fs::write(&script, "").unwrap();
            std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755)).unwrap();
            let toml = format!("gpu_type = 'nvidia'\n[gpu]\nisolate = {isolate}\n[slurm.conf]\n{conf}");
            let config = Config::parse(&toml, Path::new("slurminit.toml")).unwrap();
            let planned = plan_files(&config, None, &inventory, root.path()).map_err(Refusal::from).unwrap();
            close_device_files(&planned).map(|finding| finding.what)
        };
        let why = "cannot restrict /dev/slurminit-test0 to the user of its job: No such file or directory (os error 2)";
        assert_eq!(finding(true, "").as_deref(), Some(why));
        assert_eq!(finding(false, ""), None);
        for script in ["Prolog", "Epilog"] {
            assert_eq!(finding(true, &format!("{script} = '/script'\n")), None, "{script}");
        }
    }
}
