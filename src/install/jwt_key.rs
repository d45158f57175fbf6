//! The key that signs tokens for the REST API. It is created once, and stored in the state directory, but outside of slurmctld's own directory, in
//! which it would be mistaken for saved state.
//!
//! Anyone with the key can act as root through the REST API, and other users can plant a key in a state directory that they can write to. So a key is
//! used only if it and its directory belong to slurm or root, and other users cannot write to either.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::directories::{finding, make_owned};
use super::{InstallError, Owner, atomic};
use config::{Config, DaemonName, Paths};
use model::inventory::{Finding, Kind};
use sys::trusted_path::{self, Dir, is_ours};

/// If the REST API runs, creates the key for slurmctld and slurmdbd if it is missing, and replaces an untrusted key. Returns findings about repairs.
///
/// # Errors
/// slurmctld's user does not exist, or the key or its directory cannot be written.
pub fn install_jwt_key(config: &Config, root: &Path) -> Result<Vec<Finding>, InstallError> {
    if !config.runs_rest() {
        return Ok(Vec::new());
    }
    let (path, mut repaired) = (config.paths.jwt_key(), Vec::new());
    let owner = Owner::of(DaemonName::Slurmctld, config, &path)?;
    let (state, _) = trusted_path::make(root, &config.paths.state, &mut repaired)?;
    let child = state.child(Paths::JWT)?;
    let reason = why_untrusted(&child.0, &owner);
    let directory = make_owned(child, &owner, 0o700, &mut repaired)?;
    let mut findings: Vec<Finding> = repaired.iter().map(finding).collect();
    if let Some(what) = reason {
        directory.remove(Paths::JWT_KEY).map_err(|error| InstallError::write(&path, error))?;
        findings.push(Finding::warning(
            Kind::Files,
            format!("replaced the JWT key {}: {what}", path.display()),
            "anyone with the key can create tokens for root",
            "create new tokens; the previous ones are invalid",
        ));
    }
    match directory.metadata_of(Paths::JWT_KEY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut key = [0; 32];
            super::munge_key::fill_random(&mut key)?;
            atomic::replace_secret(&directory, Paths::JWT_KEY, &key, 0o600, Some(&owner))
        }
        found => found.map(drop),
    }
    .map_err(|error| InstallError::write(&path, error))?;
    Ok(findings)
}

/// The reason why the existing key in this directory cannot be trusted; `None` if it can, or if there is no key. Call it before the directory's owner
/// and mode are corrected.
fn why_untrusted(directory: &Dir, owner: &Owner) -> Option<String> {
    let key = directory.metadata_of(Paths::JWT_KEY).ok()?;
    let foreign_access = |what: &str, found: &Metadata| {
        let (uid, mode) = (found.uid(), found.mode() & 0o7777);
        if !is_ours(uid) && owner.ids().is_none_or(|(user, _)| user != uid) {
            return Some(format!("{what} belonged to uid {uid}"));
        }
        (mode & 0o022 != 0).then(|| format!("other users could write to {what} (mode {mode:04o})"))
    };
    let is_link = !key.is_file() || key.nlink() != 1;
    let link = is_link.then(|| "it was not a regular file, or had several hard links".to_owned());
    link.or_else(|| foreign_access("its directory", directory.metadata())).or_else(|| foreign_access("it", &key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn replaces_key_that_other_users_could_have_created() {
        let root = tempfile::tempdir().unwrap();
        let text =
            "[rest]\nlisten = '127.0.0.1:6820'\n[paths]\nstate = '/state'\n[daemon.slurmctld]\nuser = 'nobody'\n";
        let config = Config::parse(text, Path::new("t")).unwrap();
        std::fs::create_dir(root.path().join("state")).unwrap();
        let (directory, key) = (root.path().join("state/jwt"), root.path().join("state/jwt/jwt_hs256.key"));
        let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        let install = || {
            let findings = install_jwt_key(&config, root.path()).unwrap();
            (std::fs::read(&key).unwrap(), findings.iter().any(|finding| finding.what.contains("replaced the JWT key")))
        };
        let (first, is_replaced) = install();
        assert!(first.len() == 32 && !is_replaced);
        assert_eq!(install(), (first.clone(), false), "slurminit's own key is kept");
        mode(&key, 0o666);
        let (second, is_replaced) = install();
        assert!(second != first && is_replaced, "the key is world-writable");
        mode(&directory, 0o777);
        let (third, is_replaced) = install();
        assert!(third != second && is_replaced, "the directory is world-writable");
        std::fs::hard_link(&key, root.path().join("other")).unwrap();
        let (fourth, is_replaced) = install();
        assert!(fourth != third && is_replaced, "the key has a second hard link");
        std::fs::remove_file(&key).unwrap();
        std::os::unix::fs::symlink(root.path().join("other"), &key).unwrap();
        let (fifth, is_replaced) = install();
        assert!(fifth != third && is_replaced && key.symlink_metadata().unwrap().is_file(), "the key is a symlink");
    }
}
