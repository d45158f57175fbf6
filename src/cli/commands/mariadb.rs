//! `slurminit mariadb`: makes the database from the image's template if there is none, and becomes mariadbd.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// An empty database
    #[arg(long)]
    template: PathBuf,
    /// The database
    #[arg(long)]
    data: PathBuf,
    /// mariadbd and its arguments
    #[arg(required = true, last = true)]
    command: Vec<String>,
}

/// PID 1 runs it as the database's user, to whom all belongs that it writes.
pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    if !args.data.try_exists().with_context(|| format!("cannot look at {}", args.data.display()))? {
        make(&args.template, &args.data).with_context(|| {
            format!(
                "cannot make the database {} from {}; if there is no such directory, the image was not built with --target accounting",
                args.data.display(),
                args.template.display()
            )
        })?;
    }
    let (program, arguments) = args.command.split_first().context("no command")?;
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| {
        format!("`{program}` cannot be executed; build the image with --target accounting, or set mode of [accounting]")
    })
}

/// A start that is killed meanwhile leaves nothing that looks like a database.
fn make(template: &Path, data: &Path) -> io::Result<()> {
    let new = data.with_extension("new");
    match fs::remove_dir_all(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    copy(template, &new)?;
    fs::rename(&new, data)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?
        } else {
            fs::copy(entry.path(), target).map(drop)?
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_copy_is_made_anew() {
        let root = tempfile::tempdir().unwrap();
        let (template, data) = (root.path().join("template"), root.path().join("data"));
        fs::create_dir_all(template.join("mysql")).unwrap();
        fs::write(template.join("mysql/user.frm"), "x").unwrap();
        fs::create_dir_all(root.path().join("data.new/half")).unwrap();
        make(&template, &data).unwrap();
        assert_eq!(fs::read(data.join("mysql/user.frm")).unwrap(), b"x");
        assert!(!data.join("half").exists() && !root.path().join("data.new").exists());
        assert!(make(&root.path().join("missing"), &root.path().join("other")).is_err());
        assert!(!root.path().join("other").exists());
    }
}
