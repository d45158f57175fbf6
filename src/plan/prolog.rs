//! The script that Slurm runs on a node before a job's first process there.
//!
//! In a cluster of several containers, `slurminit prolog` lets a job find its nodes by their names.

use std::path::PathBuf;

use crate::config::Config;

use super::FileName;

/// A script that makes a job's nodes known by their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prolog {
    /// Where it is installed.
    pub path: PathBuf,
}

impl Prolog {
    /// The reason for the script.
    pub(super) const WHY: &'static str =
        "lets a job on several nodes find them by their names (PyTorch's MASTER_ADDR) where no name server knows these";

    /// `None` where the node is alone.
    pub(super) fn plan(config: &Config) -> Option<Self> {
        config.shares_a_cluster().then(|| Self { path: config.paths.slurm.join(FileName::Prolog.as_str()) })
    }
}
