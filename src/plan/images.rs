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
    /// What Slurm needs in an image: its configuration, munge's socket, and the directories of steps, where its PMIx server shares memory with
    /// MPI programs (PMIX_NSDIR, PMIX_SERVER_TMPDIR). Then `[images] mounts`.
    pub binds: Vec<PathBuf>,
    /// The directory with a directory for each user, in which slurmstepd creates the OCI bundles.
    pub bundles: PathBuf,
    /// Whether several nodes run in this container, each of which needs directories of its own.
    pub has_several_nodes: bool,
    /// The newest CUDA release that the driver supports: `12.4`.
    pub cuda: Option<String>,
}

impl Images {
    /// `None` if the path of the bundles cannot be in oci.conf.
    pub(super) fn plan(config: &Config, inventory: &Inventory) -> Option<Self> {
        let bundles = config.paths.run.join(Paths::BUNDLES);
        if !is_plain_path(&bundles) {
            return None;
        }
        let socket = config.paths.munge_socket.parent().map(PathBuf::from);
        let cuda = inventory.cuda_driver().and_then(|driver| driver.cuda_version.clone());
        let own = [Some(config.paths.slurm.clone()), socket, Some(bundles.clone())].into_iter().flatten();
        let binds = own.chain(config.images.mounts.iter().cloned());
        Some(Self {
            directory: config.images.directory.clone(),
            binds: binds.filter(|path| is_plain_path(path)).collect(),
            bundles,
            has_several_nodes: config.simulated().is_some(),
            cuda: cuda.filter(|release| model::cuda::numbers(release).is_some()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binds_what_slurm_needs_and_then_mounts() {
        let images = config::Images { mounts: vec!["/srv/reference".into()], ..config::Images::default() };
        let binds = Images::plan(&Config { images, ..Config::default() }, &Inventory::default()).unwrap().binds;
        assert_eq!(binds, ["/etc/slurm", "/run/munge", "/run/slurminit/oci", "/srv/reference"].map(PathBuf::from));
    }
}
