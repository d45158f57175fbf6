//! `slurminit gpu`: releases a GPU for work on the host, and returns it to jobs.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::output::print_line;
use anyhow::Context as _;
use nix::sys::signal::Signal;

use super::Configuration;
use control::StatusWatcher;
use faults::fault::{FaultKind, Fix};
use faults::report::{GpuReport, Release, Report};
use faults::sample::Identity;
use model::inventory::PciAddress;
use sys::open_files::{self, SearchTarget};
use sys::proc::Handle;
use watch::agent::files;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: GpuVerb,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum GpuVerb {
    /// Take a GPU out of service: wait for its jobs, then release its device file, so that the host can reset it
    Release(GpuArgs),
    /// Check the GPU, and give it to jobs again
    Return(GpuArgs),
}

#[derive(Clone, Debug, clap::Args)]
struct GpuArgs {
    /// The GPU: its number in `slurminit status`, its device file, PCI address or UUID
    gpu: String,
}

/// The maximum interval between two reads of the report.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait for the agent's check of the GPU. The check itself ends after `timeout` in [agent].
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn run(args: Args, configuration: &Configuration) -> anyhow::Result<()> {
    let config = configuration.load()?;
    let run = &config.paths.run;
    match args.verb {
        GpuVerb::Release(GpuArgs { gpu }) => release(run, &gpu),
        GpuVerb::Return(GpuArgs { gpu }) => give_back(run, &gpu),
    }
}

fn release(run: &Path, name: &str) -> anyhow::Result<()> {
    let report = read_report(run)?;
    let identity = find(&report, name)?.identity.clone();
    let mut released = files::released(run);
    if !released.iter().any(|entry| entry.key() == identity.key()) {
        released.push(identity.clone());
    }
    print_line(format_args!("releasing {}", describe(&identity)))?;
    write_released(run, &report, &released)?;
    let mut printed = None;
    let (_, gpu) = wait(run, &identity, None, |report, gpu| {
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
    let file = gpu.identity.file.clone().unwrap_or_else(|| name.to_owned());
    print_line(format_args!(
        "{} is released: no job uses it\nnext: {}\nthen: `slurminit gpu return {file}`",
        describe(&gpu.identity),
        next_step(&gpu)
    ))?;
    let needs_closed_gpu = gpu.identity.vendor.traits().fix.needs_closed_gpu;
    if let Some(file) = gpu.identity.file.as_ref().filter(|_| needs_closed_gpu) {
        // Only root can read the open files of other users.
        let holders =
            open_files::find(open_files::container_processes(), &SearchTarget::Files(BTreeSet::from([file.clone()])));
        for holder in holders.proven {
            print_line(format_args!("warning: process {} ({}) still has {file} open", holder.pid, holder.name))?;
        }
    }
    Ok(())
}

/// Formats a GPU for messages: `GPU 3 (/dev/nvidia3), 0000:13:00.0, GPU-fa4e...`.
fn describe(identity: &Identity) -> String {
    let details = [identity.pci_address.map(|address| address.to_string()), identity.uuid.clone()];
    details.into_iter().flatten().fold(identity.to_string(), |text, detail| format!("{text}, {detail}"))
}

/// What an administrator does next with a released GPU: a reset, unless the driver requires another action.
fn next_step(gpu: &GpuReport) -> String {
    let action = gpu.faults.iter().find(|fault| matches!(fault.kind, FaultKind::RecoveryAction(_)));
    match action.map(|fault| fault.kind.describe().1) {
        Some(fix) if fix != Fix::Reset => fix.text(&gpu.identity),
        _ => {
            let other_work = gpu.identity.vendor.traits().fix.other_work;
            format!("on the host, run `{}`{other_work}", gpu.identity.reset_command())
        }
    }
}

fn give_back(run: &Path, name: &str) -> anyhow::Result<()> {
    let report = read_report(run)?;
    let identity = find(&report, name)?.identity.clone();
    let mut released = files::released(run);
    let former_count = released.len();
    released.retain(|entry| entry.key() != identity.key());
    anyhow::ensure!(released.len() < former_count, "{identity} is not released");
    write_released(run, &report, &released)?;
    let (report, gpu) = wait(run, &identity, Some(CHECK_TIMEOUT), |_, gpu| gpu.release.is_none())?;
    let faults: Vec<&str> = gpu.faults.iter().map(|fault| fault.what.as_str()).collect();
    let faults = faults.join("; ");
    anyhow::ensure!(
        faults.is_empty() || !gpu.is_out,
        "{identity} still has a fault and is not available to jobs: {faults}"
    );
    match report.node.filter(|_| gpu.is_out) {
        Some(node) => print_line(format_args!("{identity} responds. {node}")),
        None if faults.is_empty() => print_line(format_args!("{identity} responds and is available to jobs again")),
        None => print_line(format_args!("{identity} is available to jobs again, but has a fault: {faults}")),
    }
}

fn read_report(run: &Path) -> anyhow::Result<Report> {
    files::report(run).context("slurminit agent is not running; see `slurminit status`")
}

/// The GPU with this number, device file, PCI address or UUID.
fn find<'a>(report: &'a Report, name: &str) -> anyhow::Result<&'a GpuReport> {
    // lspci leaves out the domain.
    let address = name.parse().or_else(|_| format!("0000:{name}").parse::<PciAddress>()).ok();
    let index = name.parse().ok();
    let is_named = |gpu: &&GpuReport| {
        let Identity { uuid, file, pci_address, .. } = &gpu.identity;
        let is_text = |known: &Option<String>| known.as_ref().is_some_and(|known| known.eq_ignore_ascii_case(name));
        index == Some(gpu.identity.index)
            || is_text(uuid)
            || is_text(file)
            || address.is_some_and(|address| *pci_address == Some(address))
    };
    let list = |gpus: &[&GpuReport]| gpus.iter().map(|gpu| describe(&gpu.identity)).collect::<Vec<_>>().join("; ");
    match report.gpus.iter().filter(is_named).collect::<Vec<_>>()[..] {
        [gpu] => Ok(gpu),
        [] => anyhow::bail!("no GPU {name} in this container; GPUs: {}", list(&report.gpus.iter().collect::<Vec<_>>())),
        ref several => anyhow::bail!("{name} matches several GPUs; use a device file: {}", list(several)),
    }
}

/// Replaces the list of released GPUs, and wakes the agent.
fn write_released(run: &Path, report: &Report, released: &[Identity]) -> anyhow::Result<()> {
    files::write_released(run, released)
        .with_context(|| format!("cannot write the list of released GPUs to {}", run.display()))?;
    let agent = Handle::of(report.process.pid, report.process.start_ticks);
    agent.context("slurminit agent is not running; see `slurminit status`")?.send(Signal::SIGUSR1);
    Ok(())
}

/// Waits until `is_complete` accepts a report of the agent.
fn wait(
    run: &Path,
    identity: &Identity,
    limit: Option<Duration>,
    mut is_complete: impl FnMut(&Report, &GpuReport) -> bool,
) -> anyhow::Result<(Report, GpuReport)> {
    let watcher = StatusWatcher::of(run);
    let start = Instant::now();
    loop {
        let report = read_report(run)?;
        let gpu = report.gpus.iter().find(|gpu| gpu.identity.key() == identity.key()).cloned();
        let gpu = gpu.with_context(|| format!("{identity} is no longer in this container"))?;
        if is_complete(&report, &gpu) {
            return Ok((report, gpu));
        }
        let is_timed_out = limit.is_some_and(|limit| start.elapsed() >= limit);
        anyhow::ensure!(!is_timed_out, "the agent did not check {identity} in time; see `slurminit logs agent`");
        watcher.wait(MAX_POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use faults::fault::Policy;
    use faults::report::OpenFault;
    use model::inventory::Vendor;

    fn report(gpus: &[(Vendor, u32, &str, &str, Option<&str>)]) -> Report {
        let gpu = |(vendor, index, file, address, uuid): &(Vendor, u32, &str, &str, Option<&str>)| GpuReport {
            identity: Identity {
                vendor: *vendor,
                index: *index,
                uuid: uuid.map(str::to_owned),
                pci_address: address.parse().ok(),
                file: Some((*file).to_owned()),
                ..Identity::default()
            },
            ..GpuReport::default()
        };
        Report { gpus: gpus.iter().map(gpu).collect(), ..Report::default() }
    }

    #[test]
    fn finds_gpu_by_number_file_address_and_uuid() {
        let report = report(&[
            (Vendor::Nvidia, 0, "/dev/nvidia1", "0000:10:00.0", Some("GPU-aa")),
            (Vendor::Nvidia, 1, "/dev/nvidia0", "0000:11:00.0", Some("GPU-bb")),
            (Vendor::Amd, 0, "/dev/dri/renderD128", "0000:12:00.0", None),
        ]);
        let file = |name: &str| find(&report, name).map(|gpu| gpu.identity.file.clone().unwrap_or_default());
        for name in ["1", "/dev/nvidia0", "0000:11:00.0", "00000000:11:00.0", "11:00.0", "GPU-bb", "gpu-bb"] {
            assert_eq!(file(name).unwrap(), "/dev/nvidia0", "{name}");
        }
        assert_eq!(file("12:00.0").unwrap(), "/dev/dri/renderD128");
        let several = file("0").unwrap_err().to_string();
        assert!(
            several.contains("GPU 0 (/dev/nvidia1), 0000:10:00.0, GPU-aa; GPU 0 (/dev/dri/renderD128)"),
            "{several}"
        );
        for name in ["2", "/dev/nvidia7", "", "GPU-", "-1"] {
            let none = file(name).unwrap_err().to_string();
            assert!(none.contains("/dev/nvidia0") && none.contains("renderD128"), "{none}");
        }
    }

    #[test]
    fn next_step_is_reset_unless_driver_requires_another_action() {
        let step = |kinds: &[FaultKind]| {
            let mut gpu = report(&[(Vendor::Nvidia, 0, "/dev/nvidia0", "0000:10:00.0", None)]).gpus.remove(0);
            let fault = |kind: &FaultKind| OpenFault {
                kind: *kind,
                policy: Policy::Drain,
                since: 0,
                what: String::new(),
                fix: String::new(),
            };
            gpu.faults = kinds.iter().map(fault).collect();
            next_step(&gpu)
        };
        let reset = "on the host, run `nvidia-smi --gpu-reset -i 0000:10:00.0`";
        for kinds in [&[][..], &[FaultKind::Lost], &[FaultKind::RecoveryAction(1)]] {
            assert!(step(kinds).starts_with(reset), "{kinds:?}: {}", step(kinds));
        }
        let other = step(&[FaultKind::Lost, FaultKind::RecoveryAction(5)]);
        assert!(other.starts_with("restore the IMEX domain"), "{other}");
    }
}
