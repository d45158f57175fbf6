//! Environment variables that may contain secrets. Docker passes them to every process that it executes in the container.

use std::ffi::{OsStr, OsString};
use std::process::Command;

/// The variable that may contain the configuration: the text of a slurminit.toml.
pub const TOML: &str = "SLURMINIT_TOML";
/// The variable that may contain the munge key.
pub const MUNGE_KEY: &str = "SLURMINIT_MUNGE_KEY";
/// The variable that may contain a join token, which includes the munge key.
pub const JOIN: &str = "SLURMINIT_JOIN";

/// A variable that may contain a secret, and the file that can contain the secret instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretVariable {
    /// The name.
    pub name: &'static str,
    /// A description of the secret, for messages.
    pub content: &'static str,
    /// The file that can contain the secret instead. Only root needs to read it.
    pub file: &'static str,
}

/// The variables that are removed from the environment of other programs, jobs included.
pub const ALL: [SecretVariable; 3] = [
    SecretVariable { name: TOML, content: "secrets in the configuration", file: "/config/slurminit.toml" },
    SecretVariable { name: MUNGE_KEY, content: "the munge key", file: "/run/secrets/munge.key" },
    SecretVariable { name: JOIN, content: "the munge key in a join token", file: JOIN_SECRET },
];

/// The file that can contain a join token instead of [`JOIN`].
pub const JOIN_SECRET: &str = "/run/secrets/slurminit.join";

/// Removes the variables from the environment of a program to be executed.
pub fn remove_from(command: &mut Command) {
    for secret in ALL {
        command.env_remove(secret.name);
    }
}

/// Whether the variable is one of [`ALL`].
pub fn is_secret(name: &OsStr) -> bool {
    ALL.iter().any(|secret| name == secret.name)
}

/// Variables, and prefixes ending with `_`, that a process retains when it gives up root's rights. The other variables of the container may
/// be secrets (`docker run --env`).
const INHERITABLE: [&str; 16] = [
    "PATH",
    "LANG",
    "LC_",
    "TZ",
    "LD_LIBRARY_PATH",
    "SLURM_CONF",
    "SLURMINIT_",
    "NVIDIA_",
    "CUDA_",
    "ROCR_",
    "HIP_",
    "HSA_",
    "ZE_",
    "ONEAPI_",
    "FAKE_NVML",
    "RUST_BACKTRACE",
];

/// Whether an unprivileged process may inherit the variable.
pub fn is_inheritable(name: &OsStr) -> bool {
    let is_listed = |name: &str| {
        INHERITABLE.iter().any(|listed| *listed == name || listed.ends_with('_') && name.starts_with(listed))
    };
    name.to_str().is_some_and(is_listed) && !is_secret(name)
}

/// The variables of this process that an unprivileged process may inherit.
pub fn inheritable_variables() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| is_inheritable(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_secret_variables() {
        for kept in ["PATH", "LC_ALL", "SLURMINIT_LOG_LEVEL", "NVIDIA_VISIBLE_DEVICES"] {
            assert!(is_inheritable(OsStr::new(kept)), "{kept}");
        }
        for secret in ["SLURMINIT_MUNGE_KEY", "SLURMINIT_JOIN", "API_KEY", "PATH_TO", "HF_TOKEN", "SLURM_JWT", ""] {
            assert!(!is_inheritable(OsStr::new(secret)), "{secret}");
        }
    }
}
