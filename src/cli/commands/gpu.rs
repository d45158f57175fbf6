//! `slurminit gpu`: releases a GPU for work on the host, and takes it back.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::output::print_line;
use anyhow::Context as _;
use nix::sys::signal::Signal;

use super::Configuration;
use control::StatusWatcher;
use faults::fault::{FaultKind, Repair};
use faults::report::{GpuReport, Release, Report};
use faults::sample::Identity;
use model::exit_code;
use sys::open_files::{self, SearchTarget};
use sys::proc::Handle;
use watch::agent::files;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: GpuVerb,
    #[command(flatten)]
    configuration: Configuration,
}

#[derive(Clone, Copy, Debug, clap::Subcommand)]
enum GpuVerb {
    /// Keep the GPU from jobs, wait until none has it, and close it, so that the host can reset it
    Release(GpuArgs),
    /// Check the GPU, and give it to jobs again
    Return(GpuArgs),
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct GpuArgs {
    /// The number, as in `slurminit status`
    gpu: u32,
}

/// The maximum interval of reads of the report.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of the agent's check, which the driver's own timeout limits.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let config = args.configuration.load()?;
    let run = &config.paths.run;
    match args.verb {
        GpuVerb::Release(GpuArgs { gpu }) => release(run, gpu),
        GpuVerb::Return(GpuArgs { gpu }) => give_back(run, gpu),
    }
}

fn release(run: &Path, index: u32) -> anyhow::Result<u8> {
    let (report, gpu) = find(run, index)?;
    let mut released = files::released(run);
    let identity = gpu.identity.clone();
    if !released.iter().any(|entry| entry.key() == identity.key()) {
        released.push(identity);
    }
    write_released(run, &report, &released)?;
    let mut printed = None;
    let (_, gpu) = wait(run, index, None, |report, gpu| {
        if gpu.release == Some(Release::Done) {
            return true;
        }
        let node = report.node.clone().unwrap_or_else(|| "waiting for the agent".to_owned());
        if printed.as_ref() != Some(&node) {
            let _ = print_line(&node);
        }
        printed = Some(node);
        false
    })?;
    print_line(format_args!(
        "GPU {index} is released: no job has it\nnext: {}\nthen: `slurminit gpu return {index}`",
        next_step(&gpu)
    ))?;
    let needs_closed_gpu = gpu.identity.vendor.traits().repair.needs_closed_gpu;
    if let Some(file) = gpu.identity.file.as_ref().filter(|_| needs_closed_gpu) {
        // Only root can read the open files of other users.
        let holders =
            open_files::find(open_files::container_processes(), &SearchTarget::Files(BTreeSet::from([file.clone()])));
        for holder in holders.proven {
            print_line(format_args!("warning: process {} ({}) still has {file} open", holder.pid, holder.name))?;
        }
    }
    Ok(exit_code::SUCCESS)
}

/// The repair of a released GPU. The driver may require another one than a reset.
fn next_step(gpu: &GpuReport) -> String {
    let action = gpu.faults.iter().find(|fault| matches!(fault.kind, FaultKind::RecoveryAction(_)));
    match action.map(|fault| fault.kind.describe().1) {
        Some(repair) if repair != Repair::Reset => repair.text(&gpu.identity),
        _ => {
            let other_work = gpu.identity.vendor.traits().repair.other_work;
            format!("on the host, `{}`{other_work}", gpu.identity.reset_command())
        }
    }
}

fn give_back(run: &Path, index: u32) -> anyhow::Result<u8> {
    let (report, gpu) = find(run, index)?;
    let mut released = files::released(run);
    let key = gpu.identity.key();
    let former_count = released.len();
    released.retain(|entry| entry.key() != key);
    anyhow::ensure!(released.len() < former_count, "GPU {index} is not released");
    write_released(run, &report, &released)?;
    let (report, gpu) = wait(run, index, Some(CHECK_TIMEOUT), |_, gpu| gpu.release.is_none())?;
    if !gpu.faults.is_empty() {
        let faults: Vec<&str> = gpu.faults.iter().map(|fault| fault.what.as_str()).collect();
        anyhow::bail!("GPU {index} still has a fault, and jobs do not get it: {}", faults.join("; "));
    }
    match report.node.filter(|_| gpu.is_out) {
        Some(node) => print_line(format_args!("GPU {index} responds. {node}"))?,
        None => print_line(format_args!("GPU {index} responds; jobs can get it"))?,
    }
    Ok(exit_code::SUCCESS)
}

fn find(run: &Path, index: u32) -> anyhow::Result<(Report, GpuReport)> {
    let report = files::report(run).context("slurminit agent does not run; see `slurminit status`")?;
    let gpu = report.gpus.iter().find(|gpu| gpu.identity.index == index).cloned();
    let indices = || report.gpus.iter().map(|gpu| gpu.identity.index.to_string()).collect::<Vec<_>>().join(", ");
    let gpu = gpu.with_context(|| format!("no GPU {index} here; GPUs: {}", indices()))?;
    Ok((report, gpu))
}

/// Replaces the list, and wakes the agent.
fn write_released(run: &Path, report: &Report, released: &[Identity]) -> anyhow::Result<()> {
    files::write_released(run, released).with_context(|| run.display().to_string())?;
    let agent = Handle::of(report.process.pid, report.process.start_ticks);
    agent.context("slurminit agent has ended")?.send(Signal::SIGUSR1);
    Ok(())
}

/// Waits until `is_complete` accepts a report of the agent.
fn wait(
    run: &Path,
    index: u32,
    limit: Option<Duration>,
    mut is_complete: impl FnMut(&Report, &GpuReport) -> bool,
) -> anyhow::Result<(Report, GpuReport)> {
    let watcher = StatusWatcher::of(run);
    let start = Instant::now();
    loop {
        let (report, gpu) = find(run, index)?;
        if is_complete(&report, &gpu) {
            return Ok((report, gpu));
        }
        let is_timed_out = limit.is_some_and(|limit| start.elapsed() >= limit);
        anyhow::ensure!(!is_timed_out, "the agent did not check GPU {index} in time; see `slurminit logs agent`");
        watcher.wait(MAX_POLL_INTERVAL);
    }
}
