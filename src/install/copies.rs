//! Records which of Slurm's files are copies of the operator's files.
//!
//! A copy contains the original's marker line, so without a record it would be mistaken for the user's own file after the removal of the original.
//! The record is beside the copy, so that it exists as long as the copy.

use std::path::{Path, PathBuf};

use super::{InstallError, replace_in};
use config::Paths;
use plan::{Customized, FileName, Origin};
use sys::trusted_path;
use sys::under;

/// The directory of the records, in Slurm's directory.
const DIRECTORY: &str = ".copied";

fn directory(paths: &Paths) -> PathBuf {
    paths.slurm.join(DIRECTORY)
}

/// Records which of the files about to be installed are copies. The previous record is kept, because undoing a reload
/// reinstalls the previous copy.
///
/// # Errors
/// The first record that cannot be written.
pub fn record_copies(paths: &Paths, root: &Path, customized: &Customized) -> Result<(), InstallError> {
    for file in customized.files.iter().filter(|file| file.origin == Origin::Config) {
        replace_in(root, &directory(paths), file.name.as_str(), &file.text, 0o644)?;
    }
    Ok(())
}

/// Records that `text` was reinstalled, if it was a copy.
///
/// # Errors
/// The record cannot be written.
pub(super) fn record_reinstalled_copy(
    paths: &Paths,
    root: &Path,
    name: FileName,
    text: &str,
) -> Result<(), InstallError> {
    if !is_copy(paths, root, name, text) {
        return Ok(());
    }
    replace_in(root, &directory(paths), name.as_str(), text, 0o644).map(drop)
}

/// Whether a file is one of the last two copies made. A file that has been edited since then belongs to the operator.
pub(super) fn is_copy(paths: &Paths, root: &Path, name: FileName, text: &str) -> bool {
    let records = [name.as_str().to_owned(), format!("{}.previous", name.as_str())];
    records.iter().any(|record| {
        let record = under(root, &directory(paths).join(record));
        trusted_path::read(&record).is_ok_and(|content| content == text.as_bytes())
    })
}
