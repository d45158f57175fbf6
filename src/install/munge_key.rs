//! The munge key: from a variable, a secret or a join token, otherwise the existing one, otherwise a new one. It is never in an image.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use super::{InstallError, Owner, atomic, directories};
use config::{Config, DaemonName, Role, given};
use model::inventory::{Finding, Kind};
use sys::trusted_path;
use sys::trusted_path::{Dir, UntrustedPath};

/// The size of a new key in bytes, equal to that of munge's own `mungekey`.
const NEW_KEY_BYTES: usize = 128;
/// munged's limits on the size of a key, in bytes (munge 0.5.13 and later).
const MIN_KEY_BYTES: u64 = 32;
const MAX_KEY_BYTES: u64 = 1024;
const LENGTH_FIX: &str = "mount a key of 128 random bytes: dd if=/dev/urandom bs=128 count=1 of=munge.key";

/// The installed key.
#[derive(Debug)]
pub struct MungeKey {
    /// The origin of the key.
    pub source: KeySource,
    /// Findings about repaired paths, a corrected key and ignored keys.
    pub findings: Vec<Finding>,
    /// The directory and name of a newly written key file, for [`Self::sync`].
    unsynced: Option<(Dir, String)>,
}

impl MungeKey {
    /// Syncs a new key to disk, so that it survives a crash. This is a separate step so that munged need not wait for the disk. A crash before the
    /// sync can leave an empty file, which the next start treats as missing.
    ///
    /// # Errors
    /// The sync fails.
    pub fn sync(&self) -> Result<(), InstallError> {
        let sync = |(directory, name): &(Dir, String)| {
            atomic::sync(directory, name).map_err(|error| InstallError::write(&directory.path().join(name), error))
        };
        self.unsynced.as_ref().map_or(Ok(()), sync)
    }
}

/// The origin of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A mounted secret.
    Secret,
    /// An environment variable.
    Variable,
    /// A key that was already in place, usually from an earlier start.
    Existing,
    /// A new key from the kernel's random number generator.
    Generated,
    /// The token of the cluster that the container joins.
    Token,
}

/// The operator's key and its origin.
pub type OperatorKey = (Vec<u8>, KeySource);

/// The installed key, and the operator's key (from the variable or the mounted secret) with its origin. `None` for a key
/// that is missing or empty, for an installed one that cannot be opened, and for an operator's key that other users could have written.
///
/// # Errors
/// A key cannot be read or has an invalid length, or the variable and the secret hold different keys.
pub fn munge_keys(config: &Config, root: &Path) -> Result<(Option<Vec<u8>>, Option<OperatorKey>), InstallError> {
    let (own, secret) = (&config.paths.munge_key, &config.paths.munge_secret);
    // The directory belongs to munge, so links in it are not followed.
    let directory = own.parent().map(|parent| root.join(parent.strip_prefix("/").unwrap_or(parent)));
    let directory = directory.and_then(|directory| Dir::open_unchecked(&directory).ok());
    let name = own.file_name().unwrap_or_default();
    let own = match directory.and_then(|directory| directory.open_file(Path::new(name)).ok()) {
        Some(file) => read_key(&file, own, LENGTH_FIX)?,
        None => None,
    };
    Ok((own, operator_key(root, secret, &mut Vec::new())?))
}

/// Installs the key of a token, as [`install_munge_key`] does with a secret.
///
/// # Errors
/// munged's user does not exist, or the key or its directory cannot be read, written or corrected.
pub fn install_token_key(config: &Config, root: &Path, key: &[u8]) -> Result<MungeKey, InstallError> {
    let mut findings = Vec::new();
    let place = KeyPlace::prepare(config, root, &mut findings)?;
    place.install_given(key, KeySource::Token, findings)
}

/// Installs munged's key with mode 0400. A new file is given to munge before it gets its final name.
///
/// # Errors
/// A key cannot be read, has an invalid length or must not be changed; the variable and the secret hold different keys; the key is missing in a
/// container without a controller; munged's user does not exist; or the key or its directory cannot be written.
pub fn install_munge_key(config: &Config, root: &Path) -> Result<MungeKey, InstallError> {
    let mut findings = Vec::new();
    let place = KeyPlace::prepare(config, root, &mut findings)?;
    if let Some((key, source)) = operator_key(root, &config.paths.munge_secret, &mut findings)? {
        let installed = place.install_given(&key, source, findings)?;
        // PID 1 saved the variable in this file, which is no longer needed.
        if let Ok(given) = trusted_path::open(root, Path::new(given::DIRECTORY)) {
            given
                .remove(given::KEY_FILE)
                .map_err(|error| InstallError::write(&given.path().join(given::KEY_FILE), error))?;
        }
        return Ok(installed);
    }
    let replace = "replace it with the controller's key or, on the controller, remove it to generate a new one (all containers need the same key)";
    if place.read(replace)?.is_some() {
        return place.finish(KeySource::Existing, false, findings);
    }
    if matches!(config.role, Role::Compute | Role::Login) {
        return Err(InstallError::NoKey { path: place.path, secret: config.paths.munge_secret.clone() });
    }
    let mut key = [0; NEW_KEY_BYTES];
    fill_random(&mut key)?;
    place.write(&key)?;
    place.finish(KeySource::Generated, true, findings)
}

/// Fills a new key with random bytes.
pub(super) fn fill_random(key: &mut [u8]) -> Result<(), InstallError> {
    let random = File::open("/dev/urandom").and_then(|mut random| random.read_exact(key));
    random.map_err(|error| InstallError::Random { error })
}

/// The directory and the file of munged's key.
struct KeyPlace {
    directory: Dir,
    name: String,
    path: PathBuf,
    owner: Owner,
}

impl KeyPlace {
    /// A directory named `munge` is restricted to munge. Any other directory is not changed, but must belong to munge, or be writable only by root.
    fn prepare(config: &Config, root: &Path, findings: &mut Vec<Finding>) -> Result<Self, InstallError> {
        let path = config.paths.munge_key.clone();
        let owner = Owner::of(DaemonName::Munged, config, &path)?;
        let mut repaired = Vec::new();
        let parent = path.parent().unwrap_or(Path::new("/"));
        let found = trusted_path::make(root, parent, &mut repaired)?;
        let directory = match parent.file_name().is_some_and(|name| name == "munge") {
            true => directories::make_owned(found, &owner, 0o700, &mut repaired)?,
            false if owner.owns(found.0.metadata()) => found.0,
            false => {
                found.0.require_ours()?;
                found.0
            }
        };
        findings.extend(repaired.iter().map(directories::finding));
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { directory, name, path, owner })
    }

    fn read(&self, fix: &'static str) -> Result<Option<Vec<u8>>, InstallError> {
        let unreadable = |error| InstallError::Read { path: self.path.clone(), error };
        match self.directory.metadata_of(&self.name) {
            Ok(metadata) if metadata.is_file() => {}
            Ok(_) => return Err(InstallError::KeyKind { path: self.path.clone() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error)),
        }
        let file = self.directory.open_file(&self.name).map_err(unreadable)?;
        read_key(&file, &self.path, fix)
    }

    /// Installs the operator's or a token's key, unless it is installed already.
    fn install_given(self, key: &[u8], source: KeySource, findings: Vec<Finding>) -> Result<MungeKey, InstallError> {
        let is_same = self.read(LENGTH_FIX).ok().flatten().is_some_and(|own| own == key);
        if !is_same {
            self.write(key)?;
        }
        self.finish(source, !is_same, findings)
    }

    fn write(&self, key: &[u8]) -> Result<(), InstallError> {
        atomic::replace_secret(&self.directory, &self.name, key, 0o400, Some(&self.owner))
            .map_err(|error| InstallError::write(&self.path, error))
    }

    fn finish(
        self,
        source: KeySource,
        was_written: bool,
        mut findings: Vec<Finding>,
    ) -> Result<MungeKey, InstallError> {
        if !was_written {
            findings.extend(self.correct_permissions()?);
        }
        let unsynced = was_written.then_some((self.directory, self.name));
        Ok(MungeKey { source, findings, unsynced })
    }

    /// munged rejects a key that it does not own or that others can read or write. A key with several hard links is not corrected, because it may be
    /// a link to an unrelated file.
    fn correct_permissions(&self) -> Result<Option<Finding>, InstallError> {
        let path = &self.path;
        let unreadable = |error| InstallError::Read { path: path.clone(), error };
        let file = self.directory.open_file(&self.name).map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        let mode = metadata.permissions().mode() & 0o7777;
        if mode == 0o400 && self.owner.owns(&metadata) {
            return Ok(None);
        }
        if metadata.nlink() > 1 {
            return Err(InstallError::KeyLinks { path: path.clone() });
        }
        let is_owners = self.owner.owns(&metadata);
        if !is_owners && self.owner.ids().is_some() {
            // Root owns it temporarily: changing the mode of another user's file would require the capability FOWNER.
            fchown(&file, Some(0), None).map_err(|error| self.owner.error(path, error))?;
        }
        file.set_permissions(fs::Permissions::from_mode(0o400)).map_err(|error| InstallError::write(path, error))?;
        self.owner.give(&file).map_err(|error| self.owner.error(path, error))?;
        if mode & 0o077 == 0 && is_owners {
            return Ok(None);
        }
        let new_uid = self.owner.ids().map_or(metadata.uid(), |(uid, _)| uid);
        Ok(Some(Finding::info(
            Kind::Files,
            format!(
                "corrected the munge key {}: it had uid {} and mode {mode:04o}, and now has uid {new_uid} and mode 0400",
                path.display(),
                metadata.uid()
            ),
            "munged rejects a key that another user owns, or can read or write",
            "nothing to do; generate a new key if another user may have read this one",
        )))
    }
}

/// The operator's key: from a variable, which PID 1 stored, or from a mounted secret.
fn operator_key(root: &Path, path: &Path, findings: &mut Vec<Finding>) -> Result<Option<OperatorKey>, InstallError> {
    // If other users could have written the file that is reserved for PID 1, it is ignored without a finding.
    let given = read_trusted_key(root, &Path::new(given::DIRECTORY).join(given::KEY_FILE), &mut Vec::new())?;
    match (given, read_trusted_key(root, path, findings)?) {
        (Some(given), Some(mounted)) if given != mounted => Err(InstallError::TwoKeys { secret: path.to_owned() }),
        (Some(given), _) => Ok(Some((given, KeySource::Variable))),
        (None, mounted) => Ok(mounted.map(|key| (key, KeySource::Secret))),
    }
}

/// The key in this file, if only root could have put it there. The file's own owner does not matter: a mounted file has the owner that it has outside
/// the container.
fn read_trusted_key(root: &Path, path: &Path, findings: &mut Vec<Finding>) -> Result<Option<Vec<u8>>, InstallError> {
    match trusted_path::open_file(root, path) {
        Ok(file) => read_key(&file, path, LENGTH_FIX),
        Err(error) if error.is_missing() => Ok(None),
        Err(UntrustedPath::Io { path, error }) => Err(InstallError::Read { path, error }),
        Err(untrusted) => {
            findings.push(Finding::warning(
                Kind::Files,
                format!("ignored the munge key {}: {}", path.display(), untrusted.reason()),
                "anyone with the key can act as root in this cluster, and other users could have written this one",
                "mount it as a secret in a root-owned directory, or remove it",
            ));
            Ok(None)
        }
    }
}

/// The key in a file; `None` if the file is empty: a crash can leave the file of a new key empty.
fn read_key(file: &File, path: &Path, fix: &'static str) -> Result<Option<Vec<u8>>, InstallError> {
    let unreadable = |error| InstallError::Read { path: path.to_owned(), error };
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.len() == 0 {
        return Ok(None);
    }
    if !(MIN_KEY_BYTES..=MAX_KEY_BYTES).contains(&metadata.len()) {
        return Err(InstallError::KeyLength { path: path.to_owned(), length: metadata.len(), fix });
    }
    trusted_path::read_whole(file).map(Some).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    const KEY: [u8; 64] = [7; 64];
    const NOBODY: u32 = 65534;

    fn config(toml: &str) -> Config {
        Config::parse(&format!("{toml}\n[daemon.munged]\nuser = 'nobody'\n"), Path::new("test.toml")).unwrap()
    }

    #[test]
    fn key_of_token_replaces_other_key_and_is_closed_again() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("etc/munge/munge.key");
        let install = || install_token_key(&config(""), root.path(), &KEY).unwrap();
        install_munge_key(&config(""), root.path()).unwrap();
        let installed = install();
        assert_eq!((installed.source, fs::read(&file).unwrap().as_slice()), (KeySource::Token, &KEY[..]));
        assert!(installed.findings.is_empty() && installed.unsynced.is_some());
        installed.sync().unwrap();

        let before = file.metadata().unwrap();
        assert_eq!((before.uid(), before.mode() & 0o777), (NOBODY, 0o400));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let again = install();
        let after = file.metadata().unwrap();
        assert_eq!((after.ino(), after.mode() & 0o777), (before.ino(), 0o400), "an equal key is not written again");
        assert!(again.findings.len() == 1 && again.unsynced.is_none(), "{:?}", again.findings);
    }

    #[test]
    fn key_directory_of_operator_keeps_its_owner_and_must_be_trusted() {
        let config = config("[paths]\nmunge_key = '/keys/key'");
        for (owner, is_trusted) in [(0, true), (NOBODY, true), (1234, false)] {
            let root = tempfile::tempdir().unwrap();
            let directory = root.path().join("keys");
            fs::create_dir(&directory).unwrap();
            chown(&directory, Some(owner), None).unwrap();
            let result = install_token_key(&config, root.path(), &KEY);
            assert_eq!((result.is_ok(), directory.join("key").exists()), (is_trusted, is_trusted), "{owner}");
            assert_eq!(directory.metadata().unwrap().uid(), owner);
        }
    }

    #[test]
    fn reads_installed_and_mounted_key() {
        let root = tempfile::tempdir().unwrap();
        let keys = || munge_keys(&config(""), root.path());
        assert!(matches!(keys().unwrap(), (None, None)));
        install_token_key(&config(""), root.path(), &KEY).unwrap();
        assert!(matches!(keys().unwrap(), (Some(own), None) if own == KEY));
        let secret = root.path().join("run/secrets/munge.key");
        fs::create_dir_all(secret.parent().unwrap()).unwrap();
        fs::write(&secret, [8; 32]).unwrap();
        let found = keys().unwrap();
        assert!(matches!(&found, (Some(own), Some((given, KeySource::Secret))) if *own == KEY && *given == [8; 32]));
        fs::write(&secret, "short").unwrap();
        assert!(matches!(keys(), Err(InstallError::KeyLength { length: 5, .. })));
    }
}
