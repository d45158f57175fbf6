//! Copies of the Slurm files that the daemons use: in the run directory, and of slurm.conf also in the state directory.
//!
//! The installed files may be newer than those that the daemons use, for example because a reload was interrupted or a file was edited in place. A
//! reload compares the new files with these copies. If the new files do not work, the reload may restore the previous copies.

use std::path::{Path, PathBuf};

use super::copies::record_reinstalled_copy;
use super::{InstallError, read_text, replace_in};
use config::Paths;
use plan::{FileName, Text};

/// The directory of the copies, inside the run directory.
const DIRECTORY: &str = "applied";

/// The slurm.conf that the daemons last used, in the state directory, which may outlive the container.
const FORMER_CONF: &str = "applied-slurm.conf";

/// The file of [`keep_start_only`] in the run directory.
const START_ONLY_FILE: &str = "held";

fn directory(paths: &Paths) -> PathBuf {
    paths.run.join(DIRECTORY)
}

/// Reads the files that the daemons run with: each from its copy, otherwise the installed file.
///
/// # Errors
/// An existing file cannot be read as text.
pub fn read_applied(paths: &Paths, root: &Path) -> Result<Vec<Text>, InstallError> {
    let mut found = Vec::new();
    for name in FileName::WRITTEN {
        let read = |directory: &Path| read_text(root, &directory.join(name.as_str()));
        let text = read(&directory(paths))?.map_or_else(|| read(&paths.slurm), |kept| Ok(Some(kept)))?;
        found.extend(text.map(|text| Text { name, text }));
    }
    Ok(found)
}

/// Stores copies of the files that the daemons are about to run with. The previous copies are kept for
/// [`restore_applied`].
///
/// # Errors
/// The first file that cannot be written.
pub fn keep_applied(paths: &Paths, root: &Path, files: &[Text]) -> Result<(), InstallError> {
    let keep = |Text { name, text }: &Text| replace_in(root, &directory(paths), name.as_str(), text, 0o644).map(drop);
    files.iter().try_for_each(keep)?;
    keep_former(paths, root, files)
}

fn keep_former(paths: &Paths, root: &Path, files: &[Text]) -> Result<(), InstallError> {
    let Some(conf) = files.iter().find(|file| file.name == FileName::SlurmConf) else { return Ok(()) };
    replace_in(root, &paths.state, FORMER_CONF, &conf.text, 0o644).map(drop)
}

/// Reads the slurm.conf that the slurmctld of the saved state last started with, which may be another container's. Without
/// a copy of it, reads the installed file.
///
/// # Errors
/// An existing file cannot be read as text.
pub fn read_former(paths: &Paths, root: &Path) -> Result<Option<String>, InstallError> {
    match read_text(root, &paths.state.join(FORMER_CONF))? {
        None => read_text(root, &paths.slurm.join(FileName::SlurmConf.as_str())),
        former => Ok(former),
    }
}

/// Stores settings that take effect only at a start, for `slurminit reload --dry-run`: [`config::StartOnlyTables`], the node's name, and the values
/// of `SLURMINIT_NODES` and `SLURMINIT_ROLE`, one line each.
///
/// # Errors
/// The file cannot be written.
pub fn keep_start_only(paths: &Paths, root: &Path, text: &str) -> Result<(), InstallError> {
    // Readable for root only: a checksum of a short secret in [daemon.*] could reveal it.
    replace_in(root, &paths.run, START_ONLY_FILE, text, 0o600).map(drop)
}

/// Reads the settings that [`keep_start_only`] stored; `None` if there are none.
///
/// # Errors
/// The file exists but cannot be read.
pub fn read_start_only(paths: &Paths, root: &Path) -> Result<Option<String>, InstallError> {
    read_text(root, &paths.run.join(START_ONLY_FILE))
}

/// Reinstalls the files with these names that the daemons used before the last [`keep_applied`]. The replaced files become
/// `NAME.previous`. A file without a previous version is not changed.
///
/// # Errors
/// A previous file cannot be read, or a file cannot be written.
pub fn restore_applied(paths: &Paths, root: &Path, names: &[FileName]) -> Result<(), InstallError> {
    for name in names {
        let kept = directory(paths);
        let Some(text) = read_text(root, &kept.join(format!("{}.previous", name.as_str())))? else { continue };
        record_reinstalled_copy(paths, root, *name, &text)?;
        for (directory, mode) in [(&paths.slurm, name.mode()), (&kept, 0o644)] {
            replace_in(root, directory, name.as_str(), &text, mode)?;
        }
        keep_former(paths, root, &[Text { name: *name, text }])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::install_files;

    const CONF: FileName = FileName::SlurmConf;

    fn conf(text: &str) -> Text {
        Text { name: CONF, text: text.to_owned() }
    }

    #[test]
    fn rollback_restores_previously_applied_files() {
        let root = tempfile::tempdir().unwrap();
        let (paths, root) = (Paths::default(), root.path());
        let installed = root.join("etc/slurm/slurm.conf");
        for text in ["A=1\n", "A=2\n"] {
            install_files(&paths, root, &[conf(text)]).unwrap();
            keep_applied(&paths, root, &[conf(text)]).unwrap();
        }
        // A manual edit that the daemons never read is not restored.
        fs::write(&installed, "A=3\n").unwrap();
        assert_eq!(read_applied(&paths, root).unwrap(), [conf("A=2\n")]);
        restore_applied(&paths, root, &[CONF]).unwrap();
        assert_eq!(fs::read_to_string(&installed).unwrap(), "A=1\n");
        assert_eq!(fs::read_to_string(installed.with_file_name("slurm.conf.previous")).unwrap(), "A=3\n");
        assert_eq!(read_applied(&paths, root).unwrap(), [conf("A=1\n")]);
    }

    #[test]
    fn uses_installed_files_without_applied_copies() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::default();
        assert_eq!(read_applied(&paths, root.path()).unwrap(), []);
        install_files(&paths, root.path(), &[conf("A=1\n")]).unwrap();
        assert_eq!(read_applied(&paths, root.path()).unwrap().len(), 1);
        restore_applied(&paths, root.path(), &[CONF]).unwrap();
        assert_eq!(fs::read_to_string(root.path().join("etc/slurm/slurm.conf")).unwrap(), "A=1\n");
    }

    #[test]
    fn settings_of_start_are_readable_only_by_root() {
        use std::os::unix::fs::PermissionsExt as _;

        let root = tempfile::tempdir().unwrap();
        let paths = Paths::default();
        assert_eq!(read_start_only(&paths, root.path()).unwrap(), None);
        keep_start_only(&paths, root.path(), "role all\n").unwrap();
        assert_eq!(read_start_only(&paths, root.path()).unwrap().as_deref(), Some("role all\n"));
        let file = root.path().join("run/slurminit").join(START_ONLY_FILE);
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
