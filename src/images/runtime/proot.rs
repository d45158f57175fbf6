//! PRoot: traces the program with ptrace(2), and changes the paths in its system calls. It works in a plain `docker run`.

mod process;

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::ExitStatus;

use model::paths::Paths;
use sys::inherited::Inherited;

use super::binds::{Bind, LOADER, SLURMINIT_DIRECTORY};
use super::{NOT_STARTED, Program};

const PATH: &str = Paths::PROOT;
/// The variable with the directory for PRoot's temporary files.
const TEMPORARY: &str = "PROOT_TMP_DIR";

/// Whether PRoot is installed in this container.
pub(super) fn is_installed() -> bool {
    Path::new(PATH).exists()
}

/// Runs the program with PRoot and returns its exit status. The error is the reason why it cannot.
pub(super) fn run(program: &Program, inherited: &Inherited) -> Result<ExitStatus, String> {
    if !is_installed() {
        return Err(format!("{PATH} is missing"));
    }
    let executable = std::env::current_exe().map_err(|error| error.to_string())?;
    process::run(|report| {
        // PRoot must receive SIGQUIT.
        inherited.restore();
        eprintln!("slurminit: cannot execute {PATH}: {}", execute(program, &executable, report, inherited));
        i32::from(NOT_STARTED)
    })
    .map_err(|error| error.to_string())
}

/// Runs a program inside, as its parent. `report` is a descriptor of [`run`].
///
/// # Errors
/// The system refuses another process.
pub fn run_inside(report: i32, arguments: &[OsString], inherited: &Inherited) -> io::Result<u8> {
    process::run_inside(report, || {
        let environment: Vec<_> = std::env::vars_os().filter(|(name, _)| name != TEMPORARY).collect();
        inherited.restore();
        eprintln!("slurminit: {}", super::execute(arguments, &environment));
        i32::from(NOT_STARTED)
    })
}

/// Replaces this process by the program. Returns only an error.
fn execute(program: &Program, executable: &Path, report: i32, inherited: &Inherited) -> nix::Error {
    let Ok(path) = CString::new(PATH) else { return nix::Error::EINVAL };
    let mut environment = program.environment.clone();
    // The job's TMPDIR may not exist in the container.
    environment.push((TEMPORARY.into(), "/tmp".into()));
    let arguments = arguments(program, executable, report, inherited);
    let (Some(arguments), Some(environment)) = (super::c_strings(&arguments), super::c_variables(&environment)) else {
        return nix::Error::EINVAL;
    };
    let Err(error) = nix::unistd::execve(&path, &arguments, &environment);
    error
}

fn arguments(program: &Program, executable: &Path, report: i32, inherited: &Inherited) -> Vec<OsString> {
    // Verbosity -1: PRoot warns of every signal that it receives, and of a working directory that an image does not
    // have.
    let mut arguments: Vec<OsString> = ["proot", "-v", "-1", "-r"].map(OsString::from).to_vec();
    arguments.push(program.root.clone().into());
    arguments.extend(["-w".into(), program.directory.clone().into()]);
    let executable = Bind { from: executable.to_owned(), to: Path::new(SLURMINIT_DIRECTORY).join("slurminit") };
    for bind in program.binds.0.iter().chain([&executable]).filter(|bind| is_plain(&bind.from) && is_plain(&bind.to)) {
        let mut pair = bind.from.clone().into_os_string();
        if bind.from != bind.to {
            pair.push(":");
            pair.push(&bind.to);
        }
        arguments.extend(["-b".into(), pair]);
    }
    // The image may have no loader, or one of another libc.
    let slurminit_path = |name: &str| Path::new(SLURMINIT_DIRECTORY).join(name).into_os_string();
    arguments.extend([
        Path::new(SLURMINIT_DIRECTORY).join("lib").join(LOADER).into_os_string(),
        "--library-path".into(),
        slurminit_path("lib"),
    ]);
    arguments.extend([slurminit_path("slurminit"), "oci".into(), "--inside".into(), report.to_string().into()]);
    arguments.extend(["--inherited".into(), serde_json::to_string(inherited).unwrap_or_default().into(), "--".into()]);
    arguments.extend(program.arguments.iter().cloned());
    arguments
}

/// A colon separates PRoot's two paths.
fn is_plain(path: &Path) -> bool {
    !path.as_os_str().as_bytes().contains(&b':')
}
