//! `slurminit mariadb`: creates the database from the image's template if it does not exist, and executes mariadbd.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use sys::report;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The template: the directory of an empty database
    #[arg(long)]
    template: PathBuf,
    /// The directory of the database
    #[arg(long)]
    data: PathBuf,
    /// mariadbd and its arguments
    #[arg(required = true, last = true)]
    command: Vec<String>,
}

/// PID 1 runs this verb as the database's user, who therefore owns all files that the verb writes.
pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    if !args.data.try_exists().with_context(|| format!("cannot access {}", args.data.display()))? {
        make(&args.template, &args.data).with_context(|| {
            format!(
                "cannot create the database {} from the template {}; if the template does not exist, build the image with --target full",
                args.data.display(),
                args.template.display()
            )
        })?;
    }
    let (program, arguments) = args.command.split_first().context("no command")?;
    let error = report::end(Command::new(program).args(arguments)).exec();
    Err(error).with_context(|| {
        format!(
            "`{program}` cannot be executed; build the image with --target full, or set another `mode` in [accounting]"
        )
    })
}

/// Copies the template under a temporary name, so that an interrupted start leaves no partial database.
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
    fn replaces_partial_copy() {
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
