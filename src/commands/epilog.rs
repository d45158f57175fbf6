//! `slurminit epilog`: what is done on the node when a job has ended, before Slurm gives its GPUs to another.
//!
//! slurmd runs it as root through `/etc/slurm/epilog`, and the job is COMPLETING meanwhile. It asks nothing of Slurm, for
//! slurmctld may be waiting for the end of this job; it has a deadline; and it never fails, for Slurm takes a node whose
//! epilog fails out of service.

mod ending;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::fcntl::OFlag;

use crate::leftovers::{self, Job, look};
use crate::{exit_code, plan};

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Does it.
pub fn run(_args: &Args) -> anyhow::Result<u8> {
    match job() {
        Ok((job, user)) => ending::end_leftovers(&job, &user).iter().for_each(|line| tell(line)),
        Err(error) => tell(&format!("error: the epilog of a job did nothing: {error:#}; slurmd runs it, nobody else")),
    }
    Ok(exit_code::SUCCESS)
}

/// The job, and its user's name, as slurmd tells them (Slurm 22.05 to 24.11, `prep_script_slurmd.c`).
fn job() -> anyhow::Result<(Job, String)> {
    let number = |name: &str| -> anyhow::Result<u32> {
        let text = std::env::var(name).with_context(|| format!("{name} is not in the environment"))?;
        text.parse().with_context(|| format!("{name} is no number"))
    };
    let (id, uid) = (number("SLURM_JOB_ID")?, number("SLURM_JOB_UID")?);
    let user = std::env::var("SLURM_JOB_USER").unwrap_or_else(|_| format!("user {uid}"));
    let gpus = std::env::var("SLURM_JOB_GPUS").unwrap_or_default();
    let conf = std::env::var_os("SLURM_CONF").map_or_else(|| PathBuf::from("/etc/slurm/slurm.conf"), PathBuf::from);
    let gres_conf = fs::read_to_string(conf.with_file_name("gres.conf")).unwrap_or_default();
    let all = plan::gpu_files(&gres_conf);
    let own = gpus.split(',').filter_map(|gpu| all.get(gpu.parse::<usize>().ok()?).cloned());
    // Two GPUs of one file are two jobs' at a time.
    let devices = own.filter(|file| all.iter().filter(|other| *other == file).count() == 1).collect();
    Ok((Job { id, uid, devices }, leftovers::printable(&user)))
}

/// Slurm keeps what an epilog prints to itself, so the line goes where slurmd's own go.
fn tell(line: &str) {
    let line = format!("{line}\n");
    let written = slurmd().and_then(|pid| {
        let options = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let mut log =
            OpenOptions::new().append(true).custom_flags(options.bits()).open(format!("/proc/{pid}/fd/2")).ok()?;
        log.write_all(line.as_bytes()).ok()
    });
    if written.is_none() {
        eprint!("{line}");
    }
}

/// The slurmd that started this, perhaps through an operator's script.
fn slurmd() -> Option<i32> {
    let mut pid = nix::unistd::getppid().as_raw();
    while pid > 1 {
        let directory = format!("/proc/{pid}");
        let stat = fs::read_to_string(Path::new(&directory).join("stat")).ok()?;
        let (name, rest) = stat.split_once(" (")?.1.rsplit_once(')')?;
        if look::plain_name(name) == "slurmd" {
            return Some(pid);
        }
        pid = rest.split_whitespace().nth(1)?.parse().ok()?;
    }
    None
}
