//! What an operator gives as a whole in a variable, where no file can be mounted.
//!
//! PURE.

pub use crate::secret_variables::{MUNGE_KEY, TOML};

/// Where PID 1 keeps both, root's alone: what is in its environment all daemons get.
pub const DIRECTORY: &str = "/run/slurminit.given";
/// The configuration there.
pub const TOML_FILE: &str = "slurminit.toml";
/// The key there, until it is munge's.
pub const KEY_FILE: &str = "munge.key";
