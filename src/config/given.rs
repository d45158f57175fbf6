//! The files in which PID 1 stores a configuration or key passed in a variable (`secret_variables`).

/// The directory, which only root can write. A file named after a variable records that the container's environment has it. The variables are removed because daemons inherit PID 1's environment.
pub const DIRECTORY: &str = "/run/slurminit.given";
/// The file with the configuration.
pub const TOML_FILE: &str = "slurminit.toml";
/// The file with the munge key, until munged's key is installed.
pub const KEY_FILE: &str = "munge.key";
