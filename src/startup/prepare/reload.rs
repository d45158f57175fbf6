//! Prepares a reload: makes the same decisions as at a start, and compares them with the running configuration. A change that would
//! not work is refused here, before anything is written.

use std::path::Path;

use super::ask_slurm::ask_slurm;
use super::budget::Budget;
use super::closed_partitions::{self, ClosedPartitions};
use super::held_gpus::check_no_job_holds_gpus;
use super::in_use::{Kept, KeptEntry, check_accounts_in_use, keep_at_reload};
use super::jobs_on_node::check_no_job_is_on;
use super::{Sources, accounts, detected, load, load_with_accounts, no_accounts, prepared_result, remote_hosts};
use crate::state_disk;
use config::{Config, Paths, StartOnlyTables};
use control::status;
use install::exposure;
use install::planned::{Planned, plan_files, slurm_conf, state_directory};
use model::exit_code;
use model::inventory::{DeviceFiles, Finding, Inventory, Kind, Severity};
use model::message;
use model::prepared::{Apply, Prepared};
use plan::render;
use plan::target::Target;
use plan::{Change, FileName, Refusal, Text};
use probe::own_name;

/// The effect of a reload.
pub struct ReloadEffect {
    pub change: Change,
    /// A unified diff against the files that the daemons use.
    pub difference: String,
    /// Changed tables that take effect only at the next start.
    pub deferred: Vec<String>,
    /// The partitions and nodes that are kept for their jobs.
    pub kept: Vec<KeptEntry>,
    /// The partitions that the reload removes.
    removed: Vec<String>,
    planned: Planned,
    /// The node's name.
    node: String,
}

/// Prepares a reload. Nothing is installed unless all checks succeed.
pub fn reload(sources: &Sources<'_>) -> Result<Prepared, Refusal> {
    let (mut config, host_accounts) = load_with_accounts(sources)?;
    exposure::check(&config, sources.root)?;
    let deferred = deferred(&config, sources.held)?;
    let budget = Budget::of(sources, &mut config);
    closed_partitions::reopen(&config.paths, sources.root, &budget.slurm_for_cleanup());
    let inventory = detected(&config, sources.root, sources.inventory)?;
    let plan = || plan_effect(&config, sources.config, &inventory, sources.root, sources.node, &budget);
    let effect = plan()?;
    for line in effect.difference.lines() {
        sys::report::info(message!("file-change", "{line}", line));
    }
    check(&config, sources.config, sources.root, &effect, &budget)?;
    // From here to the installation the partitions are closed. They are opened again if the installation fails.
    let closed = ClosedPartitions::close(&config, sources.root, &effect.removed, budget)?;
    // If a job was submitted during the checks, its partition is kept.
    let effect = if effect.removed.is_empty() { effect } else { plan()? };
    let ReloadEffect { planned, change, kept, .. } = effect;
    let before = account_files(sources.root);
    let accounts = accounts(&config, sources)?;
    let (sshd, keys_changed) = install::install_sshd(&config, sources.root)?;
    install::record_copies(&config.paths, sources.root, &planned.customized)?;
    super::make_simulated_gpus(&config, sources.root)?;
    install::install_files(&config.paths, sources.root, &planned.files)?;
    install::keep_applied(&config.paths, sources.root, &planned.files)?;
    closed.keep_closed();
    let device_files = super::close_device_files(&planned);
    let remote_hosts = remote_hosts::check(&planned.customized.remote_hosts, budget.timeout(remote_hosts::TIMEOUT));
    let changed = change.files.iter().map(|name| config.paths.slurm.join(name.as_str())).collect();
    let mut prepared = prepared_result(&config, sources.root, planned, &inventory, changed);
    prepared.findings.extend(host_accounts);
    prepared.findings.extend(accounts);
    prepared.findings.extend(sshd);
    prepared.findings.extend(deferred_isolation(&config, &inventory));
    prepared.findings.extend(device_files);
    prepared.findings.extend(remote_hosts);
    (prepared.apply, prepared.news, prepared.deferred) = (change.apply, change.changes, deferred);
    for finding in kept.iter().map(KeptEntry::finding) {
        prepared.news.push(finding.what.clone());
        prepared.findings.push(finding);
    }
    if account_files(sources.root) != before {
        prepared.news.push("the users and groups".to_owned());
    }
    if keys_changed {
        prepared.news.push("the public keys".to_owned());
    }
    Ok(prepared)
}

/// Reports GPU isolation that only the next start can enable: running jobs may have opened the device files.
fn deferred_isolation(config: &Config, inventory: &Inventory) -> Option<Finding> {
    let is_later = config.isolates_gpus()
        && inventory.device_files == DeviceFiles::Open
        && inventory.usable_gpus().next().is_some();
    is_later.then(|| {
        let cause = "jobs may have opened the device files, so a reload does not change them";
        let fix = "restart the container (docker restart); the GPUs are isolated at the start";
        Finding::warning(Kind::JobsNotHeld, "every user may open every GPU until the next start", cause, fix)
    })
}

/// The effect that a reload would have. Changes nothing, and refuses what a reload would refuse.
pub fn dry_run(config: &Config, config_file: Option<&Path>) -> Result<ReloadEffect, Refusal> {
    let root = Path::new("/");
    let kept = match install::read_start_only(&config.paths, root)? {
        Some(kept) => kept,
        // The configured run directory may have changed since the start.
        None => install::read_start_only(&Paths::default(), root)?.unwrap_or_default(),
    };
    let mut kept = kept.lines();
    let (held, node) = (kept.next().and_then(|held| held.parse().ok()), kept.next());
    // The options of the start's command line.
    let nodes = kept.next().and_then(|nodes| nodes.parse().ok());
    let role = kept.next().and_then(|role| model::text_type::word(role).ok());
    let mut config = match nodes {
        Some(nodes) => config.clone().with_simulated_nodes(nodes).map_err(super::invalid)?,
        None => config.clone(),
    };
    config.role = role.unwrap_or(config.role);
    let deferred = deferred(&config, held.as_ref())?;
    let inventory = detected(&config, root, None)?;
    install::add_host_accounts(&mut config, root)?;
    let config = &config;
    exposure::check(config, root)?;
    let budget = Budget::begin(config.supervise.prepare_timeout());
    let effect = ReloadEffect { deferred, ..plan_effect(config, config_file, &inventory, root, node, &budget)? };
    check(config, config_file, root, &effect, &budget)?;
    install::check_accounts(config, root).map_err(|error| no_accounts(error, config_file))?;
    Ok(effect)
}

/// Checks the planned change: its files with Slurm, the disk for slurmctld's state, and the jobs that it would harm.
fn check(
    config: &Config,
    config_file: Option<&Path>,
    root: &Path,
    effect: &ReloadEffect,
    budget: &Budget,
) -> Result<(), Refusal> {
    if effect.change.apply != Apply::Nothing {
        ask_slurm(config, config_file, root, &effect.planned, budget)?;
        if Target::of(config).has_state() {
            check_state_disk(&state_directory(config, root, &effect.planned.files))?;
        }
    }
    if effect.change.gres {
        check_no_job_holds_gpus(&budget.slurm())?;
    }
    if effect.change.node {
        check_no_job_is_on(&effect.node, &budget.slurm())?;
    }
    check_accounts_in_use(config, root, &budget.slurm())
}

/// Checks that slurmctld can save its jobs: the slurmctld that starts next reads only the saved jobs.
fn check_state_disk(state: &Path) -> Result<(), Refusal> {
    state_disk::try_to_save(state).map_err(|error| {
        let (cause, fix) = (
            "this change restarts or reconfigures slurmctld, which would then lose jobs",
            "correct this problem, then reload again",
        );
        Refusal::new(exit_code::PREPARE, error, cause, fix)
    })
}

/// The current account files, to detect changes.
fn account_files(root: &Path) -> [Option<Vec<u8>>; 2] {
    ["/etc/passwd", "/etc/group"].map(|path| sys::trusted_path::read(&sys::under(root, Path::new(path))).ok())
}

/// Opens the partitions that a killed reload has closed.
pub fn reopen(sources: &Sources<'_>) {
    let config = load(sources).unwrap_or_default();
    closed_partitions::reopen(&config.paths, sources.root, &Budget::begin(config.supervise.prepare_timeout()).slurm());
}

/// Restores the files that the daemons used before the last reload.
pub fn restore(sources: &Sources<'_>, files: &[FileName]) -> Result<(), Refusal> {
    // If the operator's file is broken by now, the default paths are the best guess.
    let paths = load(sources).map_or_else(|_| Paths::default(), |config| config.paths);
    Ok(install::restore_applied(&paths, sources.root, files)?)
}

/// The changed tables that take effect only at the next start. Fails if a reload is impossible because of one of them.
fn deferred(config: &Config, held: Option<&StartOnlyTables>) -> Result<Vec<String>, Refusal> {
    let changed = held.map(|held| held.changed(&StartOnlyTables::of(config))).unwrap_or_default();
    let needed: Vec<&str> =
        changed.iter().map(String::as_str).filter(|name| StartOnlyTables::prevents_reload(name)).collect();
    if !needed.is_empty() {
        return Err(restart_required(&format!("{} in slurminit.toml changed", needed.join(" and "))));
    }
    Ok(changed)
}

fn restart_required(what: &str) -> Refusal {
    let cause = "slurminit and the daemons keep the previous values until the container restarts";
    Refusal::new(exit_code::CONFIG, what, cause, "restart the container (docker restart), or revert the change")
}

/// Plans and renders the new files, and compares them with the files that the daemons use.
fn plan_effect(
    config: &Config,
    config_file: Option<&Path>,
    inventory: &Inventory,
    root: &Path,
    node: Option<&str>,
    budget: &Budget,
) -> Result<ReloadEffect, Refusal> {
    let current_name = node.filter(|_| own_name::is_container_id(&inventory.hostname)).map(str::to_owned);
    let container_name = inventory.container_name.clone().or(current_name);
    let inventory = &Inventory { container_name, ..inventory.clone() };
    let mut config = config.clone();
    // Running jobs may open their GPUs' device files again, so files that are open to all users are not closed before the next start.
    config.gpu.isolate = Some(config.isolates_gpus() && inventory.device_files == DeviceFiles::Closed);
    let config = &config;
    let mut planned = plan_files(config, config_file, inventory, root)?;
    // At a start these errors are only logged, because no job can be lost. A reload is refused because of them.
    if let Some(fault) = planned.customized.findings.iter().find(|finding| finding.severity == Severity::Error) {
        return Err(Refusal { exit_code: exit_code::CONFIG, finding: fault.clone() });
    }
    let (name, _) = planned.node();
    if let Some(running) = node.filter(|running| !running.is_empty() && *running != name) {
        return Err(restart_required(&format!("the node's name changed from {running} to {name}")));
    }
    let old = install::read_applied(&config.paths, root)?;
    let Kept { entries: kept, removed } = keep_at_reload(config, root, slurm_conf(&old), &mut planned, budget)?;
    let mut change = plan::change(&old, &planned.files);
    if config.has_dynamic_node() {
        let now = render::dynamic_node(&planned.plan);
        if let Some(registered) = registered_node(config, root) {
            if registers_again(&registered, &now, config.autoscale.has(&name))? {
                change.renew_node(&registered, &now);
            }
        }
    }
    if !change.start_only.is_empty() {
        return Err(restart_required(&format!("{} in slurm.conf changed", change.start_only.join(" and "))));
    }
    let difference = difference(&old, &planned.files);
    Ok(ReloadEffect { difference, deferred: Vec::new(), kept, removed, planned, change, node: name })
}

/// Whether slurmd registers again, because the hardware in its node line has changed. Fails if the changed line takes effect only at a start
/// of the container: if the node is autoscaled, or if only its features have changed.
fn registers_again(registered: &str, now: &str, is_autoscaled: bool) -> Result<bool, Refusal> {
    let is_changed = registered != now;
    if is_changed && (is_autoscaled || without_features(registered).eq(without_features(now))) {
        return Err(restart_required(&format!(
            "this node has changed since its registration: from {registered} to {now}"
        )));
    }
    Ok(is_changed)
}

/// The node line with which slurmd registered.
fn registered_node(config: &Config, root: &Path) -> Option<String> {
    let status = status::read(&sys::under(root, &config.paths.run)).ok()?;
    status.snapshot.prepared?.dynamic_node
}

fn without_features(node: &str) -> impl Iterator<Item = &str> {
    node.split_whitespace().filter(|word| !word.starts_with("Feature="))
}

fn difference(old: &[Text], new: &[Text]) -> String {
    let mut all = String::new();
    for Text { name, text } in new {
        let before = old.iter().find(|file| file.name == *name).map_or("", |file| file.text.as_str());
        let (from, to) = (format!("{name} (running)"), format!("{name} (new)"));
        let lines = similar::TextDiff::from_lines(before, text);
        all.push_str(&lines.unified_diff().context_radius(0).header(&from, &to).to_string());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::Gpu;

    #[test]
    fn reload_that_would_isolate_open_gpus_waits_for_next_start() {
        let gpu = Gpu { device_file: Some("/dev/nvidia0".into()), ..Gpu::default() };
        let found = |isolate, device_files, gpus: &[Gpu]| {
            let mut config = Config::default();
            config.gpu.isolate = Some(isolate);
            let inventory = Inventory { device_files, gpus: gpus.to_vec(), ..Inventory::default() };
            deferred_isolation(&config, &inventory).map(|finding| finding.what)
        };
        let later = "every user may open every GPU until the next start";
        assert_eq!(found(true, DeviceFiles::Open, std::slice::from_ref(&gpu)).as_deref(), Some(later));
        for (isolate, device_files, gpus) in [
            (false, DeviceFiles::Open, std::slice::from_ref(&gpu)),
            (true, DeviceFiles::Closed, std::slice::from_ref(&gpu)),
            (true, DeviceFiles::Open, &[]),
        ] {
            assert_eq!(found(isolate, device_files, gpus), None, "{isolate} {device_files:?}");
        }
    }

    #[test]
    fn features_do_not_count_as_hardware_of_node() {
        let hardware = |node| without_features(node).collect::<Vec<_>>();
        assert_eq!(hardware("CPUs=4 Feature=a,b RealMemory=8000"), ["CPUs=4", "RealMemory=8000"]);
    }

    #[test]
    fn changed_hardware_registers_again_unless_node_is_autoscaled() {
        let before = "CPUs=4 Feature=a";
        for (now, is_autoscaled, expected) in [
            (before, false, Some(false)),
            (before, true, Some(false)),
            ("CPUs=8 Feature=a", false, Some(true)),
            ("CPUs=8 Feature=b", false, Some(true)),
            ("CPUs=8 Feature=a", true, None),
            ("CPUs=4 Feature=b", false, None),
        ] {
            assert_eq!(registers_again(before, now, is_autoscaled).ok(), expected, "{now} {is_autoscaled}");
        }
    }

    #[test]
    fn reads_registered_node_from_status_of_pid_1() {
        let root = tempfile::tempdir().unwrap();
        let config = Config::default();
        assert_eq!(registered_node(&config, root.path()), None);
        let prepared = Prepared { dynamic_node: Some("CPUs=4".to_owned()), ..Prepared::default() };
        let snapshot = machine::Snapshot { prepared: Some(prepared), ..machine::Snapshot::default() };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let status = machine::Status { version, process: sys::proc::own_id(), started_ms: 0, snapshot };
        let run = sys::under(root.path(), &config.paths.run);
        std::fs::create_dir_all(&run).unwrap();
        std::fs::write(run.join("status.json"), serde_json::to_string(&status).unwrap()).unwrap();
        assert_eq!(registered_node(&config, root.path()).as_deref(), Some("CPUs=4"));
    }
}
