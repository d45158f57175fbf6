//! `slurminit-manual DIRECTORY` writes the manual pages to DIRECTORY/man and the completions to DIRECTORY/completions.

use std::fs;
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err(std::io::Error::other("usage: slurminit-manual DIRECTORY"));
    };
    for (name, text) in manual::files() {
        let path = directory.join(name);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, text)?;
    }
    Ok(())
}
