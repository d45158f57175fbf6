//! `slurminit status`: shows the daemons, the node and the GPUs.

mod faults;
mod table;
mod uses;

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use super::Configuration;
use super::detect::Images;
use control::StatusWatcher;
use control::status;
use install::load_config;
use machine::{STATUS_FILE, Status};
use slurm::nodes::own;
use slurm::nodes::own::NodeStatus;
use table::table;
use watch::{agent, overview};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// Refresh every second and at every change, until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    watch: bool,
}

/// The refresh interval: ages and memory change even if the status does not.
const REDRAW: Duration = Duration::from_secs(1);

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<()> {
    let directory = &load_config::run_directory(configuration.file())?;
    let status = current(directory)?;
    let lost = lost(&status);
    let has_node = status.snapshot.prepared.as_ref().is_some_and(|prepared| !prepared.node_name.is_empty());
    let images = has_node.then(Images::detect);
    if args.json {
        let mut value = json(&status, &own::node_status(&status.snapshot, &lost))?;
        value["gpu_health"] = serde_json::to_value(agent::files::report(directory))?;
        value["images"] = serde_json::to_value(&images)?;
        super::print(&super::json(&value)?)
    } else if args.watch {
        watch(directory, &lost, images.as_ref())
    } else {
        super::print(&text(directory, &status, &lost, images.as_ref()))
    }
}

fn watch(directory: &Path, lost: &[Option<String>], images: Option<&Images>) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    let is_terminal = out.is_terminal();
    let watcher = StatusWatcher::of(directory);
    if is_terminal {
        out.write_all(b"\x1b[2J")?;
    }
    loop {
        let text = text(directory, &current(directory)?, lost, images);
        if is_terminal {
            // Overwrites the old text without flicker: starts at the top, clears the rest of each line, then everything below.
            write!(out, "\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"))?;
        } else {
            writeln!(out, "{text}")?;
        }
        out.flush()?;
        watcher.wait(REDRAW);
    }
}

/// The status of a running slurminit.
///
/// # Errors
/// No slurminit is running, or its status file cannot be read.
pub(super) fn current(directory: &Path) -> anyhow::Result<Status> {
    let status = status::read(directory).with_context(|| {
        format!(
            "cannot read {} (if no cluster is running in this container, start one with `slurminit up`)",
            directory.join(STATUS_FILE).display()
        )
    })?;
    anyhow::ensure!(
        status::is_process_alive(&status),
        "slurminit (PID {}) is not running; its last status is outdated. To start a cluster: slurminit up",
        status.process.pid
    );
    Ok(status)
}

fn lost(status: &Status) -> Vec<Option<String>> {
    status.snapshot.prepared.as_ref().map(|prepared| own::lost_gpus(Path::new("/"), &prepared.gpus)).unwrap_or_default()
}

fn text(directory: &Path, status: &Status, lost: &[Option<String>], images: Option<&Images>) -> String {
    let node = own::node_status(&status.snapshot, lost);
    let files = overview::files(directory);
    let samples = files.report.as_ref().filter(|_| !files.is_stale()).map_or(&[][..], |report| &report.gpus);
    let table = table(status, &node, samples, sys::monotonic_ms(), memory_kib);
    let uses = files.report.as_ref().map(|report| uses::uses(report, files.now, table::age)).unwrap_or_default();
    let faults = agent::files::report(directory).map(|report| faults::faults(&report, agent::unix(), table::age));
    let images = images.map(|images| format!("\ncontainer images for jobs: {}\n", images.name()));
    table + &uses + &images.unwrap_or_default() + &faults.unwrap_or_default()
}

/// The contents of the status file, plus each process's memory, and the current state of the node and its GPUs. `ready` and `why` also consider
/// the state of the node.
fn json(status: &Status, now: &NodeStatus) -> anyhow::Result<serde_json::Value> {
    let mut value = serde_json::to_value(status)?;
    value["gpus"] = serde_json::to_value(&now.gpus)?;
    if let (true, Some(why)) = (status.snapshot.ready, now.closed_reason()) {
        value["ready"] = false.into();
        value["why"] = why.into();
    }
    if let Ok(node) = &now.node {
        value["node"] = serde_json::to_value(&node.report)?;
    }
    value["memory_kib"] = memory_kib(status.process.pid).into();
    for unit in value["units"].as_array_mut().into_iter().flatten() {
        let pid = unit["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        unit["memory_kib"] = pid.and_then(memory_kib).into();
    }
    Ok(value)
}

/// The resident memory of a process: `VmRSS` of proc(5), in KiB.
fn memory_kib(pid: i32) -> Option<u64> {
    let status = sys::proc::status(pid)?;
    sys::proc::parse::field(&status, "VmRSS")?.strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_memory_of_running_process_only() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(memory_kib(own).is_some_and(|kib| kib > 100));
        assert_eq!(memory_kib(-1), None);
    }
}
