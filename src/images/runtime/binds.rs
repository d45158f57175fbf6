//! The list of the container's files that are available to a job in an image. The GPU driver's files (`driver`) and a bundle's mounts are added to
//! it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::Setup;

/// The directory in an image for the files that slurminit adds under other paths than the container's.
pub(super) const SLURMINIT_DIRECTORY: &str = "/.slurminit";
/// Directories, each bound with everything that is mounted in it.
const DIRECTORIES: [&str; 7] = ["/proc", "/sys", "/dev", "/tmp", "/var/tmp", "/home", "/data"];
/// Files with the names of hosts, users and groups, the name servers and the time zone.
const FILES: [&str; 5] = ["/etc/hosts", "/etc/resolv.conf", "/etc/passwd", "/etc/group", "/etc/localtime"];
/// Slurm's commands. A script runs them with this container's own libraries, because the image may have another libc.
const CLIENTS: [&str; 11] =
    ["sacct", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "sinfo", "squeue", "srun", "sstat"];
const CLIENT_SCRIPT: &str = "/usr/share/slurminit/client";
/// Debian's library directory.
const LIBRARIES: &str =
    if cfg!(target_arch = "aarch64") { "/usr/lib/aarch64-linux-gnu" } else { "/usr/lib/x86_64-linux-gnu" };
/// The dynamic loader in [`LIBRARIES`].
pub(super) const LOADER: &str =
    if cfg!(target_arch = "aarch64") { "ld-linux-aarch64.so.1" } else { "ld-linux-x86-64.so.2" };
/// Slurm loads its plugins from the directories that it was built with.
const PLUGINS: [&str; 2] = if cfg!(target_arch = "aarch64") {
    ["/usr/lib/aarch64-linux-gnu/slurm-wlm", "/usr/lib/slurm"]
} else {
    ["/usr/lib/x86_64-linux-gnu/slurm-wlm", "/usr/lib/slurm"]
};
/// The name of a batch script in slurmd's spool directory.
const SCRIPT: &str = "slurm_script";

/// A path of the container, and its path in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The path in the container.
    pub from: PathBuf,
    /// The path in the image.
    pub to: PathBuf,
    /// Whether programs can only read the path in the image.
    pub is_read_only: bool,
}

/// All binds, in order: a later one may be inside an earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Binds(pub(super) Vec<Bind>);

impl Binds {
    /// The binds of every step: [`DIRECTORIES`] and [`FILES`], the user's home directory, the working directory, the configured mounts, Slurm's
    /// commands, and what they and MPI need: libraries, Slurm's plugins and configuration, munge's socket, and the directories of steps, in which
    /// slurmstepd's PMIx server shares memory (PMIX_NSDIR, PMIX_SERVER_TMPDIR).
    pub(super) fn new(setup: &Setup, root: &Path, home: Option<&Path>, directory: &Path) -> Self {
        let mut binds = Self::default();
        DIRECTORIES.iter().chain(&FILES).for_each(|path| binds.add_at_same_path(Path::new(path)));
        home.into_iter().for_each(|home| binds.add_unless_covered(home));
        binds.add_unless_covered(directory);
        let own = [&setup.slurm, &setup.munge, &setup.bundles];
        own.into_iter().chain(&setup.mounts).for_each(|path| binds.add_at_same_path(path));
        binds.add_clients(root);
        binds
    }

    /// Adds a bind if the path exists in the container.
    pub(super) fn add(&mut self, from: &Path, to: &Path) {
        if from.is_absolute() && from.exists() && to.is_absolute() {
            self.0.push(Bind { from: from.to_owned(), to: to.to_owned(), is_read_only: false });
        }
    }

    /// Adds a mount of a bundle. The user requested it, so it is not left out if the path is missing: the step fails.
    pub(super) fn add_mount(&mut self, mount: Bind) {
        self.0.push(mount);
    }

    /// Whether another bind makes the mount's source available at the mount's path in the image, and writable.
    pub(super) fn has_writable(&self, mount: &Bind) -> bool {
        let is_same = |bind: &Bind| !bind.is_read_only && bind.from == mount.from && bind.to == mount.to;
        self.0.iter().any(is_same)
    }

    fn add_at_same_path(&mut self, path: &Path) {
        self.add(path, path);
    }

    fn add_unless_covered(&mut self, path: &Path) {
        let is_covered = self.0.iter().any(|bind| bind.from == bind.to && path.starts_with(&bind.to));
        if !is_covered && path != Path::new("/") {
            self.add_at_same_path(path);
        }
    }

    fn add_clients(&mut self, root: &Path) {
        let (libraries, directory) = (Path::new(LIBRARIES), Path::new(SLURMINIT_DIRECTORY));
        self.add(libraries, &directory.join("lib"));
        if !Path::new(CLIENT_SCRIPT).exists() {
            return;
        }
        self.add(Path::new("/usr/bin"), &directory.join("host-bin"));
        PLUGINS.iter().for_each(|plugins| self.add_at_same_path(Path::new(plugins)));
        // If the image has a PMIx library, the image's programs must load that one.
        let pmix = libraries.join("pmix2");
        if !root.join(pmix.strip_prefix("/").unwrap_or(&pmix)).join("lib/libpmix.so.2").exists() {
            self.add_at_same_path(&pmix);
        }
        for client in CLIENTS {
            if Path::new("/usr/bin").join(client).exists() {
                self.add(Path::new(CLIENT_SCRIPT), &directory.join("bin").join(client));
            }
        }
    }

    /// Binds a batch script, and replaces its path in the arguments: the script is in slurmd's spool directory, which images do not have.
    pub(super) fn add_script(&mut self, arguments: &mut [OsString]) {
        let Some(first) = arguments.first_mut() else { return };
        let path = PathBuf::from(&*first);
        if path.is_absolute() && path.file_name().is_some_and(|name| name == SCRIPT) && path.exists() {
            let inside = Path::new(SLURMINIT_DIRECTORY).join(SCRIPT);
            self.add(&path, &inside);
            *first = inside.into_os_string();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binds_each_directory_once_and_remaps_batch_script() {
        let directory = crate::tests::scratch();
        let (home, script) = (directory.path().join("home"), directory.path().join(SCRIPT));
        std::fs::create_dir(&home).unwrap();
        std::fs::write(&script, "").unwrap();
        let setup = Setup {
            images: "/x".into(),
            slurm: "/missing".into(),
            munge: "/x".into(),
            mounts: vec!["/missing".into(), "/usr".into()],
            bundles: "/x".into(),
            environment: "/x".into(),
            cuda: None,
            now: 0,
            report: |_| {},
        };
        let mut binds = Binds::new(&setup, directory.path(), Some(Path::new("/tmp")), Path::new("/"));
        let count = |binds: &Binds, path: &str| binds.0.iter().filter(|bind| bind.to == Path::new(path)).count();
        assert_eq!(["/tmp", "/usr", "/", "/missing"].map(|path| count(&binds, path)), [1, 1, 0, 0]);
        let mut arguments = vec![script.clone().into_os_string(), "a".into()];
        binds.add_script(&mut arguments);
        assert_eq!(arguments, ["/.slurminit/slurm_script", "a"]);
        assert_eq!(
            binds.0.last().unwrap(),
            &Bind { from: script, to: "/.slurminit/slurm_script".into(), is_read_only: false }
        );
    }

    #[test]
    fn read_only_mount_may_be_left_out_only_if_its_files_are_already_there() {
        let bind = |from: &str, to: &str, is_read_only| Bind { from: from.into(), to: to.into(), is_read_only };
        let mut binds = Binds::default();
        binds.add_mount(bind("/srv", "/srv", false));
        binds.add_mount(bind("/opt", "/opt", true));
        for (mount, expected) in [
            (bind("/srv", "/srv", true), true),
            (bind("/srv", "/mnt", true), false),
            (bind("/mnt", "/srv", true), false),
            (bind("/mnt", "/mnt", true), false),
            (bind("/opt", "/opt", true), false),
        ] {
            assert_eq!(binds.has_writable(&mount), expected, "{mount:?}");
        }
        assert_eq!(binds.0, [bind("/srv", "/srv", false), bind("/opt", "/opt", true)]);
    }
}
