//! The variables in which an operator can give what is secret. Docker hands them to all that it executes in a container.

/// May hold the configuration: the text of a slurminit.toml.
pub const TOML: &str = "SLURMINIT_TOML";
/// May hold munge's key.
pub const MUNGE_KEY: &str = "SLURMINIT_MUNGE_KEY";
/// May hold the token of a cluster, and munge's key in it.
pub const JOIN: &str = "SLURMINIT_JOIN";

/// What no other program gets.
pub const ALL: [&str; 3] = [TOML, MUNGE_KEY, JOIN];
