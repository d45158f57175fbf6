//! Directories of the accounting daemons, and slurmdbd.conf, which may hold a password.

use std::path::Path;

use super::directories::{finding, make_owned};
use super::{InstallError, Owner, atomic};
use config::{AccountingMode, Config, DaemonName, Paths};
use model::inventory::Finding;
use plan::render;
use sys::trusted_path;
use sys::trusted_path::RepairedPath;

/// Creates the directories of an embedded database, and writes slurmdbd.conf, readable only by slurmdbd. Returns what was repaired.
///
/// # Errors
/// There is no password, or something cannot be written.
pub fn install_accounting(config: &Config, root: &Path) -> Result<Vec<Finding>, InstallError> {
    let mut repaired = Vec::new();
    if !config.runs_accounting() {
        return Ok(Vec::new());
    }
    if config.accounting.mode() == AccountingMode::Embedded {
        make_directories(config, root, &mut repaired)?;
    }
    write_slurmdbd_conf(config, root)?;
    Ok(repaired.iter().map(finding).collect())
}

fn make_directories(config: &Config, root: &Path, repaired: &mut Vec<RepairedPath>) -> Result<(), InstallError> {
    let mysql = Owner::of(DaemonName::Mariadbd, config, &config.paths.database())?;
    let (state, _) = trusted_path::make(root, &config.paths.state, repaired)?;
    make_owned(state.child(Paths::DATABASE)?, &mysql, 0o700, repaired)?;
    let socket = Path::new(Paths::DATABASE_SOCKET);
    let directory = socket.parent().unwrap_or(socket);
    // Only mysql and its group, which contains slurm, may reach the socket: a user's connection would be refused, but would still take up one of the
    // database's connections.
    make_owned(trusted_path::make(root, directory, repaired)?, &mysql, 0o750, repaired).map(drop)
}

fn write_slurmdbd_conf(config: &Config, root: &Path) -> Result<(), InstallError> {
    let (directory, secret) = (&config.paths.slurm, &config.accounting.password_secret);
    let path = directory.join("slurmdbd.conf");
    let owner = Owner::of(DaemonName::Slurmdbd, config, &path)?;
    let password = match config.accounting.mode() {
        AccountingMode::External => Some(read_password(root, secret)?),
        AccountingMode::Embedded | AccountingMode::None => None,
    };
    let text = render::slurmdbd_conf(config, password.as_deref())
        .map_err(|why| InstallError::Password { path: secret.clone(), why: why.to_owned() })?;
    let (real, _) = trusted_path::make(root, directory, &mut Vec::new())?;
    real.require_ours()?;
    atomic::replace_secret(&real, "slurmdbd.conf", text.as_bytes(), 0o600, Some(&owner))
        .map_err(|error| InstallError::write(&path, error))
}

fn read_password(root: &Path, path: &Path) -> Result<String, InstallError> {
    let unusable = |why: String| InstallError::Password { path: path.to_owned(), why };
    let bytes = trusted_path::read(&sys::under(root, path)).map_err(|error| unusable(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| unusable("it is not UTF-8 text".to_owned()))?;
    match text.trim_end_matches(['\n', '\r']) {
        "" => Err(unusable("it is empty".to_owned())),
        password => Ok(password.to_owned()),
    }
}
