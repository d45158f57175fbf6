//! Makes the observations: reads files below a root, and runs programs through `Ask`, which has a deadline.
//! Makes no lasting changes.

mod cheap;
mod container;
mod environment;
mod host;
mod slurm;

pub use cheap::{cheap_facts, cuda, saved_cluster};
pub use environment::environment;
pub use host::{clock, containers, image, kubernetes};
pub use slurm::{decode_credential, has_address, local_credential, slurm};

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::facts::{Facts, RootFacts, Side};
use crate::RootOnly;
use container::StartPreview;
use install::load_config;
use nix::unistd::Uid;
use probe::vendor::nvidia::condition;
use probe::vendor::nvidia::request::Request;
use sys::tool;
use sys::tool::answer::Answer;

/// The options of `doctor`.
#[derive(Debug)]
pub struct Scope {
    /// The root directory of all paths.
    pub root: PathBuf,
    /// The timeout of each observation.
    pub deadline: Duration,
    /// The configuration file.
    pub config: Option<PathBuf>,
    /// The file with a credential of another machine; `-` is standard input.
    pub credential: Option<PathBuf>,
    /// The image for the GPU trial.
    pub image: String,
    /// Whether no container may be started.
    pub no_trial: bool,
}

impl Scope {
    fn ask(&self) -> impl Fn(&str, &[&str]) -> Answer + use<> {
        let deadline = self.deadline;
        move |program, arguments| tool::ask(program, arguments, deadline)
    }
}

/// Observes the container if `is_container`, otherwise the host.
pub fn facts(scope: &Scope, is_container: bool) -> Facts {
    let mut options = probe::Options::from_environment(scope.root.clone(), scope.deadline);
    // In a container, the environment contains the container's GPU request. A host has none.
    if !is_container {
        options.request = Request::default();
    }
    let config = load_config::load(scope.config.as_deref()).unwrap_or_default();
    options.queries_container_name = is_container && config.names_node_after_container();
    // Detection forks, so it comes before the first thread.
    let inventory = probe::detect(&options);
    let conditions =
        condition::conditions(&scope.root, options.nvml_library.as_deref(), Instant::now() + scope.deadline);
    let (side, preview) = if is_container {
        let (container, preview) = container::facts(scope, &inventory);
        (Side::Container(Box::new(container)), preview)
    } else {
        let host = host::facts(scope, &inventory);
        (Side::Host(Box::new(host)), StartPreview::without_plan(&config, &inventory))
    };
    let StartPreview { configuration, findings, stale_files, .. } = preview;
    let rejected_peers = if is_container { slurm::recently_rejected_peers(&scope.ask()) } else { Ok(BTreeSet::new()) };
    // GPUs that the configuration excludes do not belong to the cluster.
    let inventory = plan::select(&config, &inventory, &mut Vec::new());
    let root = RootFacts { inventory, conditions, configuration, findings, stale_files, rejected_peers };
    let is_root = !is_container || is_owner(&scope.root);
    Facts { is_root, root: RootOnly::new(root), environment: environment(), side }
}

/// Whether this process is root, or the directory belongs to its user.
fn is_owner(root: &Path) -> bool {
    let user = Uid::effective();
    user.is_root() || fs::metadata(root).is_ok_and(|metadata| metadata.uid() == user.as_raw())
}

/// The result of `observe`, or `None` after the deadline. A hung file system blocks only the thread.
fn with_deadline<T: Send + 'static>(deadline: Duration, observe: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(observe()));
    receiver.recv_timeout(deadline).ok()
}

/// Runs a program with these arguments, within its deadline.
pub type Ask<'a> = &'a dyn Fn(&str, &[&str]) -> Answer;

/// The standard output of a program, or the error.
fn output(ask: Ask<'_>, program: &str, arguments: &[&str]) -> Result<String, String> {
    ask(program, arguments).output_of(program)
}
