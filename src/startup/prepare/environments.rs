//! Writes each user's login environment for Slurm.
//!
//! slurmd needs it for `sbatch --export=NONE` and the like, and would run `su - USER` in namespaces of its own.
//! Without CAP_SYS_ADMIN the kernel refuses those, and slurmd exits. With `GetEnvTimeout=0` it reads
//! these files instead.

use std::path::{Path, PathBuf};

use config::DaemonName;
use install::load_config;
use install::planned::as_slurm_user;
use install::{Owner, install_environments, make_bundle_directories, read_login_files};
use plan::FileName;
use sys::{under, users};

/// Writes the files to the state directory of the installed slurm.conf. Drops root's rights in this process.
pub fn write(config: Option<&Path>, root: &Path) -> anyhow::Result<()> {
    let config = load_config::load(config)?;
    let slurm_conf = config.paths.slurm.join(FileName::SlurmConf.as_str());
    let slurm_conf = std::fs::read_to_string(under(root, &slurm_conf)).unwrap_or_default();
    let own = plan::last_value(&slurm_conf, "StateSaveLocation").map(PathBuf::from);
    let state = own.unwrap_or_else(|| config.paths.state.join("slurmctld"));
    let user = plan::last_value(&slurm_conf, "SlurmUser").unwrap_or_default();
    let config = as_slurm_user(&config, &user).unwrap_or(config);
    let owner = Owner::of(DaemonName::Slurmctld, &config, &state)?;
    let files = read_login_files(root);
    // The same accounts need a directory for steps in container images, which only root can make.
    make_bundle_directories(&config.paths.run, root, &files.passwd, !users::is_nss_local())?;
    Ok(install_environments(&state, root, &owner, &files)?)
}
