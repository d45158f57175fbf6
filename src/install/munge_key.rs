//! The munge key: from a variable or a secret, otherwise the existing one, otherwise a new one. It is never in an image.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use super::{InstallError, Owner, atomic, directories};
use config::{Config, DaemonName, Role, given};
use model::inventory::{Finding, Kind};
use sys::trusted_path;
use sys::trusted_path::{Dir, UntrustedPath};

/// The size of a new key in bytes, as made by munge's own `mungekey`.
const NEW_KEY_BYTES: usize = 128;
/// munged's limits on the size (munge 0.5.13 and later).
const MIN_KEY_BYTES: u64 = 32;
const MAX_KEY_BYTES: u64 = 1024;
const LENGTH_FIX: &str = "mount a key of 128 random bytes: dd if=/dev/urandom bs=128 count=1 of=munge.key";

/// The installed key.
#[derive(Debug)]
pub struct MungeKey {
    /// The origin of the key.
    pub source: KeySource,
    /// What was repaired.
    pub findings: Vec<Finding>,
    /// The new key file and its directory, until they are synced to disk.
    unsynced: Option<(Dir, String)>,
}

impl MungeKey {
    /// Makes a new key survive a crash. This is a separate step so that munged need not wait for the disk. A crash
    /// before it leaves an empty file, which the next start treats as missing.
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
    /// A key that an earlier start installed.
    Existing,
    /// Just generated from the kernel's randomness.
    Generated,
    /// The token of the cluster that the container joins.
    Token,
}

/// The installed key, and the key of the variable or of the mounted secret.
///
/// # Errors
/// A key cannot be read, or has an invalid length.
pub fn munge_keys(config: &Config, root: &Path) -> Result<[Option<Vec<u8>>; 2], InstallError> {
    let (own, secret) = (&config.paths.munge_key, &config.paths.munge_secret);
    // The directory is munge's, so links in it are not followed.
    let directory = own.parent().map(|parent| root.join(parent.strip_prefix("/").unwrap_or(parent)));
    let directory = directory.and_then(|directory| Dir::open_unchecked(&directory).ok());
    let name = own.file_name().unwrap_or_default();
    let own = match directory.and_then(|directory| directory.open_file(Path::new(name)).ok()) {
        Some(file) => read_key(&file, own, LENGTH_FIX)?,
        None => None,
    };
    let operators = operator_key(root, secret, &mut Vec::new())?;
    Ok([own, operators.map(|(key, _)| key)])
}

/// Installs the key of a token, as [`install_munge_key`] does with a secret.
///
/// # Errors
/// The directory cannot be written.
pub fn install_token_key(config: &Config, root: &Path, key: &[u8]) -> Result<MungeKey, InstallError> {
    let mut findings = Vec::new();
    let place = KeyPlace::prepare(config, root, &mut findings)?;
    place.install_given(key, KeySource::Token, findings)
}

/// Installs the key with mode 0400. It belongs to munge before it gets its name.
///
/// # Errors
/// munged would refuse the key and slurminit must not replace it, or a directory cannot be written.
pub fn install_munge_key(config: &Config, root: &Path) -> Result<MungeKey, InstallError> {
    let mut findings = Vec::new();
    let place = KeyPlace::prepare(config, root, &mut findings)?;
    if let Some((key, source)) = operator_key(root, &config.paths.munge_secret, &mut findings)? {
        let installed = place.install_given(&key, source, findings)?;
        // Removes PID 1's copy of the variable.
        if let Ok(given) = trusted_path::open(root, Path::new(given::DIRECTORY)) {
            given
                .remove(given::KEY_FILE)
                .map_err(|error| InstallError::write(&given.path().join(given::KEY_FILE), error))?;
        }
        return Ok(installed);
    }
    let remove = "remove it to generate a new one (all containers of the cluster need the same key)";
    if place.read(remove)?.is_some() {
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
    /// If the directory is munge's own, it is restricted to munge. Any other directory is not changed, but must belong
    /// to root or munge.
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

    /// munged refuses a key that it does not own or that others can read. A key with a second hard link is copied,
    /// because the other name may be an unrelated file.
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
            // Root owns it for a moment: changing the mode of another user's file needs one more capability.
            fchown(&file, Some(0), None).map_err(|error| self.owner.error(path, error))?;
        }
        file.set_permissions(fs::Permissions::from_mode(0o400)).map_err(|error| InstallError::write(path, error))?;
        self.owner.give(&file).map_err(|error| self.owner.error(path, error))?;
        if mode & 0o077 == 0 && is_owners {
            return Ok(None);
        }
        Ok(Some(Finding::info(
            Kind::Files,
            format!("the munge key {} had mode {mode:04o}; made readable only by munged", path.display()),
            "munged rejects a key that another user owns or can read",
            "nothing to do; generate a new key if another user may have read the old one",
        )))
    }
}

/// The operator's key: from a variable, which PID 1 stored, or from a mounted secret.
fn operator_key(
    root: &Path,
    path: &Path,
    findings: &mut Vec<Finding>,
) -> Result<Option<(Vec<u8>, KeySource)>, InstallError> {
    // A key that other users could have put there is ignored without a finding.
    let given = read_trusted_key(root, &Path::new(given::DIRECTORY).join(given::KEY_FILE), &mut Vec::new())?;
    match (given, read_trusted_key(root, path, findings)?) {
        (Some(given), Some(mounted)) if given != mounted => Err(InstallError::TwoKeys { secret: path.to_owned() }),
        (Some(given), _) => Ok(Some((given, KeySource::Variable))),
        (None, mounted) => Ok(mounted.map(|key| (key, KeySource::Secret))),
    }
}

/// The key mounted by an orchestrator, if only root could have put it there. Its owner does not matter, because a mount
/// keeps the owner from outside.
fn read_trusted_key(root: &Path, path: &Path, findings: &mut Vec<Finding>) -> Result<Option<Vec<u8>>, InstallError> {
    match trusted_path::open_file(root, path) {
        Ok(file) => read_key(&file, path, LENGTH_FIX),
        Err(error) if error.is_missing() => Ok(None),
        Err(UntrustedPath::Io { path, error }) => Err(InstallError::Read { path, error }),
        Err(untrusted) => {
            findings.push(Finding::warning(
                Kind::Files,
                format!("the key {} is ignored: {untrusted}", path.display()),
                "the key gives root in this cluster, and other users could have written this one",
                "mount it as a secret below directories of root, or remove it",
            ));
            Ok(None)
        }
    }
}

/// The key in a file; `None` if the file is empty, which a crash can leave of a new key.
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
