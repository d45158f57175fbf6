//! Where PID 1 keeps what an operator gives as a whole in a variable (`secret_variables`), because no file can be mounted.

/// The directory, root's alone: what is in PID 1's environment all daemons get.
pub const DIRECTORY: &str = "/run/slurminit.given";
/// The configuration there.
pub const TOML_FILE: &str = "slurminit.toml";
/// The key there, until it is munge's.
pub const KEY_FILE: &str = "munge.key";
