//! Which of Slurm's files are copies of the operator's.
//!
//! A copy has the original's marker line, so by its text alone it would stay a person's own file when the original is gone.
//! What was copied is noted beside it: the note must live as long as the copy does.

use std::path::{Path, PathBuf};

use super::{InstallError, replace_in, under};
use crate::config::Paths;
use crate::plan::{Customized, FileName, Origin};
use crate::walk;

/// The directory of the notes, in Slurm's directory.
const DIRECTORY: &str = ".copied";

fn directory(paths: &Paths) -> PathBuf {
    paths.slurm.join(DIRECTORY)
}

/// Notes which of the files that are about to be installed are copies. The former note stays, for a reload that is taken
/// back installs the former copy again.
///
/// # Errors
/// The first that cannot be written.
pub fn note_copies(paths: &Paths, root: &Path, customized: &Customized) -> Result<(), InstallError> {
    for file in customized.files.iter().filter(|file| file.origin == Origin::Config) {
        replace_in(root, &directory(paths), file.name.as_str(), &file.text, 0o644)?;
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
    replace_in(root, &directory(paths), name.as_str(), text, 0o644).map(drop)
}

/// Whether a file of Slurm's is what was copied there last, or before that. One that a person changed since is theirs.
pub(super) fn is_copy(paths: &Paths, root: &Path, name: FileName, text: &str) -> bool {
    let notes = [name.as_str().to_owned(), format!("{}.previous", name.as_str())];
    notes.iter().any(|note| {
        let note = under(root, &directory(paths).join(note));
        walk::read(&note).is_ok_and(|noted| noted == text.as_bytes())
    })
}
