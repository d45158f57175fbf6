//! The variables of a step in an image: those of the job, and those of the image.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::unistd::geteuid;
use sys::trusted_path;

use super::{RuntimeError, bundle};

/// The name and the value of an environment variable.
pub type Variable = (OsString, OsString);

/// The search path for an image that does not set PATH.
pub(super) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The directory of Slurm's commands and the GPU driver's programs in an image. In PATH, it follows the image's own directories.
const CLIENTS: &str = "/.slurminit/bin";
/// The directory of the GPU driver's libraries in an image.
const DRIVER: &str = "/.slurminit/driver";
/// Prefixes of the variables of Slurm and PMI, which describe the job. An image cannot replace them.
const JOB_PREFIXES: [&str; 7] = ["SLURM", "SBATCH_", "SRUN_", "SALLOC_", "PMI_", "PMI2_", "PMIX_"];
/// Variables of the job's user and GPUs, which an image cannot replace either.
const JOB_VARIABLES: [&str; 9] = [
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "GPU_DEVICE_ORDINAL",
    "HOME",
    "USER",
    "LOGNAME",
];

fn is_of_the_job(name: &OsStr) -> bool {
    let has_prefix = JOB_PREFIXES.iter().any(|prefix| name.as_bytes().starts_with(prefix.as_bytes()));
    has_prefix || JOB_VARIABLES.iter().any(|variable| name == *variable)
}

/// Reads the variables that slurmstepd wrote, and removes their file and its directories. slurmstepd is configured to keep them (`DisableCleanup`).
/// Otherwise it would remove them as root, by paths that the user can change.
///
/// `file` is below this user's directory in `bundles`. The contents of that directory are trusted because no other user can enter it.
pub(super) fn take(file: &Path, bundles: &Path) -> Result<Vec<Variable>, RuntimeError> {
    let untrusted = |why: String| RuntimeError::Environment { path: file.to_owned(), why };
    let mut names = file.strip_prefix(bundles).unwrap_or(Path::new("")).components();
    let own = names.next().ok_or_else(|| untrusted(format!("the file is not in {}", bundles.display())))?;
    let names = names.as_path();
    let directory =
        trusted_path::open(Path::new("/"), &bundles.join(own)).map_err(|error| untrusted(error.to_string()))?;
    let owner = directory.metadata().uid();
    if owner != geteuid().as_raw() {
        return Err(untrusted(format!("{} belongs to uid {owner}", directory.path().display())));
    }
    if !directory.is_closed().map_err(|error| untrusted(error.to_string()))? {
        let path = directory.path().display();
        return Err(untrusted(format!(
            "the mode of {path} grants access to other users, and no access control list denies it; if its file system does not support access control lists, mount a tmpfs at /run"
        )));
    }
    let read = |error| RuntimeError::Read { path: file.to_owned(), error };
    let variables = parse(&trusted_path::read_whole(&directory.open_file(names).map_err(read)?).map_err(read)?);
    // If the removal fails, the files remain in this user's own directory, where they are harmless.
    let _ = directory.remove(names);
    for parent in names.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
        let _ = directory.remove_directory(parent);
    }
    Ok(variables)
}

/// Parses variables, each terminated by NUL.
pub fn parse(bytes: &[u8]) -> Vec<Variable> {
    let variable = |text: &[u8]| {
        let equals = text.iter().position(|byte| *byte == b'=')?;
        Some((OsString::from_vec(text[..equals].to_vec()), OsString::from_vec(text[equals + 1..].to_vec())))
    };
    bytes.split(|byte| *byte == 0).filter_map(variable).collect()
}

/// Writes variables in the form that [`parse`] reads.
pub(super) fn text(variables: &[Variable]) -> Vec<u8> {
    variables.iter().flat_map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat()).collect()
}

/// Merges the variables. Those of the image replace those of the job, because they describe the locations of the image's programs. Variables that
/// describe the job are kept. PATH is that of the image, or [`DEFAULT_PATH`], followed by [`CLIENTS`]. With a driver, [`DRIVER`] is appended to
/// LD_LIBRARY_PATH.
pub(super) fn merge(mut job: Vec<Variable>, image: &[String], has_driver: bool) -> Vec<Variable> {
    let mut path = OsString::from(DEFAULT_PATH);
    for (name, value) in image.iter().filter_map(|text| bundle::variable(text)) {
        if name == "PATH" {
            path = value;
        } else if !is_of_the_job(&name) {
            set(&mut job, name, value);
        }
    }
    path.push(":");
    path.push(CLIENTS);
    set(&mut job, "PATH".into(), path);
    if has_driver {
        let image_libraries = job.iter().find(|(name, _)| name == "LD_LIBRARY_PATH").map(|(_, value)| value.clone());
        let mut libraries = image_libraries.filter(|list| !list.is_empty()).map_or_else(OsString::new, |mut list| {
            list.push(":");
            list
        });
        libraries.push(DRIVER);
        set(&mut job, "LD_LIBRARY_PATH".into(), libraries);
    }
    job
}

fn set(all: &mut Vec<Variable>, name: OsString, value: OsString) {
    match all.iter_mut().find(|(other, _)| *other == name) {
        Some((_, old)) => *old = value,
        None => all.push((name, value)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown};
    use std::path::PathBuf;

    use super::*;

    /// Creates this user's directory in the directory of bundles, and a file with the environment of a step, with the modes that slurmstepd sets.
    /// Returns both paths.
    fn step(bundles: &Path) -> (PathBuf, PathBuf) {
        let own = bundles.join(geteuid().to_string());
        let task = own.join("7-0-node1-0/oci-job7-0/task-0");
        fs::create_dir_all(&task).unwrap();
        let file = task.join("environment");
        fs::write(&file, "A=1\0B=x=y\0broken\0").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o750)).unwrap();
        fs::set_permissions(&own, Permissions::from_mode(0o700)).unwrap();
        (own, file)
    }

    #[test]
    fn takes_environment_only_from_directory_that_no_other_user_can_enter() {
        let bundles = crate::tests::scratch();
        let bundles = bundles.path();
        let (own, file) = step(bundles);
        let expected = [("A", "1"), ("B", "x=y")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(take(&file, bundles).unwrap(), expected);
        assert_eq!(fs::read_dir(&own).unwrap().count(), 0, "the step's directories are removed");
        assert!(matches!(take(&file, bundles), Err(RuntimeError::Read { .. })));
        assert!(matches!(take(Path::new("/etc/environment"), bundles), Err(RuntimeError::Environment { .. })));

        let (own, file) = step(bundles);
        let refused = |why: &str| match take(&file, bundles) {
            Err(RuntimeError::Environment { why: found, .. }) => assert!(found.contains(why), "{found}"),
            other => panic!("{why}: {other:?}"),
        };
        fs::set_permissions(&own, Permissions::from_mode(0o770)).unwrap();
        refused("grants access to other users");
        refused("grants access to other users");
        fs::set_permissions(&own, Permissions::from_mode(0o700)).unwrap();
        chown(&own, Some(1234), None).unwrap();
        refused("uid 1234");
        fs::rename(&own, bundles.join("x")).unwrap();
        std::os::unix::fs::symlink("x", &own).unwrap();
        refused("uid 1234");
        chown(bundles, Some(1234), None).unwrap();
        refused("uid 1234");
    }

    #[test]
    fn closes_directory_that_slurmstepd_made_in_place_with_access_list() {
        let bundles = crate::tests::scratch();
        assert!(sys::acl::close_new_entries(&File::open(bundles.path()).unwrap()).unwrap());
        let (own, file) = step(bundles.path());
        fs::set_permissions(&own, Permissions::from_mode(0o770)).unwrap();
        assert_eq!(take(&file, bundles.path()).unwrap().len(), 2);
        assert_eq!(own.metadata().unwrap().mode() & 0o7777, 0o700);
    }

    #[test]
    fn program_under_proot_gets_variables_as_they_were_written() {
        let all = [("A", "x=y"), ("B", ""), ("C", "two\nlines")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(parse(&text(&all)), all);
    }

    #[test]
    fn image_overrides_all_but_job_specific_variables() {
        let job = ["PATH=/usr/games", "A=job", "SLURM_JOB_ID=7", "CUDA_VISIBLE_DEVICES=1", "HOME=/home/alice"];
        let job = job.iter().filter_map(|text| bundle::variable(text)).collect();
        let image = [
            "PATH=/opt/bin",
            "A=image",
            "SLURM_JOB_ID=0",
            "CUDA_VISIBLE_DEVICES=all",
            "HOME=/root",
            "HOMEBREW_PREFIX=/brew",
            "LD_LIBRARY_PATH=/l",
        ];
        let merged = merge(job, &image.map(str::to_owned), true);
        let value =
            |name: &str| merged.iter().find(|(other, _)| other == name).map(|(_, value)| value.to_str().unwrap());
        assert_eq!(value("PATH"), Some("/opt/bin:/.slurminit/bin"));
        assert_eq!(value("A"), Some("image"));
        assert_eq!(value("SLURM_JOB_ID"), Some("7"));
        assert_eq!(value("CUDA_VISIBLE_DEVICES"), Some("1"));
        assert_eq!(value("HOME"), Some("/home/alice"));
        assert_eq!(value("HOMEBREW_PREFIX"), Some("/brew"));
        assert_eq!(value("LD_LIBRARY_PATH"), Some("/l:/.slurminit/driver"));
        let merged = merge(Vec::new(), &[], false);
        assert_eq!(merged.len(), 1);
    }
}
