//! Where files are.

use std::path::PathBuf;

use serde::Deserialize;

/// Directories and files, all inside the container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Paths {
    /// Slurm's own configuration directory, where generated files go.
    pub slurm: PathBuf,
    /// The operator's directory: their own slurm.conf, gres.conf, cgroup.conf.
    pub config: PathBuf,
    /// What must outlive the container: the controller's jobs, the node's spool.
    pub state: PathBuf,
    /// What must not: status, pid files.
    pub run: PathBuf,
    /// The key that munged reads.
    pub munge_key: PathBuf,
    /// The socket that munged answers on.
    pub munge_socket: PathBuf,
    /// Where an orchestrator mounts a shared key, if it does.
    pub munge_secret: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            slurm: "/etc/slurm".into(),
            config: "/config".into(),
            state: "/var/lib/slurm".into(),
            run: "/run/slurminit".into(),
            munge_key: "/etc/munge/munge.key".into(),
            munge_socket: "/run/munge/munge.socket.2".into(),
            munge_secret: "/run/secrets/munge.key".into(),
        }
    }
}
