//! The paths of files and directories.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Directories and files, all inside the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Paths {
    /// Slurm's configuration directory, which receives the generated files.
    #[serde(deserialize_with = "crate::value::path")]
    pub slurm: PathBuf,
    /// The operator's directory, for their own slurm.conf, gres.conf and cgroup.conf. slurminit.toml has a fixed default path.
    #[serde(deserialize_with = "crate::value::path")]
    pub config: PathBuf,
    /// Data that must outlive the container, such as the controller's jobs, the node's spool and the accounting database.
    #[serde(deserialize_with = "crate::value::path")]
    pub state: PathBuf,
    /// Data that must not outlive the container, such as status and PID files.
    #[serde(deserialize_with = "crate::value::path")]
    pub run: PathBuf,
    /// The key that munged reads.
    #[serde(deserialize_with = "crate::value::path")]
    pub munge_key: PathBuf,
    /// The socket that munged listens on.
    #[serde(deserialize_with = "crate::value::path")]
    pub munge_socket: PathBuf,
    /// A shared key mounted by an orchestrator, if any.
    #[serde(deserialize_with = "crate::value::path")]
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

impl Paths {
    /// slurmctld's directory for [`Self::ENDED_JOBS`]. Slurm's group can read it, unlike the saved state.
    pub const JOBCOMP: &str = "jobcomp";
    /// The file with one line per finished job.
    pub const ENDED_JOBS: &str = "jobs";

    /// The directory in which PID 1 stores a configuration or munge key that was passed in an environment variable, and the variables of an
    /// outer Slurm job. Only root can write to it. PID 1 removes these variables from its environment, because daemons inherit it. An empty
    /// file with the name of a variable records that the container's environment contains that secret.
    pub const GIVEN: &str = "/run/slurminit.given";

    /// PRoot, which runs jobs in container images if the engine refuses user namespaces.
    pub const PROOT: &str = "/usr/bin/proot";
    /// skopeo, which downloads container images.
    pub const SKOPEO: &str = "/usr/bin/skopeo";
    /// The directory, in the run directory, in which slurmstepd creates OCI bundles. It contains a directory for each user.
    pub const BUNDLES: &str = "oci";

    /// The embedded accounting database, in the state directory.
    pub const DATABASE: &str = "mysql";
    /// MariaDB's socket, at the default path of its client library.
    pub const DATABASE_SOCKET: &str = "/run/mysqld/mysqld.sock";
    /// slurmctld's directory for [`Self::JWT_KEY`], in the state directory.
    pub const JWT: &str = "jwt";
    /// The key that signs tokens for the REST API.
    pub const JWT_KEY: &str = "jwt_hs256.key";
    /// The name of two directories: for sshd's host key in the state directory, and for its configuration and the users' keys in
    /// the run directory.
    pub const SSH: &str = "ssh";
    /// sshd, in an image built with --target full. It must be started by its absolute path, because it re-executes itself.
    pub const SSHD: &str = "/usr/sbin/sshd";

    /// An empty database, in an image built with --target full.
    pub const DATABASE_TEMPLATE: &str = "/usr/share/slurminit/mariadb";

    /// The key that signs tokens for the REST API.
    pub fn jwt_key(&self) -> PathBuf {
        self.state.join(Self::JWT).join(Self::JWT_KEY)
    }

    /// sshd's configuration.
    pub fn sshd_config(&self) -> PathBuf {
        self.run.join(Self::SSH).join("sshd_config")
    }

    /// The directory with the users' public keys, one file per user.
    pub fn ssh_keys(&self) -> PathBuf {
        self.run.join(Self::SSH).join("keys")
    }

    /// sshd's private key.
    pub fn ssh_host_key(&self) -> PathBuf {
        self.state.join(Self::SSH).join("ssh_host_ed25519_key")
    }

    /// The embedded database's files.
    pub fn database(&self) -> PathBuf {
        self.state.join(Self::DATABASE).join("data")
    }

    /// The value of JobCompLoc in slurm.conf.
    pub fn ended_jobs(&self) -> PathBuf {
        self.state.join(Self::JOBCOMP).join(Self::ENDED_JOBS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_data_outlive_the_container_and_other_files_do_not() {
        let paths = Paths::default();
        for path in [paths.jwt_key(), paths.ssh_host_key(), paths.database(), paths.ended_jobs()] {
            assert!(path.starts_with(&paths.state) && path != paths.state, "{path:?}");
        }
        for path in [paths.sshd_config(), paths.ssh_keys()] {
            assert!(path.starts_with(&paths.run) && path != paths.run, "{path:?}");
        }
    }
}
