//! The files in which a start stores a configuration or key passed in a variable (`secret_variables`).

/// The directory of these files.
pub const DIRECTORY: &str = model::paths::Paths::GIVEN;
/// The file with the configuration.
pub const TOML_FILE: &str = "slurminit.toml";
/// The file with the munge key, until munged's key is installed.
pub const KEY_FILE: &str = "munge.key";
