//! The result of planning: the plan and the files to install, with the user's own files instead of generated ones.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::User;

use crate::InstallError;
use crate::load_config;
use config::{Config, DaemonName, Fault, NodeName};
use model::exit_code;
use model::hostlist;
use model::inventory::Inventory;
use plan::in_use::{RemovedNode, RemovedPartition};
use plan::render;
use plan::{Culprit, Customized, Fatal, FileName, FileState, Names, Plan, Refusal, Text};

/// The plan and the resulting files, including the user's.
pub struct Planned {
    /// The decisions and their reasons.
    pub plan: Plan,
    /// The files to install.
    pub files: Vec<Text>,
    /// The user's own files.
    pub customized: Customized,
}

impl Planned {
    /// The node's name and Gres.
    pub fn node(&self) -> (String, String) {
        let users = self.customized.own_node.as_ref().map(|node| (node.name.clone(), node.gres.clone()));
        users.unwrap_or_else(|| (self.plan.node_names(), self.plan.node_gres()))
    }

    /// Keeps partitions and nodes of the previous slurm.conf. A slurm.conf of the user stays unchanged.
    pub fn keep(&mut self, removed: &[RemovedPartition], nodes: &[RemovedNode]) {
        self.plan.keep(removed, nodes);
        self.files = texts(&self.plan, &self.customized);
    }
}

/// Plans and renders, with the user's own files instead of generated ones.
pub fn plan_files(
    config: &Config,
    config_file: Option<&Path>,
    inventory: &Inventory,
    root: &Path,
) -> Result<Planned, PlanError> {
    let mut plan = plan::plan(config, inventory).map_err(PlanError::Refused)?;
    let found = crate::find_user_files(&config.paths, root).map_err(PlanError::Unreadable)?;
    let state = |path: &Path| match crate::under(root, path).metadata() {
        // A pattern with at least one match: Slurm fails if there is none (24.11, `prep_script_slurmd`).
        Err(_) if crate::pattern::has_match(&crate::under(root, path)) => FileState::Program,
        Err(_) => FileState::Missing,
        Ok(metadata) if metadata.is_file() && metadata.mode() & 0o111 != 0 => FileState::Program,
        Ok(_) => FileState::Present,
    };
    let names = machine_names(config, inventory, root);
    let customized = plan.apply_user_files(config, plan::select_user_files(config, &found), inventory, &names, &state);
    if let Some(Fatal { culprit, what, cause, fix }) = &customized.fatal {
        let (what, _) = locate_fault(config_file, culprit.as_ref(), what);
        return Err(PlanError::Refused(Refusal::new(exit_code::CONFIG, what, cause, fix)));
    }
    let files = texts(&plan, &customized);
    Ok(Planned { plan, files, customized })
}

fn texts(plan: &Plan, customized: &Customized) -> Vec<Text> {
    let mut files = render::render(plan);
    for file in &mut files {
        if let Some(own) = customized.get(file.name) {
            file.text.clone_from(&own.text);
        }
    }
    files
}

/// The names under which slurmd looks for this machine in slurm.conf.
fn machine_names(config: &Config, inventory: &Inventory, root: &Path) -> Names {
    let hosts = sys::trusted_path::read(&crate::under(root, Path::new("/etc/hosts"))).unwrap_or_default();
    let hosts = String::from_utf8_lossy(&hosts);
    let words = hosts.lines().map(|line| line.split('#').next().unwrap_or_default().split_whitespace().skip(1));
    let own = words.filter(|words| words.clone().any(|word| word == inventory.hostname));
    let aliases = own.flatten().filter(|word| *word != inventory.hostname).map(str::to_owned).collect();
    let configured = Some(&config.node.name).filter(|name| **name != NodeName::default()).map(ToString::to_string);
    Names { configured, hostname: inventory.hostname.clone(), aliases }
}

/// The message of a fault with its file and line, and the file.
pub fn locate_fault(config_file: Option<&Path>, culprit: Option<&Culprit>, what: &str) -> (String, PathBuf) {
    match culprit {
        Some(Culprit::Configuration(path)) => {
            let error = load_config::locate(config_file, Fault::new(path.clone(), what.to_owned()));
            let source = load_config::source(config_file);
            (error.to_string(), source.map_or_else(|_| load_config::file(config_file), |source| source.origin))
        }
        Some(Culprit::File(path, line)) => (format!("{}:{line}: {what}", path.display()), path.clone()),
        None => (what.to_owned(), load_config::file(config_file)),
    }
}

/// The configuration with the SlurmUser of slurm.conf as slurmctld's user, who then owns its directories. A user in
/// `[daemon.slurmctld]` is kept.
pub fn with_slurm_user(config: &Config, config_file: Option<&Path>, root: &Path) -> Result<Config, Refusal> {
    let found = crate::find_user_files(&config.paths, root)?;
    let customized = plan::select_user_files(config, &found);
    let own = customized.get(FileName::SlurmConf).map(|_| customized.last_value(SLURM_USER));
    let from_toml = || config.slurm.conf.get(SLURM_USER).map(|user| user.as_str().to_owned());
    let Some(user) = own.map(|user| user.unwrap_or_default()).or_else(from_toml) else { return Ok(config.clone()) };
    let refused = || {
        let culprit = customized.culprit(config, SLURM_USER);
        let (what, file) = locate_fault(config_file, culprit.as_ref(), &format!("no such user: {user}"));
        let fix = format!("set SlurmUser to slurm in {}, or create the account in the image", file.display());
        Refusal::new(exit_code::CONFIG, what, "slurmctld runs as SlurmUser", fix)
    };
    as_slurm_user(config, &user).ok_or_else(refused)
}

/// The configuration with this SlurmUser; an empty one means root. A user in `[daemon.slurmctld]` is kept. `None` if there is no such account.
pub fn as_slurm_user(config: &Config, user: &str) -> Option<Config> {
    let mut config = config.clone();
    let settings = config.daemons.entry(DaemonName::Slurmctld).or_default();
    if settings.user.is_none() {
        let user = if user.is_empty() { "root" } else { user };
        let by_number = || User::from_uid(user.parse::<u32>().ok()?.into()).ok().flatten();
        settings.user = Some(User::from_name(user).ok().flatten().or_else(by_number)?.name);
    }
    Some(config)
}

const SLURM_USER: &str = "SlurmUser";

/// Why no plan can be made.
#[expect(missing_docs, reason = "the types state it")]
pub enum PlanError {
    Refused(Refusal),
    Unreadable(InstallError),
}

impl From<InstallError> for Refusal {
    fn from(error: InstallError) -> Self {
        let (cause, fix) =
            ("the preparation cannot continue until this is corrected", "correct this problem, then try again");
        let code = match error {
            InstallError::NotText { .. } => exit_code::CONFIG,
            _ => exit_code::PREPARE,
        };
        Self::new(code, error, cause, fix)
    }
}

impl From<PlanError> for Refusal {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Refused(refusal) => refusal,
            PlanError::Unreadable(error) => error.into(),
        }
    }
}

/// The directory in which slurmctld saves its state.
pub fn state_directory(config: &Config, root: &Path, files: &[Text]) -> PathBuf {
    crate::under(root, &plan::state_directory(slurm_conf(files), &config.paths.state.join("slurmctld")))
}

/// The spool directory of each slurmd. `host`: this machine's name.
pub fn spool_directories(planned: &Planned, host: &str) -> Vec<PathBuf> {
    const KEY: &str = "SlurmdSpoolDir";
    // The default of SlurmdSpoolDir (`read_config.h`).
    let spool = planned.customized.last_value(KEY).or_else(|| plan::last_value(slurm_conf(&planned.files), KEY));
    let spool = spool.unwrap_or_else(|| "/var/spool/slurmd".to_owned()).replace("%h", host);
    let node = planned.node().0;
    let nodes = hostlist::names(&node).unwrap_or_else(|| vec![node]);
    let directories: BTreeSet<_> = nodes.iter().map(|node| PathBuf::from(spool.replace("%n", node))).collect();
    directories.into_iter().collect()
}

/// The cluster's name in slurm.conf.
pub fn cluster_name(files: &[Text]) -> String {
    plan::last_value(slurm_conf(files), "ClusterName").unwrap_or_default()
}

/// The text of slurm.conf.
pub fn slurm_conf(files: &[Text]) -> &str {
    files.iter().find(|file| file.name == FileName::SlurmConf).map_or("", |file| &file.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_file_that_is_not_text_is_fault_of_configuration() {
        let path = PathBuf::from("/config/slurm.conf");
        let unreadable = InstallError::Read { path: path.clone(), error: std::io::ErrorKind::PermissionDenied.into() };
        for (error, code) in [(InstallError::NotText { path }, exit_code::CONFIG), (unreadable, exit_code::PREPARE)] {
            let what = error.to_string();
            let refusal = Refusal::from(PlanError::Unreadable(error));
            assert_eq!((refusal.exit_code, refusal.finding.what), (code, what));
        }
    }
}
