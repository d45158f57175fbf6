//! PRoot traces the program with ptrace(2), and changes the paths in its system calls. It works in a plain `docker run`.

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
        // This unblocks the signals: PRoot must receive SIGQUIT.
        inherited.restore();
        eprintln!("slurminit: cannot execute {PATH}: {}", execute(&program, report, inherited));
        i32::from(NOT_STARTED)
    })
    .map_err(|error| error.to_string())
}

/// Creates the mount points that are missing in the image, and leaves them there. Otherwise PRoot would create them and, when it ends, remove
/// them although other steps use them. In another user's image the creation fails, and PRoot uses a temporary directory instead.
fn make_mount_points(program: &Program) {
    let Ok(root) = File::open(&program.root) else { return };
    let mut tree = Tree::new(root.into(), Budget { bytes: 0, entries: u64::MAX });
    for bind in &program.binds.0 {
        let _ = tree.mount_point(bind.to.as_os_str().as_bytes(), bind.from.is_dir());
    }
}

/// Runs the step's program as a child of this process, which runs under PRoot. `report` and `environment` are descriptors inherited from `run`.
///
/// # Errors
/// The environment cannot be read, the child process cannot be created, or its PID or exit status cannot be reported.
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

/// Replaces this process by PRoot, which runs a program of this container. Returns only the reason why that is not possible.
pub(super) fn probe() -> String {
    let arguments = ["proot", "-v", "-1", "-r", "/", "/bin/true"].map(OsString::from);
    match loader::check_directory() {
        _ if !is_installed() => format!("{PATH} is missing"),
        Err(why) => why,
        Ok(()) => format!("cannot execute {PATH}: {}", become_proot(&arguments)),
    }
}

/// Creates an unnamed file in memory, with this content.
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
    // slurminit is started by the loader of this container: the image may have no loader, or that of another libc.
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

#[cfg(test)]
mod tests {
    use crate::runtime::Bind;
    use crate::runtime::binds::Binds;

    use super::*;

    #[test]
    fn proot_binds_plain_paths_and_runs_slurminit_with_its_own_loader() {
        let bind = |from: &str, to: &str| Bind { from: from.into(), to: to.into(), is_read_only: false };
        let binds = [bind("/proc", "/proc"), bind("/srv/a", "/mnt"), bind("/a:b", "/c"), bind("/c", "/a:b")];
        let program = Program {
            root: "/images/x".into(),
            directory: "/home/alice".into(),
            arguments: ["sh", "-c", "true"].map(OsString::from).to_vec(),
            environment: Vec::new(),
            binds: Binds(binds.to_vec()),
            is_read_only: false,
        };
        let signals = r#"{"mask":1,"ignored":[13],"umask":18}"#;
        let inherited = serde_json::from_str(signals).unwrap();
        let found = arguments(&program, Descriptors { report: 5, environment: 6 }, &inherited);
        let loader = format!("/.slurminit/lib/{LOADER}");
        let proot = ["proot", "-v", "-1", "-r", "/images/x", "-w", "/home/alice", "-b", "/proc", "-b", "/srv/a:/mnt"];
        let inside = [&loader, "--library-path", "/.slurminit/lib", "/.slurminit/slurminit", "oci", "--inside", "5"];
        let program = ["--variables", "6", "--inherited", signals, "--", "sh", "-c", "true"];
        assert_eq!(found, [&proot[..], &inside, &program].concat());
    }
}
