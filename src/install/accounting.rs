//! Directories of the accounting daemons, and slurmdbd.conf, which may contain a password.

use std::path::Path;

use super::directories::{finding, make_owned};
use super::{InstallError, Owner, atomic};
use config::{AccountingMode, Config, DaemonName, Paths};
use model::inventory::Finding;
use plan::render;
use sys::trusted_path;
use sys::trusted_path::RepairedPath;

/// If this container runs slurmdbd, creates the directories of an embedded database, and writes slurmdbd.conf, readable only by slurmdbd's user and
/// root. Returns findings about repairs.
///
/// # Errors
/// The password is missing or unusable, a daemon's user does not exist, or a directory or file cannot be written.
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use tempfile::TempDir;

    use super::*;

    /// The owner of the daemons' files: a user that exists everywhere.
    const NOBODY: u32 = 65534;

    fn config(accounting: &str) -> Config {
        let users = ["mariadbd", "slurmdbd"].map(|daemon| format!("[daemon.{daemon}]\nuser = 'nobody'\n")).concat();
        let paths = "[paths]\nstate = '/state'\nslurm = '/slurm'\n";
        Config::parse(&format!("{accounting}\n{paths}{users}"), Path::new("test.toml")).unwrap()
    }

    fn owner_and_mode(root: &TempDir, path: &str) -> Option<(u32, u32)> {
        root.path().join(path).metadata().ok().map(|found| (found.uid(), found.mode() & 0o7777))
    }

    #[test]
    fn embedded_database_gets_directories_that_only_it_and_slurm_reach() {
        let root = tempfile::tempdir().unwrap();
        let config = config("[accounting]\nmode = 'embedded'");
        assert_eq!(install_accounting(&config, root.path()).unwrap(), []);
        assert_eq!(owner_and_mode(&root, "state/mysql"), Some((NOBODY, 0o700)));
        assert_eq!(owner_and_mode(&root, "run/mysqld"), Some((NOBODY, 0o750)));
        assert_eq!(owner_and_mode(&root, "slurm/slurmdbd.conf"), Some((NOBODY, 0o600)));
        let text = fs::read_to_string(root.path().join("slurm/slurmdbd.conf")).unwrap();
        assert!(text.contains("StorageUser=slurm\n") && !text.contains("StoragePass"), "{text}");

        // The files of a database of another user.
        std::os::unix::fs::chown(root.path().join("state/mysql"), Some(1234), None).unwrap();
        let findings = install_accounting(&config, root.path()).unwrap();
        assert_eq!(owner_and_mode(&root, "state/mysql"), Some((NOBODY, 0o700)));
        assert!(findings.len() == 1 && findings[0].what.contains("/state/mysql belonged to uid 1234"), "{findings:?}");
    }

    #[test]
    fn external_database_gets_password_of_secret() {
        let root = tempfile::tempdir().unwrap();
        let config = config("[accounting]\nmode = 'external'\ndatabase_host = 'db'\npassword_secret = '/password'");
        let install = |secret: &[u8]| {
            fs::write(root.path().join("password"), secret).unwrap();
            install_accounting(&config, root.path()).map_err(|error| error.to_string())
        };
        let missing = install_accounting(&config, root.path()).unwrap_err().to_string();
        let empty = install(b"\r\n").unwrap_err();
        let binary = install(b"\xff\n").unwrap_err();
        let blank = install(b"two words\n").unwrap_err();
        for (error, why) in
            [(missing, "os error 2"), (empty, "it is empty"), (binary, "not UTF-8"), (blank, "does not support blanks")]
        {
            assert!(error.contains("in /password: ") && error.contains(why), "{error}");
        }
        assert_eq!(owner_and_mode(&root, "slurm/slurmdbd.conf"), None);

        assert_eq!(install(b"se-cret\r\n").unwrap(), []);
        assert_eq!(owner_and_mode(&root, "slurm/slurmdbd.conf"), Some((NOBODY, 0o600)));
        let text = fs::read_to_string(root.path().join("slurm/slurmdbd.conf")).unwrap();
        assert!(text.lines().any(|line| line == "StoragePass=se-cret"), "{text}");
        assert_eq!(owner_and_mode(&root, "state"), None, "only an embedded database has files here");
    }

    #[test]
    fn container_without_database_daemons_gets_no_files() {
        for accounting in ["", "role = 'compute'\n[slurm]\ncontroller = 'head'\n[accounting]\nmode = 'embedded'"] {
            let root = tempfile::tempdir().unwrap();
            assert_eq!(install_accounting(&config(accounting), root.path()).unwrap(), []);
            assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0, "{accounting}");
        }
    }
}
