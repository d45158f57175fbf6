//! What the daemons were last given to run with: copies of Slurm's files in the run directory.
//!
//! The installed files may be ahead of the daemons: a reload was cut short, or a person edited one in place. A reload
//! compares with these copies, and its way back leads to them.

use std::io;
use std::path::{Path, PathBuf};

use super::{InstallError, atomic, under};
use crate::config::Paths;
use crate::plan::{FileName, Text};
use crate::walk;

/// Their directory in the run directory.
const DIRECTORY: &str = "applied";

fn directory(paths: &Paths) -> PathBuf {
    paths.run.join(DIRECTORY)
}

/// Reads what the daemons run with; where no copy was kept, what is installed.
///
/// # Errors
/// A file that is there and cannot be read as text.
pub fn read_applied(paths: &Paths, root: &Path) -> Result<Vec<Text>, InstallError> {
    let mut found = Vec::new();
    for name in FileName::WRITTEN {
        let kept = read(root, &directory(paths).join(name.as_str()))?;
        let text = match kept {
            Some(text) => Some(text),
            None => read(root, &paths.slurm.join(name.as_str()))?,
        };
        found.extend(text.map(|text| Text { name, text }));
    }
    Ok(found)
}

/// Keeps copies of what the daemons are about to run with; the former ones stay for [`restore_applied`].
///
/// # Errors
/// The first that cannot be written.
pub fn keep_applied(paths: &Paths, root: &Path, files: &[(FileName, &str)]) -> Result<(), InstallError> {
    let directory = directory(paths);
    let (real, _) = walk::make(root, &directory, &mut Vec::new())?;
    real.require_ours()?;
    for (name, text) in files {
        atomic::replace(&real, name.as_str(), text.as_bytes(), 0o644)
            .map_err(|error| InstallError::write(&directory.join(name.as_str()), error))?;
    }
    Ok(())
}

/// Installs again what the daemons ran with before the last [`keep_applied`] changed it. What stood there becomes
/// `NAME.previous`. A file that there was not before stays.
///
/// # Errors
/// A former file that cannot be read, or the first that cannot be written.
pub fn restore_applied(paths: &Paths, root: &Path, names: &[FileName]) -> Result<(), InstallError> {
    for name in names {
        let kept = directory(paths);
        let Some(text) = read(root, &kept.join(format!("{}.previous", name.as_str())))? else { continue };
        for (directory, mode) in [(&paths.slurm, name.mode()), (&kept, 0o644)] {
            let real = walk::open(root, directory)?;
            real.require_ours()?;
            atomic::replace(&real, name.as_str(), text.as_bytes(), mode)
                .map_err(|error| InstallError::write(&directory.join(name.as_str()), error))?;
        }
    }
    Ok(())
}

fn read(root: &Path, path: &Path) -> Result<Option<String>, InstallError> {
    match walk::read(&under(root, path)) {
        Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(|_| InstallError::NotText { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(InstallError::Read { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::install::install_files;

    const CONF: FileName = FileName::SlurmConf;

    #[test]
    fn the_way_back_leads_to_what_the_daemons_ran_with() {
        let root = tempfile::tempdir().unwrap();
        let (paths, root) = (Paths::default(), root.path());
        let installed = root.join("etc/slurm/slurm.conf");
        for text in ["A=1\n", "A=2\n"] {
            install_files(&paths, root, &[(CONF, text)]).unwrap();
            keep_applied(&paths, root, &[(CONF, text)]).unwrap();
        }
        // A person's edit, which the daemons never saw, is not what is gone back to.
        fs::write(&installed, "A=3\n").unwrap();
        assert_eq!(read_applied(&paths, root).unwrap(), [Text { name: CONF, text: "A=2\n".to_owned() }]);
        restore_applied(&paths, root, &[CONF]).unwrap();
        assert_eq!(fs::read_to_string(&installed).unwrap(), "A=1\n");
        assert_eq!(fs::read_to_string(installed.with_file_name("slurm.conf.previous")).unwrap(), "A=3\n");
        assert_eq!(read_applied(&paths, root).unwrap(), [Text { name: CONF, text: "A=1\n".to_owned() }]);
    }

    #[test]
    fn without_copies_the_installed_files_count() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::default();
        assert_eq!(read_applied(&paths, root.path()).unwrap(), []);
        install_files(&paths, root.path(), &[(CONF, "A=1\n")]).unwrap();
        assert_eq!(read_applied(&paths, root.path()).unwrap().len(), 1);
        restore_applied(&paths, root.path(), &[CONF]).unwrap();
        assert_eq!(fs::read_to_string(root.path().join("etc/slurm/slurm.conf")).unwrap(), "A=1\n");
    }
}
