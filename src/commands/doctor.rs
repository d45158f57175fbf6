//! `slurminit doctor`: an answer for each symptom, on the host and in the container.

mod container;
mod host;
mod report;

pub(super) use container::look_cheaply;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::detect::parse_seconds;
use crate::configure::answer::Answer;
use crate::configure::tool;
use crate::detect::nvidia_request::Request;
use crate::detect::{self, Options, condition};
use crate::doctor::facts::{Facts, Side};
use crate::doctor::{Verdict, examine, look, worst};
use crate::exit_code;

/// What the image notes at its build, and no host has.
const IMAGES_NOTE: &str = "/usr/share/slurminit/slurm-version";

/// Its command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    /// Show only what is not in order
    #[arg(long, conflicts_with = "json")]
    brief: bool,
    /// The host's files are below this directory: `docker run -v /:/host:ro ... doctor --root /host`
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// How long each check may take
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds)]
    timeout: Duration,
    /// In the container: the configuration; /config/slurminit.toml if there is one
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// In the container: a munge credential that another machine has just made; `-` reads it from standard input
    #[arg(long, value_name = "FILE")]
    credential: Option<PathBuf>,
    /// On the host: the image to try the GPUs with, if the engine has it
    #[arg(long, default_value = "slurminit:latest")]
    image: String,
    /// On the host: start no container
    #[arg(long)]
    no_trial: bool,
    /// The directory given with --root is a container's, not a host's
    #[arg(long, hide = true)]
    container: bool,
}

/// Does it. The code is that of the worst verdict.
pub fn run(args: Args) -> anyhow::Result<u8> {
    let root = args.root.display();
    anyhow::ensure!(args.root.is_dir(), "--root {root}: there is no such directory");
    let is_container = args.container || (args.root == Path::new("/") && Path::new(IMAGES_NOTE).exists());
    let facts = facts(&args, is_container);
    let examined = examine(&facts);
    let place = if is_container { "in the container" } else { "on the host" };
    let text =
        if args.json { report::json(place, &examined)? + "\n" } else { report::text(place, &examined, args.brief) };
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            return Err(error).context("cannot write to standard output");
        }
        _ => {}
    }
    Ok(match worst(&examined) {
        Verdict::Ok | Verdict::Note => exit_code::SUCCESS,
        Verdict::CouldNotLook => exit_code::NOT_LOOKED,
        Verdict::Warn => exit_code::WARNINGS,
        Verdict::Fail => exit_code::FAILURE,
    })
}

fn facts(args: &Args, is_container: bool) -> Facts {
    let library = std::env::var_os("SLURMINIT_NVML_LIBRARY").filter(|path| !path.is_empty()).map(PathBuf::from);
    // These fork, so they come before the first thread: every program that is asked has one.
    // What this process was started with is what the container asked for; a host asks for nothing.
    let request = if is_container { Request::from_environment() } else { Request::default() };
    let (root, nvml_library) = (args.root.clone(), library.clone());
    let options = Options { root, deadline: args.timeout, nvml_library, request, ..Options::default() };
    let inventory = detect::detect(&options);
    let conditions = condition::conditions(&args.root, library.as_deref(), Instant::now() + args.timeout);
    let side = if is_container {
        Side::Container(Box::new(container::facts(args, &inventory)))
    } else {
        Side::Host(Box::new(host::facts(args, &inventory)))
    };
    Facts { inventory, conditions, environment: look::environment(), side }
}

/// A program, with the deadline of the command line.
fn ask(args: &Args) -> impl Fn(&str, &[&str]) -> Answer + use<> {
    let deadline = args.timeout;
    move |program, arguments| tool::ask(program, arguments, deadline)
}

/// What `look` finds, or `None` at the deadline: a file system that hangs keeps the thread, and not us.
fn within<T: Send + 'static>(deadline: Duration, look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(look()));
    told.recv_timeout(deadline).ok()
}
