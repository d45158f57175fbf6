//! PRoot: traces the program with ptrace(2), and changes the paths in its system calls. It works in a plain `docker run`.

mod loader;
mod process;

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::ExitStatus;

use model::paths::Paths;
use nix::sys::memfd::{MFdFlags, memfd_create};
use sys::inherited::Inherited;
use sys::system_calls::adopt_descriptor;

use super::binds::{LOADER, SLURMINIT_DIRECTORY};
use super::{NOT_STARTED, Program, environment};
use crate::tree::{Budget, Tree};

const PATH: &str = Paths::PROOT;

/// Whether PRoot is installed in this container.
pub(super) fn is_installed() -> bool {
    Path::new(PATH).exists()
}

/// Runs the program with PRoot and returns its exit status. The error is the reason why PRoot cannot run it.
pub(super) fn run(mut program: Program, inherited: &Inherited) -> Result<ExitStatus, String> {
    if !is_installed() {
        return Err(format!("{PATH} is missing"));
    }
    loader::check_directory()?;
    let executable = std::env::current_exe().map_err(|error| error.to_string())?;
    program.binds.add(&executable, &Path::new(SLURMINIT_DIRECTORY).join("slurminit"));
    make_mount_points(&program);
    process::run(|report| {
        // PRoot must receive SIGQUIT.
        inherited.restore();
        eprintln!("slurminit: cannot execute {PATH}: {}", execute(&program, report, inherited));
        i32::from(NOT_STARTED)
    })
    .map_err(|error| error.to_string())
}

/// Creates the mount points that are missing in the image, and leaves them there. If this user owns the image, PRoot would create them, and would
/// remove them when it ends, while other steps use them. In an image of another user this fails, and PRoot uses a directory of its own.
fn make_mount_points(program: &Program) {
    let Ok(root) = File::open(&program.root) else { return };
    let mut tree = Tree::new(root.into(), Budget { bytes: 0, entries: u64::MAX });
    for bind in &program.binds.0 {
        let _ = tree.mount_point(bind.to.as_os_str().as_bytes(), bind.from.is_dir());
    }
}

/// Runs a program inside, as its parent. `report` and `environment` are descriptors of `run`.
///
/// # Errors
/// The system refuses another process, or the environment cannot be read.
pub fn run_inside(report: i32, environment: i32, arguments: &[OsString], inherited: &Inherited) -> io::Result<u8> {
    let mut text = Vec::new();
    let mut file = File::from(adopt_descriptor(environment));
    file.rewind()?;
    file.read_to_end(&mut text)?;
    drop(file);
    process::run_inside(report, || {
        inherited.restore();
        eprintln!("slurminit: {}", super::execute(arguments, &environment::parse(&text)));
        i32::from(NOT_STARTED)
    })
}

/// Replaces this process by PRoot. Returns only an error. PRoot runs outside of the image, where variables of the step or of the image, such as
/// `LD_PRELOAD`, could make it load foreign code. So PRoot gets none of these variables. The program inside gets them through an unnamed file.
fn execute(program: &Program, report: i32, inherited: &Inherited) -> nix::Error {
    let text = environment::text(&program.environment);
    let environment = match memory_file("slurminit environment", &text, MFdFlags::empty()) {
        Ok(file) => file,
        Err(error) => return nix::Error::from_raw(error.raw_os_error().unwrap_or_default()),
    };
    let descriptors = Descriptors { report, environment: environment.as_raw_fd() };
    become_proot(&arguments(program, descriptors, inherited))
}

/// Replaces this process by PRoot. Returns only an error.
fn become_proot(arguments: &[OsString]) -> nix::Error {
    let variables = match loader::variables() {
        Ok(variables) => variables,
        Err(error) => return nix::Error::from_raw(error.raw_os_error().unwrap_or_default()),
    };
    let (Ok(path), Some(arguments), Some(variables)) =
        (CString::new(PATH), super::c_strings(arguments), super::c_variables(&variables))
    else {
        return nix::Error::EINVAL;
    };
    let Err(error) = nix::unistd::execve(&path, &arguments, &variables);
    error
}

/// Runs a program of this container with PRoot as an ordinary user does. Returns only the reason why it cannot.
pub(super) fn probe() -> String {
    let arguments = ["proot", "-v", "-1", "-r", "/", "/bin/true"].map(OsString::from);
    match loader::check_directory() {
        _ if !is_installed() => format!("{PATH} is missing"),
        Err(why) => why,
        Ok(()) => format!("cannot execute {PATH}: {}", become_proot(&arguments)),
    }
}

/// Creates an unnamed file.
fn memory_file(name: &str, content: &[u8], flags: MFdFlags) -> io::Result<File> {
    let mut file = File::from(memfd_create(name, flags)?);
    file.write_all(content)?;
    Ok(file)
}

/// The descriptors for [`run_inside`].
struct Descriptors {
    report: i32,
    environment: i32,
}

fn arguments(program: &Program, descriptors: Descriptors, inherited: &Inherited) -> Vec<OsString> {
    // Verbosity -1, because otherwise PRoot warns of every signal that it receives, and of a working directory that an
    // image does not have.
    let mut arguments: Vec<OsString> = ["proot", "-v", "-1", "-r"].map(OsString::from).to_vec();
    arguments.push(program.root.clone().into());
    arguments.extend(["-w".into(), program.directory.clone().into()]);
    for bind in program.binds.0.iter().filter(|bind| is_plain(&bind.from) && is_plain(&bind.to)) {
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
    arguments.extend([
        slurminit_path("slurminit"),
        "oci".into(),
        "--inside".into(),
        descriptors.report.to_string().into(),
    ]);
    arguments.extend(["--variables".into(), descriptors.environment.to_string().into()]);
    arguments.extend(["--inherited".into(), serde_json::to_string(inherited).unwrap_or_default().into(), "--".into()]);
    arguments.extend(program.arguments.iter().cloned());
    arguments
}

/// Whether PRoot can bind the path: a colon separates the two paths of its option.
fn is_plain(path: &Path) -> bool {
    !path.as_os_str().as_bytes().contains(&b':')
}
