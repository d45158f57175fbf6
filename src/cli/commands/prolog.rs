//! `slurminit prolog`: runs on each node of a job before its first process there. It gives the job's user access to the device files of
//! its GPUs, and lets the job resolve the names of its nodes.
//!
//! slurmd runs it as root through `/etc/slurm/prolog`. It never fails, because Slurm drains a node whose prolog fails. Slurm itself does not need
//! the names, because it uses addresses. A Docker network usually resolves the names. In Kubernetes a pod's name resolves only with the name of
//! its Service as a suffix. If names do not resolve, slurminit adds the nodes' names to /etc/hosts.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use super::epilog::report;
use model::message::Report;
use model::{message, printable};
use probe::own_name::is_container_id;
use slurm::client::{Client, limit};
use startup::{gpu_handover, stopped};
use sys::leftovers::Job;
use sys::tool;
use sys::tool::answer::Answer;

const SLURM: Client = Client::with_timeout(limit::COMMAND);

/// Timeout of a lookup of names. If the name server does not respond, the names are added to /etc/hosts, so later jobs on these nodes need no lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Give the GPUs' device files to the job's user, and make them inaccessible to all other users
    #[arg(long)]
    gives_gpus: bool,
    /// Make the names of the job's nodes resolve
    #[arg(long)]
    names_nodes: bool,
    /// Read lines `PID:START` from standard input, and resume these processes when the input ends. The prolog starts this helper before
    /// it stops a process
    #[arg(long)]
    resume: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if args.resume {
        stopped::resume_after(std::io::stdin().lock());
        return Ok(());
    }
    let id = std::env::var("SLURM_JOB_ID").unwrap_or_default();
    let short = |error: &anyhow::Error| printable::short(&format!("{error:#}"), 300);
    let report_gpu_error = |error: &anyhow::Error| {
        report(Report::warn(message!(
            "gpu-not-opened",
            "cannot restrict the GPUs of job {job} to its user: {error}; its programs may fail to open the GPUs, or other users may open them",
            job = id,
            error = short(error)
        )));
    };
    match args.gives_gpus.then(super::epilog::job_from_environment) {
        Some(Ok((job, _))) => {
            let change_devices = |change: &dyn Fn(&Path) -> std::io::Result<()>| {
                for file in &job.devices {
                    if let Err(error) = change(Path::new(file)) {
                        report_gpu_error(&anyhow::Error::from(error).context(file.clone()));
                    }
                }
            };
            // NVIDIA's programs make the files accessible to all users when root runs them.
            change_devices(&install::close_device_file);
            if take_from_others(&job) {
                change_devices(&|file| install::give_device_file(file, job.uid));
            }
        }
        Some(Err(error)) => report_gpu_error(&error),
        None => {}
    }
    let outcome = if args.names_nodes { install_node_names() } else { Ok(()) };
    if let Err(error) = outcome {
        report(Report::warn(message!(
            "node-names-missing",
            "programs of job {job} may fail to resolve the names of its nodes: {error}",
            job = id,
            error = short(&error)
        )));
    }
    Ok(())
}

/// If the GPUs' device files are restricted: kills the processes of other users that have these GPUs open, and records the job's user if none of
/// these processes is left. Returns whether the job may use the GPUs.
fn take_from_others(job: &Job) -> bool {
    let is_restricted = |file: &&String| install::is_restricted_device_file(Path::new(file));
    let devices: BTreeSet<String> = job.devices.iter().filter(is_restricted).cloned().collect();
    if devices.is_empty() {
        return true;
    }
    let run = install::load_config::load(None).unwrap_or_default().paths.run;
    let handover = gpu_handover::end_other_users(job.id, &devices, job.uid, &run);
    handover.reports.into_iter().for_each(report);
    if handover.is_clear {
        if let Err(error) = gpu_handover::record_user(&run, &devices, job.uid) {
            report(Report::warn(message!(
                "gpu-user-not-recorded",
                "cannot record the users of GPUs in {directory}: {error}",
                directory = run.display(),
                error
            )));
        }
    }
    handover.is_clear
}

fn install_node_names() -> anyhow::Result<()> {
    let nodes = std::env::var("SLURM_JOB_NODELIST").context("SLURM_JOB_NODELIST is not in the environment")?;
    let is_single_node = !nodes.contains([',', '[']);
    if is_single_node && !install::is_loopback_name(Path::new("/"), &nodes)? {
        return Ok(());
    }
    if !is_container_id(&nix::unistd::gethostname()?.to_string_lossy()) && are_resolvable(&nodes)? {
        return Ok(());
    }
    let nodes = SLURM.addresses(&nodes).context("cannot query the addresses of these nodes")?;
    let nodes: Vec<_> = nodes.into_iter().map(|(name, address)| (name, address.ip().to_string())).collect();
    anyhow::ensure!(!nodes.is_empty(), "the controller has no addresses for these nodes");
    Ok(install::install_node_names(Path::new("/"), &nodes)?)
}

/// Whether the names resolve without slurminit's entries, to addresses that other nodes can reach.
fn are_resolvable(nodes: &str) -> anyhow::Result<bool> {
    let names = SLURM.hostnames(nodes)?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // A loopback address in /etc/hosts takes precedence over the name server's address, which other nodes can reach.
    for name in &names {
        if install::is_loopback_name(Path::new("/"), name)? {
            return Ok(false);
        }
    }
    Ok(match install::node_names_writer(Path::new("/"), &names)? {
        install::HostsWriter::OtherProgram => true,
        // The address may have changed.
        install::HostsWriter::Slurminit => false,
        install::HostsWriter::Missing => {
            let arguments = [["-s", "hosts:dns", "hosts"].as_slice(), &names].concat();
            matches!(tool::ask("getent", &arguments, LOOKUP_TIMEOUT), Answer::Ended { succeeded: true, .. })
        }
    })
}
