//! Jobs in container images.

use std::path::PathBuf;

use config::{Config, Paths};
use model::inventory::Inventory;
use model::value::is_plain_path;

/// How slurmstepd runs a step in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// The directory of the images that all users share.
    pub directory: PathBuf,
    /// Slurm's configuration directory. `None` if its path cannot be written to oci.conf.
    pub slurm: Option<PathBuf>,
    /// The directory of munge's socket. `None` if its path cannot be written to oci.conf.
    pub munge: Option<PathBuf>,
    /// The directories of `[images] mounts`.
    pub mounts: Vec<PathBuf>,
    /// The parent of the users' directories. slurmstepd creates a user's OCI bundles in the user's directory.
    pub bundles: PathBuf,
    /// Whether several nodes run in this container, each of which needs separate directories.
    pub has_several_nodes: bool,
    /// The newest CUDA release that the driver supports: `12.4`. `None` if it is unknown, and in a cluster of several containers.
    pub cuda: Option<String>,
}

impl Images {
    /// Plans jobs in images; `None` if the path of the bundles cannot be written to oci.conf.
    pub(super) fn plan(config: &Config, inventory: &Inventory) -> Option<Self> {
        let bundles = config.paths.run.join(Paths::BUNDLES);
        if !is_plain_path(&bundles) {
            return None;
        }
        let cuda = inventory.cuda_driver().and_then(|driver| driver.cuda_version.clone());
        Some(Self {
            directory: config.images.directory.clone(),
            slurm: Some(config.paths.slurm.clone()).filter(|path| is_plain_path(path)),
            munge: config.paths.munge_socket.parent().map(PathBuf::from).filter(|path| is_plain_path(path)),
            mounts: config.images.mounts.clone(),
            bundles,
            has_several_nodes: config.simulated().is_some(),
            cuda: cuda.filter(|release| model::cuda::numbers(release).is_some()),
        })
    }
}
