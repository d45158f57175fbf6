//! `slurminit oci`: runs a step of a job in a container image. slurmstepd runs it as the job's user (`oci.conf`).

use std::ffi::OsString;
use std::path::PathBuf;

use crate::output::error_line;
use images::runtime::{self, Backend, Setup};
use model::exit_code;
use sys::inherited::Inherited;
use watch::agent;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory of the images that all users share
    #[arg(long, default_value = "/data/images")]
    images: PathBuf,
    /// Slurm's configuration directory
    #[arg(long, default_value = "/etc/slurm")]
    slurm: PathBuf,
    /// The directory of munge's socket
    #[arg(long, default_value = "/run/munge")]
    munge: PathBuf,
    /// An additional directory to mount in the images of jobs (`[images] mounts`); can be repeated
    #[arg(long)]
    bind: Vec<PathBuf>,
    /// The directory in which slurmstepd writes the environment of steps
    #[arg(long, default_value = "/run/slurminit/oci")]
    bundles: PathBuf,
    /// The file with the step's environment
    #[arg(long, required_unless_present_any = ["probe", "inside"])]
    environment: Option<PathBuf>,
    /// The newest CUDA release that the driver supports
    #[arg(long)]
    cuda: Option<String>,
    /// Exit with 0 if jobs can run in images with this backend (`namespaces`, `proot`); otherwise print the reason
    #[arg(long, value_name = "BACKEND", value_parser = backend)]
    probe: Option<Backend>,
    /// PRoot runs this process: run the program as a child, and report its PID and exit status to this descriptor
    #[arg(long, hide = true)]
    inside: Option<i32>,
    /// The descriptor with the program's environment
    #[arg(long, hide = true, requires = "inside")]
    variables: Option<i32>,
    /// The signal mask, the ignored signals and the umask for the program
    #[arg(long, hide = true, value_parser = |text: &str| serde_json::from_str::<Inherited>(text))]
    inherited: Option<Inherited>,
    /// The program and its arguments
    #[arg(last = true, hide = true)]
    program: Vec<OsString>,
}

fn backend(text: &str) -> Result<Backend, String> {
    let known = [Backend::Namespaces, Backend::Proot].into_iter().find(|backend| backend.to_string() == text);
    known.ok_or_else(|| "expected namespaces or proot".to_owned())
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    if let Some(backend) = args.probe {
        return runtime::probe(backend).map(|()| exit_code::SUCCESS).map_err(anyhow::Error::msg);
    }
    if let Some(((report, variables), inherited)) = args.inside.zip(args.variables).zip(args.inherited) {
        return Ok(runtime::run_inside(report, variables, &args.program, &inherited)?);
    }
    let Args { images, slurm, munge, bind: mounts, bundles, environment, cuda, .. } = args;
    let (environment, report) =
        (environment.unwrap_or_default(), |line: &str| error_line(format_args!("slurminit: {line}")));
    let setup = Setup { images, slurm, munge, mounts, bundles, environment, cuda, now: agent::unix(), report };
    Ok(runtime::run(&setup).unwrap_or_else(|error| {
        error_line(format_args!("slurminit: {}", model::printable::line(&error.to_string())));
        runtime::NOT_STARTED
    }))
}
