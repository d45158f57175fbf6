//! Jobs in container images.

use std::path::PathBuf;

use config::{Config, Paths};
use model::inventory::slurm::advisories::REMOVES_FILES_AS_ROOT;
use model::inventory::{Behavior, Inventory};
use model::value::is_plain_path;

/// How slurmstepd runs a step in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// The directory of the images of all users.
    pub directory: PathBuf,
    /// What Slurm needs in an image: its configuration, munge's socket, and the directories of steps, where its PMIx server shares memory with
    /// MPI programs (PMIX_NSDIR, PMIX_SERVER_TMPDIR). Then `[images] mounts`.
    pub binds: Vec<PathBuf>,
    /// The directory with a directory for each user, in which slurmstepd creates the OCI bundles.
    pub bundles: PathBuf,
    /// Whether `bundles` is a directory in which Slurm names the directories of jobs, steps and tasks; otherwise
    /// oci.conf has a pattern for them.
    pub has_bundle_directory: bool,
    /// The newest CUDA release that the driver supports: `12.4`.
    pub cuda: Option<String>,
    /// Whether slurmstepd must not remove the directories of ended steps. It does so as root, and before the fix of CVE-2026-65109 follows links
    /// of their user there: it would remove `environment` in any directory.
    pub keeps_bundles: bool,
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
            has_bundle_directory: inventory.slurm.does(Behavior::BundleDirectory),
            cuda: cuda.filter(|release| model::cuda::numbers(release).is_some()),
            keeps_bundles: inventory.slurm.has_hole(REMOVES_FILES_AS_ROOT),
        })
    }
}

#[cfg(test)]
mod tests {
    use model::inventory::{SlurmInstall, SlurmVersion};

    use super::*;

    #[test]
    fn oci_conf_has_form_of_release() {
        let images = |year, month| {
            let slurm = SlurmInstall { version: Some(SlurmVersion { year, month }), ..SlurmInstall::default() };
            let images = config::Images { mounts: vec!["/srv/reference".into()], ..config::Images::default() };
            Images::plan(&Config { images, ..Config::default() }, &Inventory { slurm, ..Inventory::default() })
        };
        assert_eq!(images(24, 11).map(|images| images.has_bundle_directory), Some(false));
        assert_eq!(images(25, 5).map(|images| images.has_bundle_directory), Some(true));
        assert_eq!(images(24, 11).map(|images| images.keeps_bundles), Some(false));
        let binds = images(25, 5).unwrap().binds;
        assert_eq!(binds, ["/etc/slurm", "/run/munge", "/run/slurminit/oci", "/srv/reference"].map(PathBuf::from));
    }
}
