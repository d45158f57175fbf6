//! Environment variables that may contain secrets. Docker passes them to every process that it executes in the container.

/// May hold the configuration: the text of a slurminit.toml.
pub const TOML: &str = "SLURMINIT_TOML";
/// May hold munge's key.
pub const MUNGE_KEY: &str = "SLURMINIT_MUNGE_KEY";
/// May hold a cluster token, which contains munge's key.
pub const JOIN: &str = "SLURMINIT_JOIN";

/// The variables that are removed from the environment of other programs.
pub const ALL: [&str; 3] = [TOML, MUNGE_KEY, JOIN];
