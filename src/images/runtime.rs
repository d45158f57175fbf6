//! Runs a step of a job in an image. slurmstepd runs slurminit as its OCI runtime, as the job's user, so slurminit has no
//! more rights than the job.
//!
//! In namespaces the step's process becomes the program in the image by exec, so signals, terminals and exit codes are those of a step without an
//! image. Under PRoot the step's process is the parent of PRoot (`proot/process`).

mod binds;
mod bundle;
mod driver;
mod environment;
mod fit;
mod namespaces;
mod proot;
mod step;

pub use binds::Bind;
pub use bundle::Bundle;
pub use environment::{Variable, parse as parse_environment};
pub use proot::run_inside;

use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;

use nix::unistd::geteuid;
use sys::inherited::Inherited;
use sys::system_calls::{SignalAction, kill, set_action};
use sys::trusted_path::UntrustedPath;

use super::{ImageError, Importer, Puller, Store};
use binds::Binds;
use step::Step;

/// The variable with the text of slurmstepd's command, which contains the arguments of the step.
pub const STEP_VARIABLE: &str = "SLURMINIT_STEP";

/// The variable with the absolute paths in srun's arguments ([`typed_paths`]). It is set by slurminit when run as `/usr/local/bin/srun`, and by
/// `docker/image-client`.
pub const TYPED_PATHS: &str = "SLURMINIT_TYPED_PATHS";
/// The maximum length of the variable's value in bytes, without its last separator and position.
const MAX_TYPED_PATHS: usize = 4096;

/// Why a step cannot run in its image.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message describes the variant")]
pub enum RuntimeError {
    #[error(
        "{STEP_VARIABLE} is missing, or does not have the form that slurmstepd writes; this command is for slurmstepd alone (oci.conf)"
    )]
    NotAStep,
    #[error(
        "no image {name}: looked in {directories}; `slurminit image list` shows the images; for a directory, write ./{name}"
    )]
    NoImage { name: String, directories: String },
    #[error("invalid image {text}: {why}")]
    Reference { text: String, why: String },
    #[error(
        "cannot open the directory {path}: {error}; specify the name of an image, docker://[REGISTRY/]IMAGE, or the directory of an OCI bundle"
    )]
    NoBundle { path: PathBuf, error: std::io::Error },
    #[error("invalid config.json in {path}: {why}")]
    Configuration { path: PathBuf, why: String },
    #[error("cannot read {path}: {error}")]
    Read { path: PathBuf, error: std::io::Error },
    #[error("untrusted environment of the step, {path}: {why}")]
    Environment { path: PathBuf, why: String },
    #[error("{0}; root runs only images that no other user can change")]
    Untrusted(UntrustedPath),
    #[error(
        "this container can neither create user namespaces ({namespaces}) nor run PRoot ({proot})\n\
         fix: install proot in slurminit's image if it is missing, or docker run --security-opt seccomp=docker/seccomp-userns.json"
    )]
    NoBackend { namespaces: String, proot: String },
    #[error("{0}")]
    Enter(String),
    #[error(
        "the bundle mounts {path} read-only, which PRoot cannot do, and user namespaces are refused ({namespaces})\n\
         fix: docker run --security-opt seccomp=docker/seccomp-userns.json, or remove `ro` from the mount"
    )]
    Writable { path: PathBuf, namespaces: String },
    #[error("cannot execute {program} in the image: {error}{}", missing_file(error))]
    Execute { program: String, error: std::io::Error },
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// An explanation of a missing file, because the kernel returns the same error for a missing interpreter; empty for other errors.
fn missing_file(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => "; this program or its interpreter is missing in the image",
        _ => "",
    }
}

/// The method that changes a program's root directory to that of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// User and mount namespaces: native speed.
    Namespaces,
    /// PRoot: it traces the programs and changes the paths in their system calls.
    Proot,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Namespaces => "namespaces",
            Self::Proot => "proot",
        })
    }
}

/// The settings of the runtime. oci.conf contains the paths and the CUDA release.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The directory of the images that all users share.
    pub images: PathBuf,
    /// Slurm's configuration directory.
    pub slurm: PathBuf,
    /// The directory of munge's socket.
    pub munge: PathBuf,
    /// Further directories that are available in images: `[images] mounts`.
    pub mounts: Vec<PathBuf>,
    /// The directory with a directory for each user, in which slurmstepd writes the environment of steps.
    pub bundles: PathBuf,
    /// The file with the step's environment, written by slurmstepd.
    pub environment: PathBuf,
    /// The newest CUDA release that the driver supports, if known.
    pub cuda: Option<String>,
    /// The current time, in seconds since 1970.
    pub now: u64,
    /// A function that receives the progress of a pull.
    pub report: fn(&str),
}

impl Setup {
    /// The puller for a step with this environment. Root pulls into the store of all users, any other user into their own.
    fn puller(&self, stores: &[Store], environment: &[Variable]) -> Puller {
        let store = if geteuid().is_root() { stores.last() } else { stores.first() };
        let store = store.cloned().unwrap_or_else(|| Store::shared(self.images.clone()));
        let importer = Importer::new(store, self.now);
        // One line for each node of a step is enough, so only the node's first task reports.
        let is_first = environment.iter().all(|(name, value)| name != "SLURM_LOCALID" || value == "0");
        let report = if is_first { self.report } else { |_: &str| {} };
        Puller { importer, environment: Some(environment.to_vec()), report }
    }
}

/// The program to execute, with its directories, arguments, environment and binds.
#[derive(Debug)]
struct Program {
    root: PathBuf,
    directory: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<Variable>,
    binds: Binds,
    /// Whether the image's files are read-only.
    is_read_only: bool,
}

/// The exit code of a step that could not be started: in a shell, the code of a command that cannot be executed.
pub const NOT_STARTED: u8 = 126;

/// Runs the step's program in its image. In namespaces this process becomes the program. Under PRoot it returns the program's exit code, or ends
/// by the program's signal.
///
/// # Errors
/// The step could not be started. If PRoot cannot execute the program, the result is [`NOT_STARTED`] instead.
pub fn run(setup: &Setup) -> Result<u8, RuntimeError> {
    let text = std::env::var_os(STEP_VARIABLE).ok_or(RuntimeError::NotAStep)?;
    let step = Step::parse(text.as_bytes()).ok_or(RuntimeError::NotAStep)?;
    let mut environment = environment::take(&setup.environment, &setup.bundles)?;
    let home = environment.iter().find(|(name, _)| name == "HOME").map(|(_, value)| PathBuf::from(value));
    let stores: Vec<Store> =
        home.iter().map(|home| Store::of_user(home)).chain([Store::shared(setup.images.clone())]).collect();
    let bundle = Bundle::find(&step.bundle, &stores, || setup.puller(&stores, &environment))?;
    // Blocks all signals. The step gets back the recorded dispositions, because Rust ignores SIGPIPE. Until here a signal ends a pull, or the wait
    // for one.
    let inherited = Inherited::capture();
    let directory = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let mut arguments = step.arguments;
    restore_name(&mut arguments, &mut environment);
    let mut binds = Binds::new(setup, &bundle.root, home.as_deref(), &directory);
    binds.add_script(&mut arguments);
    let driver = driver::find(&mut binds);
    for mount in bundle.mounts {
        std::fs::metadata(&mount.from).map_err(|error| RuntimeError::Read { path: mount.from.clone(), error })?;
        binds.add_mount(mount);
    }
    let has_variable = |name: &str, accepts: &dyn Fn(&OsStr) -> bool| {
        environment.iter().any(|(variable, value)| variable == name && accepts(value))
    };
    let is_first_task = has_variable("SLURM_PROCID", &|task| task == "0");
    // Warns only once per step, and only if the step uses a GPU.
    if is_first_task && has_variable("CUDA_VISIBLE_DEVICES", &|gpus| !gpus.is_empty() && gpus != "NoDevFiles") {
        let warnings = driver
            .as_ref()
            .map(|driver| fit::warnings(&bundle.root, &bundle.environment, driver, setup.cuda.as_deref()));
        let image = model::printable::short(&step.bundle.to_string_lossy(), 200);
        warnings.into_iter().flatten().for_each(|warning| eprintln!("slurminit: warning: image {image} {warning}"));
    }
    let environment = environment::merge(environment, &bundle.environment, driver.is_some());
    let program =
        Program { root: bundle.root, directory, arguments, environment, binds, is_read_only: bundle.is_read_only };
    let namespaces = match namespaces::attempt() {
        Ok(()) => {
            namespaces::enter(&program).map_err(RuntimeError::Enter)?;
            inherited.restore();
            return Err(execute(&program.arguments, &program.environment));
        }
        Err(why) => why,
    };
    if let Some(mount) = program.binds.0.iter().find(|bind| bind.is_read_only && !program.binds.has_writable(bind)) {
        return Err(RuntimeError::Writable { path: mount.to.clone(), namespaces });
    }
    if program.is_read_only && is_first_task {
        eprintln!(
            "slurminit: warning: PRoot leaves the image writable by its owner, although the bundle sets `readonly`"
        );
    }
    let status = proot::run(program, &inherited).map_err(|proot| RuntimeError::NoBackend { namespaces, proot })?;
    Ok(propagate_status(status))
}

/// Ends this process by the signal that ended the program. Returns the program's exit code if there was no such signal, or 128 plus the signal's
/// number if this process survives the signal, as PID 1 does.
fn propagate_status(status: ExitStatus) -> u8 {
    if let Some(signal) = status.signal() {
        // A core dump of this process would not contain the user's program.
        let _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0);
        set_action(signal, SignalAction::Default);
        kill(nix::unistd::getpid().as_raw(), signal);
        sys::inherited::set_mask(0);
    }
    u8::try_from(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))).unwrap_or(u8::MAX)
}

/// Replaces this process by the program, which is looked up in PATH as in a shell. Returns only an error.
fn execute(arguments: &[OsString], environment: &[Variable]) -> RuntimeError {
    let fault = |error| {
        let name = arguments.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        RuntimeError::Execute { program: name, error }
    };
    let Some(name) = arguments.first() else { return fault(nix::Error::ENOENT.into()) };
    let (Some(texts), Some(variables)) = (c_strings(arguments), c_variables(environment)) else {
        return fault(nix::Error::EINVAL.into());
    };
    let mut error = nix::Error::ENOENT;
    for path in candidates(name, environment) {
        let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { continue };
        let Err(found) = nix::unistd::execve(&path, &texts, &variables);
        // As in a shell, the search continues past a directory without the file, or with a file that cannot be executed.
        if found != nix::Error::ENOENT && found != nix::Error::ENOTDIR {
            error = found;
        }
    }
    fault(error.into())
}

/// slurmstepd replaces a program's name by its path in the container's directories of PATH. If the path can be the result of that search, and the
/// user did not type it ([`typed_paths`]), the name is restored, so that the image's own `python` runs.
fn restore_name(arguments: &mut [OsString], environment: &mut Vec<Variable>) {
    let typed = environment.iter().position(|(name, _)| name == TYPED_PATHS).map(|at| environment.remove(at).1);
    let count = arguments.len();
    let Some(first) = arguments.first_mut() else { return };
    let path = PathBuf::from(&*first);
    let Some(name) = path.file_name().filter(|_| path.is_absolute()) else { return };
    let entry = [count.to_string().as_bytes(), first.as_bytes()].concat();
    let is_typed = typed.is_some_and(|typed| typed.as_bytes().split(|byte| *byte == b':').any(|path| path == entry));
    let found = candidates(name, environment).into_iter().find(|candidate| candidate.is_file());
    if !is_typed && found.is_some_and(|found| found == path) {
        *first = name.to_owned();
    }
}

/// The value of [`TYPED_PATHS`] for the arguments of srun: each absolute path, preceded by its position from the end. Paths in srun's own options are
/// included, because only srun can distinguish its options from the program. Long command lines are truncated: the program comes early.
pub fn typed_paths(arguments: &[OsString]) -> OsString {
    let paths = arguments.iter().enumerate().filter(|(_, word)| word.as_bytes().starts_with(b"/"));
    let mut value = OsString::new();
    for (at, word) in paths.take_while(|(_, word)| word.len() < MAX_TYPED_PATHS) {
        if value.len() + word.len() > MAX_TYPED_PATHS {
            break;
        }
        value.push(if value.is_empty() { "" } else { ":" });
        value.push((arguments.len() - at).to_string());
        value.push(word);
    }
    value
}

/// The possible paths of a program: one in each directory of PATH, or only the name itself if it contains a `/`.
fn candidates(name: &OsStr, environment: &[Variable]) -> Vec<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return vec![PathBuf::from(name)];
    }
    let path = environment.iter().find(|(variable, _)| variable == "PATH");
    let path = path.map_or_else(|| environment::DEFAULT_PATH.into(), |(_, value)| value.clone());
    std::env::split_paths(&path).map(|directory| directory.join(name)).collect()
}

fn c_strings(values: &[OsString]) -> Option<Vec<CString>> {
    values.iter().map(|value| CString::new(value.as_bytes()).ok()).collect()
}

fn c_variables(environment: &[Variable]) -> Option<Vec<CString>> {
    let text = |(name, value): &Variable| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok();
    environment.iter().map(text).collect()
}

/// Whether an ordinary user of this container can run programs with this backend; otherwise the reason. The probe changes this process, so call it in
/// a separate one. If PRoot works, it replaces this process and exits with 0.
///
/// # Errors
/// The operation that failed and its error, or that PRoot is missing.
pub fn probe(backend: Backend) -> Result<(), String> {
    namespaces::become_nobody()?;
    match backend {
        Backend::Namespaces => namespaces::probe(),
        Backend::Proot => Err(proot::probe()),
    }
}

/// The backend of this container for jobs in images, and why namespaces are not available (empty if they are).
///
/// # Errors
/// Why namespaces are not available, if PRoot is not installed either.
pub fn backend() -> Result<(Backend, String), String> {
    const DEADLINE: std::time::Duration = std::time::Duration::from_secs(5);
    let refused = match sys::tool::ask("/proc/self/exe", &["oci", "--probe=namespaces"], DEADLINE)
        .output_of("slurminit oci --probe")
    {
        Ok(_) => return Ok((Backend::Namespaces, String::new())),
        Err(why) => why.rsplit("slurminit: ").next().unwrap_or_default().to_owned(),
    };
    if proot::is_installed() { Ok((Backend::Proot, refused)) } else { Err(refused) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program that is executed for a command line of srun. slurmstepd gets the last `count` words, with the first of them replaced by `resolved`.
    fn program(line: &str, count: usize, resolved: &str) -> OsString {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let mut environment = vec![("PATH".into(), "/nowhere:/bin:/usr/bin".into())];
        environment.push((TYPED_PATHS.into(), typed_paths(&words)));
        let mut arguments = words[words.len() - count..].to_vec();
        arguments[0] = resolved.into();
        restore_name(&mut arguments, &mut environment);
        assert_eq!(environment.len(), 1, "programs of the step do not get the variable");
        arguments[0].clone()
    }

    #[test]
    fn name_is_searched_in_the_image_and_typed_path_is_kept() {
        let options = "--container=x --chdir /bin";
        assert_eq!(program(&format!("{options} sh"), 1, "/bin/sh"), "sh");
        assert_eq!(program(&format!("{options} /bin/sh"), 1, "/bin/sh"), "/bin/sh");
        assert_eq!(program(&format!("{options} /bin/sh -c /bin/sh"), 3, "/bin/sh"), "/bin/sh");
        assert_eq!(program(&format!("{options} sh -c /bin/sh"), 3, "/bin/sh"), "sh");
        // The path is not a result of the search in PATH.
        assert_eq!(program(&format!("{options} /usr/bin/sh"), 1, "/usr/bin/sh"), "/usr/bin/sh");
        assert_eq!(program(&format!("{options} none"), 1, "none"), "none");
        // `--multi-prog`: the words are in a file.
        assert_eq!(program(&format!("{options} /bin/sh"), 1, "/bin/cat"), "cat");
        let many = format!("{options} /bin/sh {}", "/data/file ".repeat(1000));
        assert_eq!(program(&many, 1002, "/bin/sh"), "/bin/sh");
    }
}
