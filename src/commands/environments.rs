//! `slurminit environments`: what Slurm gives each user as the environment of a login.
//!
//! `sbatch --export=NONE` and the like want it from slurmd, which would run `su - USER` in namespaces of its own (Slurm 23.11 and
//! newer). Without CAP_SYS_ADMIN the kernel refuses those, and slurmd takes that for fatal. With `GetEnvTimeout=0` it reads a file
//! instead: these.

use std::path::{Path, PathBuf};

use super::prepare::value_in;
use crate::config::DaemonName;
use crate::install::{Owner, install_environments, read_login_files, under};
use crate::plan::FileName;
use crate::{commands, exit_code};

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The operator's file [default: SLURMINIT_CONFIG, else /config/slurminit.toml if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Read and write below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

/// Writes them.
pub fn run(args: Args) -> anyhow::Result<u8> {
    write(args.config.as_deref(), &args.root)?;
    Ok(exit_code::SUCCESS)
}

/// Writes them where the slurm.conf that is installed has its state. This process has lost root's rights then.
pub(super) fn write(config: Option<&Path>, root: &Path) -> anyhow::Result<()> {
    let config = commands::load_config::load(config)?;
    let slurm_conf = config.paths.slurm.join(FileName::SlurmConf.as_str());
    let slurm_conf = std::fs::read_to_string(under(root, &slurm_conf)).unwrap_or_default();
    let own = value_in(&slurm_conf, "StateSaveLocation").map(PathBuf::from);
    let state = own.unwrap_or_else(|| config.paths.state.join("slurmctld"));
    let owner = Owner::of(DaemonName::Slurmctld, &config, &state)?;
    Ok(install_environments(&state, root, &owner, &read_login_files(root))?)
}
