//! What a start would install: the plan and its files, with the user's own files instead of generated ones. EDGE: it
//! reads theirs.

use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::exit_code;
use crate::install::{self, InstallError};
use crate::inventory::Inventory;
use crate::plan::in_use::{Gone, GoneNode};
use crate::plan::{self, Customized, FileName, Plan, Refusal, Text};
use crate::render;

/// The plan and the resulting files, including the user's.
pub(crate) struct Planned {
    pub(crate) plan: Plan,
    pub(crate) files: Vec<Text>,
    pub(crate) customized: Customized,
}

impl Planned {
    /// The node's name and Gres.
    pub(crate) fn node(&self, inventory: &Inventory) -> (String, String) {
        let own = self.customized.node(&inventory.hostname);
        own.unwrap_or_else(|| (self.plan.node_names(), self.plan.node_gres()))
    }

    /// Keeps partitions and nodes of the former slurm.conf. The user's own file cannot.
    pub(crate) fn keep(&mut self, gone: &[Gone], nodes: &[GoneNode]) {
        self.plan.keep(gone, nodes);
        self.files = texts(&self.plan, &self.customized);
    }
}

/// Plans and renders, with the user's own files instead of generated ones.
pub(crate) fn plan_files(config: &Config, inventory: &Inventory, root: &Path) -> Result<Planned, PlanError> {
    let mut plan = plan::plan(config, inventory).map_err(PlanError::Refused)?;
    let found = install::find_user_files(&config.paths, root).map_err(PlanError::Unreadable)?;
    let exists = |path: &Path| install::under(root, path).exists();
    let customized = plan.respect(plan::choose(config, &found), inventory, &exists);
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

/// Why there is no plan.
pub(crate) enum PlanError {
    Refused(Refusal),
    Unreadable(InstallError),
}

impl From<InstallError> for Refusal {
    fn from(error: InstallError) -> Self {
        let (cause, repair) = ("the daemons need it before they can start", "see the message; then start again");
        Self::new(exit_code::PREPARE, error, cause, repair)
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
pub(crate) fn state_directory(config: &Config, root: &Path, files: &[Text]) -> PathBuf {
    let own = slurm_conf_value(files, "StateSaveLocation").map(PathBuf::from);
    install::under(root, &own.unwrap_or_else(|| config.paths.state.join("slurmctld")))
}

/// The cluster's name in slurm.conf.
pub(crate) fn cluster_name(files: &[Text]) -> String {
    slurm_conf_value(files, "ClusterName").unwrap_or_default()
}

/// The last value of a key in slurm.conf.
fn slurm_conf_value(files: &[Text], wanted: &str) -> Option<String> {
    plan::last_value(slurm_conf(files), wanted)
}

/// The text of slurm.conf.
pub(crate) fn slurm_conf(files: &[Text]) -> &str {
    files.iter().find(|file| file.name == FileName::SlurmConf).map_or("", |file| &file.text)
}
