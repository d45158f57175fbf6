//! Writes each user's login environment for Slurm.
//!
//! slurmd needs it for `sbatch --export=NONE` and the like, and would run `su - USER` in new namespaces.
//! Without CAP_SYS_ADMIN the kernel refuses to create namespaces, and slurmd exits. With `GetEnvTimeout=0`,
//! which Slurm 25.05 removed, slurmd reads these files instead.

use std::path::Path;

use config::{Config, DaemonName};
use images::Store;
use install::load_config;
use install::planned::as_slurm_user;
use install::{Owner, install_environments, make_bundle_directories, read_login_files};
use model::message;
use plan::FileName;
use sys::{report, under, users};

/// Creates the directories for container images, and writes the environments to the state directory of the installed slurm.conf. Drops
/// root's rights in this process.
pub fn write(config: Option<&Path>, root: &Path) -> anyhow::Result<()> {
    let config = load_config::load(config)?;
    let slurm_conf = config.paths.slurm.join(FileName::SlurmConf.as_str());
    let slurm_conf = std::fs::read_to_string(under(root, &slurm_conf)).unwrap_or_default();
    let state = plan::state_directory(&slurm_conf, &config.paths.state.join("slurmctld"));
    let user = plan::last_value(&slurm_conf, "SlurmUser").unwrap_or_default();
    let config = as_slurm_user(&config, &user).unwrap_or(config);
    let owner = Owner::of(DaemonName::Slurmctld, &config, &state)?;
    let files = read_login_files(root);
    make_image_directories(&config, root, &files.passwd)?;
    Ok(install_environments(&state, root, &owner, &files)?)
}

/// Creates the directories that jobs in container images need and that only root can create.
fn make_image_directories(config: &Config, root: &Path, passwd: &str) -> anyhow::Result<()> {
    let is_closed = make_bundle_directories(&config.paths.run, root, passwd)?;
    if !is_closed && !users::is_nss_local() {
        report::warn(message!(
            "bundles-without-lists",
            "the file system of {directory} does not support access control lists, so users from a directory service (LDAP, SSSD) cannot run images; mount a tmpfs at /run",
            directory = config.paths.run.display()
        ));
    }
    let images = Store::shared(under(root, &config.images.directory));
    // A directory that cannot be created, for example on a read-only file system, is reported by the first import.
    if let Err(error) = images.create() {
        if error.is_untrusted() && images.path().exists() {
            report::warn(message!("images-untrusted", "images imported by root will not be used: {error}", error));
        }
    }
    Ok(())
}
