//! The key that signs tokens for the REST API. It is created once and kept beside slurmctld's state directory, not in it,
//! where it would be taken for saved state.

use std::io;
use std::path::Path;

use super::directories::{finding, owned};
use super::{InstallError, Owner, atomic};
use config::{Config, DaemonName, Paths};
use model::inventory::Finding;
use sys::trusted_path;

/// Creates the key for slurmctld and slurmdbd if it is missing. Returns findings about repairs.
///
/// # Errors
/// It cannot be written.
pub fn install_jwt_key(config: &Config, root: &Path) -> Result<Vec<Finding>, InstallError> {
    if !config.runs_rest() {
        return Ok(Vec::new());
    }
    let (path, mut repaired) = (config.paths.jwt_key(), Vec::new());
    let owner = Owner::of(DaemonName::Slurmctld, config, &path)?;
    let (state, _) = trusted_path::make(root, &config.paths.state, &mut repaired)?;
    let directory = owned(state.child(Paths::JWT)?, &owner, 0o700, &mut repaired)?;
    match directory.metadata_of(Paths::JWT_KEY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut key = [0; 32];
            super::munge_key::fill_randomly(&mut key)?;
            atomic::replace_secret(&directory, Paths::JWT_KEY, &key, 0o600, Some(&owner))
        }
        found => found.map(drop),
    }
    .map_err(|error| InstallError::write(&path, error))?;
    Ok(repaired.iter().map(finding).collect())
}
