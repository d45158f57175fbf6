//! Runs Slurm's commands that pass their environment to a job, without the secrets in the container's environment and the variables of an outer job.
//!
//! `docker exec` passes the container's environment to srun, sbatch and salloc, and slurmctld saves the environment of a batch job. No setting of
//! Slurm removes a variable before that: cli_filter.lua cannot, and a TaskProlog runs after it. So the image's /usr/local/bin contains links with the
//! names of these commands. The links point to slurminit, which executes Slurm's own commands.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::output::error_line;
use images::runtime::{TYPED_PATHS, typed_paths};
use install::{exposure, load_config};
use model::{exit_code, printable};
use sys::link_protection;
use sys::{inherited, outer_job, secret_variables};

/// The commands that slurminit replaces.
const NAMES: [&str; 3] = ["salloc", "sbatch", "srun"];
/// The directory of Slurm's own commands.
const DIRECTORY: &str = "/usr/bin";

/// Executes srun, sbatch or salloc if this program was called by that name. Returns the exit code if the execution fails, and `None` if the
/// program was called by another name.
pub fn execute_by_name() -> Option<u8> {
    let mut words = std::env::args_os();
    let called = words.next()?;
    let name = NAMES.into_iter().find(|name| Path::new(&called).file_name() == Some(OsStr::new(name)))?;
    inherited::unblock();
    let arguments: Vec<OsString> = words.collect();
    if name == "sbatch" && nix::unistd::geteuid().is_root() {
        let directory = untrusted_output_directory(&arguments, Path::new("/"));
        if let Some(directory) = directory.filter(|_| has_users()) {
            let (directory, fix) = (
                directory.to_string_lossy(),
                "submit as an ordinary user, or choose an output directory that only root can write to",
            );
            let directory = printable::line(&directory);
            error_line(format_args!(
                "slurminit: warning: users can place links where root's job writes, in {directory}; {fix}"
            ));
        }
    }
    let program = Path::new(DIRECTORY).join(name);
    let mut command = Command::new(&program);
    command.arg0(called).args(&arguments);
    secret_variables::remove_from(&mut command);
    // srun in a job takes its defaults from the job's request. sbatch and salloc must not: they request another allocation.
    match name {
        "srun" => {
            outer_job::remove_from(&mut command);
            if uses_image(&arguments) {
                command.env(TYPED_PATHS, typed_paths(&arguments));
            }
        }
        _ => outer_job::remove_request_from(&mut command),
    }
    let error = command.exec();
    error_line(format_args!("slurminit: {}: {error}", program.display()));
    let is_missing = error.kind() == std::io::ErrorKind::NotFound;
    Some(if is_missing { exit_code::CMD_NOT_FOUND } else { exit_code::CMD_NOT_EXECUTABLE })
}

/// Whether a step may run in an image.
fn uses_image(arguments: &[OsString]) -> bool {
    std::env::var_os("SLURM_CONTAINER").is_some() || arguments.iter().any(|word| word.as_bytes().starts_with(b"--cont"))
}

/// Whether users other than root can run processes in this container; true if the configuration cannot be read.
fn has_users() -> bool {
    load_config::load(None).map_or(true, |config| exposure::ordinary_user(&config, Path::new("/")).is_some())
}

/// The directory of a batch job's output according to the command line, if another user could place a link or file there that root's job would open.
fn untrusted_output_directory(arguments: &[OsString], root: &Path) -> Option<PathBuf> {
    let base = option(arguments, "-D", "--chdir").map_or_else(|| PathBuf::from("."), PathBuf::from);
    let output = option(arguments, "-o", "--output").map(|output| base.join(output));
    let directory = match output.as_deref().map(Path::parent) {
        Some(parent) => parent?.to_owned(),
        None => base,
    };
    let directory = fs::canonicalize(directory).ok()?;
    let metadata = fs::metadata(&directory).ok()?;
    let is_writable = metadata.mode() & 0o002 != 0 || metadata.mode() & 0o020 != 0 && metadata.gid() != 0;
    let is_protected =
        metadata.uid() == 0 && metadata.mode() & 0o1002 == 0o1002 && link_protection::missing(root).is_empty();
    ((metadata.uid() != 0 || is_writable) && !is_protected).then_some(directory)
}

/// The value of the last occurrence of an option on sbatch's command line.
fn option<'a>(arguments: &'a [OsString], short: &str, long: &str) -> Option<&'a OsStr> {
    let value = |(at, word): (usize, &'a OsString)| {
        let rest = [short, long].into_iter().find_map(|name| word.as_bytes().strip_prefix(name.as_bytes()))?;
        match rest {
            [] => arguments.get(at + 1).map(OsString::as_os_str),
            [b'=', rest @ ..] if word.as_bytes().starts_with(long.as_bytes()) => Some(OsStr::from_bytes(rest)),
            rest if !word.as_bytes().starts_with(b"--") => Some(OsStr::from_bytes(rest)),
            _ => None,
        }
    };
    arguments.iter().enumerate().filter_map(value).next_back()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn finds_value_of_option_in_each_form() {
        for line in ["-o /a", "-o/a", "--output=/a", "--output /a", "--output=/b -o /a", "--output-x=/b -o/a"] {
            assert_eq!(option(&words(line), "-o", "--output"), Some(OsStr::new("/a")), "{line}");
        }
        assert_eq!(option(&words("--open-mode=append --out"), "-o", "--output"), None);
    }

    #[test]
    fn step_may_use_image_that_its_options_name() {
        assert!(uses_image(&words("-n1 --container=tools hostname")) && uses_image(&words("--cont tools hostname")));
        assert!(!uses_image(&words("-n1 --con hostname")), "an abbreviation of several options");
    }

    #[test]
    fn warns_of_directory_in_which_another_user_can_place_files() {
        let root = tempfile::tempdir().unwrap();
        let protect = |value: &str| {
            fs::create_dir_all(root.path().join("proc/sys/fs")).unwrap();
            for name in link_protection::NAMES {
                fs::write(root.path().join("proc/sys/fs").join(name), value).unwrap();
            }
        };
        let directory = root.path().join("data");
        fs::create_dir(&directory).unwrap();
        let is_untrusted = |mode: u32| {
            fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
            let line = format!("--chdir={} job.sh", directory.display());
            let relative = untrusted_output_directory(&words(&line), root.path());
            let absolute =
                untrusted_output_directory(&words(&format!("-o {}/out job.sh", directory.display())), root.path());
            assert_eq!(relative, absolute, "{mode:o}");
            relative.is_some()
        };
        // If this test runs as an ordinary user, that user owns the directory, so it is never trusted.
        let is_root = nix::unistd::geteuid().is_root();
        protect("0\n");
        assert_eq!([0o755, 0o1777, 0o777].map(is_untrusted), [!is_root, true, true]);
        protect("1\n");
        assert_eq!([0o755, 0o1777, 0o777].map(is_untrusted), [!is_root, !is_root, true]);
    }
}
