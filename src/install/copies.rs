//! Which of Slurm's files are copies of the operator's.
//!
//! A copy has the original's marker line, so by its text alone it would stay a person's own file when the original is gone.
//! What was copied is noted beside it: the note must live as long as the copy does.

use std::fs;
use std::path::{Path, PathBuf};

use super::{InstallError, atomic, sibling, under};
use crate::config::Paths;
use crate::plan::{Customized, FileName, Origin};

/// The directory of the notes, in Slurm's directory.
const DIRECTORY: &str = ".copied";

fn note(paths: &Paths, name: FileName) -> PathBuf {
    paths.slurm.join(DIRECTORY).join(name.as_str())
}

/// Notes which of the files that are about to be installed are copies. The former note stays, for a reload that is taken
/// back installs the former copy again.
///
/// # Errors
/// The first that cannot be written.
pub fn note_copies(paths: &Paths, root: &Path, customized: &Customized) -> Result<(), InstallError> {
    for file in customized.files.iter().filter(|file| file.origin == Origin::Config) {
        let note = note(paths, file.name);
        let directory = paths.slurm.join(DIRECTORY);
        fs::create_dir_all(under(root, &directory)).map_err(|error| InstallError::directory(&directory, error))?;
        atomic::replace(&under(root, &note), file.text.as_bytes(), 0o644)
            .map_err(|error| InstallError::write(&note, error))?;
    }
    Ok(())
}

/// Notes that `text` is what is installed again, if it was a copy.
///
/// # Errors
/// The note cannot be written.
pub(super) fn copied_again(paths: &Paths, root: &Path, name: FileName, text: &str) -> Result<(), InstallError> {
    if !is_copy(paths, root, name, text) {
        return Ok(());
    }
    let note = note(paths, name);
    let written = atomic::replace(&under(root, &note), text.as_bytes(), 0o644);
    written.map(drop).map_err(|error| InstallError::write(&note, error))
}

/// Whether a file of Slurm's is what was copied there last, or before that. One that a person changed since is theirs.
pub(super) fn is_copy(paths: &Paths, root: &Path, name: FileName, text: &str) -> bool {
    let note = under(root, &note(paths, name));
    [sibling(&note, ".previous"), note].iter().any(|note| fs::read(note).is_ok_and(|noted| noted == text.as_bytes()))
}
