//! `slurminit epilog`: runs on the node when a job has ended, before Slurm gives its GPUs to another job.
//!
//! It revokes the user's access to the job's GPUs, and kills the processes that the job left behind.
//!
//! slurmd runs it as root through `/etc/slurm/epilog`, while the job is COMPLETING. It does not query Slurm,
//! because slurmctld may be waiting for the end of this job. It has a deadline, and never fails, because Slurm drains a
//! node whose epilog fails.

use std::fs;
use std::path::{Path, PathBuf};

use crate::output::error_line;
use anyhow::Context as _;

use control::client;
use machine::protocol::{self, MAX_REQUEST_BYTES, Request};
use model::message::Report;
use model::{message, printable};
use startup::gpu_handover;
use sys::leftovers;
use sys::leftovers::Job;
use sys::leftovers::look::Mark;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Also make the GPUs' device files inaccessible to all users, if the prolog has given them to a user
    #[arg(long)]
    takes_gpus: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match job_from_environment() {
        Ok((job, user)) => {
            // This comes before the processes are killed, so that none opens a GPU again.
            let run = args.takes_gpus.then(|| install::load_config::load(None).unwrap_or_default().paths.run);
            for device in &job.devices {
                let file = Path::new(device);
                // If a root process has loaded NVIDIA's libraries meanwhile, the file is accessible to all users again. slurminit closes only
                // files that its Prolog has given to a user.
                let is_managed = run.as_ref().is_some_and(|run| gpu_handover::was_given(run, device));
                let revoked = install::revoke_device_file(file, job.uid);
                let closed = revoked.and_then(|()| if is_managed { install::close_device_file(file) } else { Ok(()) });
                if let Err(error) = closed {
                    report(Report::error(message!(
                        "gpu-not-closed",
                        "cannot revoke users' access to {file} after job {job} of {user}: {error}",
                        file = device,
                        job = job.id,
                        user,
                        error
                    )));
                }
            }
            match Mark::of_this_process() {
                Some(mark) => leftovers::end(&job, &user, mark).into_iter().for_each(report),
                None => report(Report::warn(message!(
                    "leftovers-not-searched",
                    "cannot search for leftover processes of job {job} of {user}: slurmd was not started by slurminit",
                    job = job.id,
                    user
                ))),
            }
        }
        Err(error) => report(Report::error(message!(
            "epilog-failed",
            "the epilog of a job failed: {error}; only slurmd can run the epilog",
            error = format!("{error:#}")
        ))),
    }
    Ok(())
}

/// The job and its user's name, from slurmd's variables (Slurm 24.11, `prep_script_slurmd.c`).
pub(super) fn job_from_environment() -> anyhow::Result<(Job, String)> {
    let number = |name: &str| -> anyhow::Result<u32> {
        let text = std::env::var(name).with_context(|| format!("{name} is not in the environment"))?;
        text.parse().with_context(|| format!("{name} is not a number"))
    };
    let (id, uid) = (number("SLURM_JOB_ID")?, number("SLURM_JOB_UID")?);
    let user = std::env::var("SLURM_JOB_USER").unwrap_or_else(|_| format!("user {uid}"));
    let gpus = std::env::var("SLURM_JOB_GPUS").unwrap_or_default();
    let conf = std::env::var_os("SLURM_CONF").map_or_else(|| PathBuf::from("/etc/slurm/slurm.conf"), PathBuf::from);
    let gres_conf = fs::read_to_string(conf.with_file_name("gres.conf")).unwrap_or_default();
    let node_devices = plan::gpu_files(&gres_conf, &std::env::var("SLURMD_NODENAME").unwrap_or_default());
    let job_devices = gpus.split(',').filter_map(|gpu| node_devices.get(gpu.parse::<usize>().ok()?).cloned());
    // A file shared by several GPUs can belong to two jobs at a time.
    let devices = job_devices.filter(|file| node_devices.iter().filter(|other| *other == file).count() == 1).collect();
    Ok((Job { id, uid, devices }, sys::proc::printable(&user)))
}

/// A text of this many bytes fits into a request, even if JSON escapes every character.
const MAX_TEXT_BYTES: usize = MAX_REQUEST_BYTES / 8;

/// Slurm discards the output of a prolog or epilog, so PID 1 logs the message with slurmd as its source. slurmd does not pass on
/// SLURMINIT_CONFIG: if the file that it names moves the run directory, the control socket is not found, and the message is lost.
pub(super) fn report(report: Report) {
    let mut request = Request::Report { report: report.clone() };
    if protocol::line(&request).len() > MAX_REQUEST_BYTES {
        request = Request::Report { report: report.clone().truncated(MAX_TEXT_BYTES) };
    }
    // If the configuration has become invalid, the default run directory is used.
    let config = install::load_config::load(None).unwrap_or_default();
    if let Err(error) = client::ask(&protocol::socket(&config.paths.run), &request) {
        error_line(format_args!("{} ({error})", printable::line(&report.message.text)));
    }
}
