//! The record, in the run directory, of the partitions that a reload has closed: see `startup::prepare`.

use std::path::Path;

use super::{InstallError, read_text, replace_in};
use config::Paths;
use sys::trusted_path;

/// The name of the file, which contains one partition on each line.
const FILE: &str = "closed-partitions";

/// Records the partitions that are about to be closed.
///
/// # Errors
/// The file cannot be written.
pub fn record_closed_partitions(paths: &Paths, root: &Path, names: &[String]) -> Result<(), InstallError> {
    replace_in(root, &paths.run, FILE, &names.join("\n"), 0o644).map(drop)
}

/// The recorded partitions.
///
/// # Errors
/// The file exists but cannot be read.
pub fn closed_partitions(paths: &Paths, root: &Path) -> Result<Vec<String>, InstallError> {
    let text = read_text(root, &paths.run.join(FILE))?.unwrap_or_default();
    Ok(text.lines().map(str::to_owned).collect())
}

/// Removes the record.
///
/// # Errors
/// The file exists but cannot be removed, or the run directory is untrusted.
pub fn forget_closed_partitions(paths: &Paths, root: &Path) -> Result<(), InstallError> {
    let run = match trusted_path::open(root, &paths.run) {
        Err(untrusted) if untrusted.is_missing() => return Ok(()),
        run => run?,
    };
    run.remove(FILE).map_err(|error| InstallError::write(&paths.run.join(FILE), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_recorded_partitions() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::default();
        forget_closed_partitions(&paths, root.path()).unwrap();
        std::fs::create_dir_all(crate::under(root.path(), &paths.run)).unwrap();
        assert_eq!(closed_partitions(&paths, root.path()).unwrap(), [""; 0]);
        let names = ["gpu", "cpu"].map(str::to_owned);
        record_closed_partitions(&paths, root.path(), &names).unwrap();
        assert_eq!(closed_partitions(&paths, root.path()).unwrap(), names);
        forget_closed_partitions(&paths, root.path()).unwrap();
        assert_eq!(closed_partitions(&paths, root.path()).unwrap(), [""; 0]);
        forget_closed_partitions(&paths, root.path()).unwrap();
    }
    #[test]
    fn record_that_cannot_be_removed_is_error() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::default();
        std::fs::create_dir_all(crate::under(root.path(), &paths.run.join(FILE))).unwrap();
        let error = forget_closed_partitions(&paths, root.path()).unwrap_err().to_string();
        assert!(error.contains("/run/slurminit/closed-partitions: "), "{error}");
    }
}
