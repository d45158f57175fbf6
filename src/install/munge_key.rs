//! The munge key: from a secret, else the one that is there, else a new one. Never in an image.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::{InstallError, Owner, atomic, directories, under};
use crate::config::{Config, DaemonName};
use crate::inventory::{Finding, Severity};

/// Bytes of a new key: what munge's own `mungekey` makes.
const NEW_KEY: usize = 128;
/// munged's limits (munge 0.5.13 and later).
const SHORTEST: u64 = 32;
const LONGEST: u64 = 1024;

/// The key, now in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MungeKey {
    /// Where it came from.
    pub source: KeySource,
    /// What was repaired.
    pub findings: Vec<Finding>,
    /// Where it was written and not yet synced.
    unsynced: Option<PathBuf>,
}

impl MungeKey {
    /// Makes a key that was just written survive a crash. Apart from the writing, because munged needs not wait for the
    /// disk; what a crash leaves in between is an empty file, which the next start takes for none.
    ///
    /// # Errors
    /// The disk's.
    pub fn sync(&self) -> Result<(), InstallError> {
        self.unsynced
            .as_deref()
            .map_or(Ok(()), |path| atomic::sync(path).map_err(|error| InstallError::write(path, error)))
    }
}

/// Where the key came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The mounted secret.
    Secret,
    /// An earlier start.
    Existing,
    /// The kernel's randomness, just now.
    Generated,
}

/// Puts the key in place: 0400, owned by munge from the moment it has its name.
///
/// # Errors
/// A key that munged would refuse and that is not ours to replace, or a directory that cannot be written.
pub fn install_munge_key(config: &Config, root: &Path) -> Result<MungeKey, InstallError> {
    let path = &config.paths.munge_key;
    let owner = Owner::of(DaemonName::Munged, config, path)?;
    if let Some(directory) = path.parent() {
        make_key_directory(root, directory, &owner)?;
    }
    let secret = &config.paths.munge_secret;
    let too_short = "mount a key of 128 random bytes: dd if=/dev/urandom bs=128 count=1 of=munge.key";
    let write = |key: &[u8]| {
        let written = atomic::replace_secret(&under(root, path), key, Some(&owner));
        written.map(|()| under(root, path)).map_err(|error| InstallError::write(path, error))
    };
    if let Some(key) = read_key(root, secret, too_short)? {
        let same = read_key(root, path, too_short).ok().flatten().is_some_and(|own| own == key);
        let unsynced = if same { None } else { Some(write(&key)?) };
        return Ok(MungeKey { source: KeySource::Secret, findings: correct(root, path, &owner)?, unsynced });
    }
    let remove = "remove it to have a new one made (every container of the cluster needs the same)";
    if read_key(root, path, remove)?.is_some() {
        return Ok(MungeKey { source: KeySource::Existing, findings: correct(root, path, &owner)?, unsynced: None });
    }
    let mut key = [0; NEW_KEY];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut key))
        .map_err(|source| InstallError::Random { source })?;
    Ok(MungeKey { source: KeySource::Generated, findings: Vec::new(), unsynced: Some(write(&key)?) })
}

/// A directory of munge's own is munge's alone; any other one is not ours to change.
fn make_key_directory(root: &Path, directory: &Path, owner: &Owner) -> Result<(), InstallError> {
    if directory.file_name().is_some_and(|name| name == "munge") {
        return directories::owned(root, directory, owner, 0o700);
    }
    fs::create_dir_all(under(root, directory)).map_err(|error| InstallError::directory(directory, error))
}

/// The key at `path`; `None` if there is no such file, or an empty one, which is what a crash leaves of a new key.
fn read_key(root: &Path, path: &Path, repair: &'static str) -> Result<Option<Vec<u8>>, InstallError> {
    let real = under(root, path);
    let unreadable = |source| InstallError::Read { path: path.to_owned(), source };
    let metadata = match fs::metadata(&real) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(unreadable(source)),
    };
    if !metadata.is_file() {
        return Err(InstallError::KeyKind { path: path.to_owned() });
    }
    if metadata.len() == 0 {
        return Ok(None);
    }
    if !(SHORTEST..=LONGEST).contains(&metadata.len()) {
        return Err(InstallError::KeyLength { path: path.to_owned(), length: metadata.len(), repair });
    }
    fs::read(&real).map(Some).map_err(unreadable)
}

/// munged refuses a key that is not its own or that others can read.
fn correct(root: &Path, path: &Path, owner: &Owner) -> Result<Vec<Finding>, InstallError> {
    let real = under(root, path);
    let unreadable = |source| InstallError::Read { path: path.to_owned(), source };
    let file = File::open(&real).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let mode = metadata.permissions().mode() & 0o7777;
    if mode == 0o400 && owner.owns(&metadata) {
        return Ok(Vec::new());
    }
    file.set_permissions(fs::Permissions::from_mode(0o400)).map_err(|error| InstallError::write(path, error))?;
    owner.own(&file).map_err(|error| owner.error(path, error))?;
    if mode & 0o077 == 0 && owner.owns(&metadata) {
        return Ok(Vec::new());
    }
    Ok(vec![Finding {
        severity: Severity::Info,
        what: format!("the munge key {} was made readable for munged alone (it was mode {mode:04o})", path.display()),
        cause: "munged refuses a key of another owner or one that others can read".to_owned(),
        repair: "nothing to do; make a new key if somebody else may have read the old one".to_owned(),
    }])
}
