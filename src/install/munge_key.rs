//! The munge key: from a secret, else the one that is there, else a new one. Never in an image.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use super::{InstallError, Owner, atomic, directories};
use crate::config::{Config, DaemonName};
use crate::inventory::{Finding, Severity};
use crate::walk::{self, Astray, Dir};

/// Bytes of a new key: what munge's own `mungekey` makes.
const NEW_KEY: usize = 128;
/// munged's limits (munge 0.5.13 and later).
const SHORTEST: u64 = 32;
const LONGEST: u64 = 1024;
const TOO_SHORT: &str = "mount a key of 128 random bytes: dd if=/dev/urandom bs=128 count=1 of=munge.key";

/// The key, now in place.
#[derive(Debug)]
pub struct MungeKey {
    /// Where it came from.
    pub source: KeySource,
    /// What was repaired.
    pub findings: Vec<Finding>,
    /// Where it was written and not yet synced.
    unsynced: Option<(Dir, String)>,
}

impl MungeKey {
    /// Makes a key that was just written survive a crash. Apart from the writing, because munged needs not wait for the
    /// disk; what a crash leaves in between is an empty file, which the next start takes for none.
    ///
    /// # Errors
    /// The disk's.
    pub fn sync(&self) -> Result<(), InstallError> {
        let sync = |(directory, name): &(Dir, String)| {
            atomic::sync(directory, name).map_err(|error| InstallError::write(&directory.path().join(name), error))
        };
        self.unsynced.as_ref().map_or(Ok(()), sync)
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
    let mut findings = Vec::new();
    let place = Place::prepare(config, root, &mut findings)?;
    if let Some(key) = secret(root, &config.paths.munge_secret, &mut findings)? {
        let is_same = place.read(TOO_SHORT).ok().flatten().is_some_and(|own| own == key);
        let was_written = !is_same;
        if was_written {
            place.write(&key)?;
        }
        return place.finish(KeySource::Secret, was_written, findings);
    }
    let remove = "remove it to have a new one made (every container of the cluster needs the same)";
    if place.read(remove)?.is_some() {
        return place.finish(KeySource::Existing, false, findings);
    }
    let mut key = [0; NEW_KEY];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut key))
        .map_err(|source| InstallError::Random { source })?;
    place.write(&key)?;
    place.finish(KeySource::Generated, true, findings)
}

/// Where munged reads its key.
struct Place {
    directory: Dir,
    name: String,
    path: PathBuf,
    owner: Owner,
}

impl Place {
    /// A directory of munge's own is munge's alone; any other one is not ours to change, but must be root's or munge's.
    fn prepare(config: &Config, root: &Path, findings: &mut Vec<Finding>) -> Result<Self, InstallError> {
        let path = config.paths.munge_key.clone();
        let owner = Owner::of(DaemonName::Munged, config, &path)?;
        let mut mended = Vec::new();
        let parent = path.parent().unwrap_or(Path::new("/"));
        let found = walk::make(root, parent, &mut mended)?;
        let directory = match parent.file_name().is_some_and(|name| name == "munge") {
            true => directories::owned(found, &owner, 0o700, &mut mended)?,
            false if owner.owns(found.0.metadata()) => found.0,
            false => {
                found.0.require_ours()?;
                found.0
            }
        };
        findings.extend(mended.iter().map(directories::finding));
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { directory, name, path, owner })
    }

    fn read(&self, repair: &'static str) -> Result<Option<Vec<u8>>, InstallError> {
        let unreadable = |source| InstallError::Read { path: self.path.clone(), source };
        match self.directory.metadata_of(&self.name) {
            Ok(metadata) if metadata.is_file() => {}
            Ok(_) => return Err(InstallError::KeyKind { path: self.path.clone() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error)),
        }
        let file = self.directory.open_file(&self.name).map_err(unreadable)?;
        read_key(&file, &self.path, repair)
    }

    fn write(&self, key: &[u8]) -> Result<(), InstallError> {
        atomic::replace_secret(&self.directory, &self.name, key, Some(&self.owner))
            .map_err(|error| InstallError::write(&self.path, error))
    }

    fn finish(
        self,
        source: KeySource,
        was_written: bool,
        mut findings: Vec<Finding>,
    ) -> Result<MungeKey, InstallError> {
        if !was_written {
            findings.extend(self.correct()?);
        }
        let unsynced = was_written.then_some((self.directory, self.name));
        Ok(MungeKey { source, findings, unsynced })
    }

    /// munged refuses a key that is not its own or that others can read. A key with a second name is copied: the other
    /// name may be a file that is no key.
    fn correct(&self) -> Result<Option<Finding>, InstallError> {
        let path = &self.path;
        let unreadable = |source| InstallError::Read { path: path.clone(), source };
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
            // Root's for a moment: the mode of somebody else's file takes one capability more.
            fchown(&file, Some(0), None).map_err(|error| self.owner.error(path, error))?;
        }
        file.set_permissions(fs::Permissions::from_mode(0o400)).map_err(|error| InstallError::write(path, error))?;
        self.owner.own(&file).map_err(|error| self.owner.error(path, error))?;
        if mode & 0o077 == 0 && is_owners {
            return Ok(None);
        }
        Ok(Some(Finding {
            severity: Severity::Info,
            what: format!(
                "the munge key {} was made readable for munged alone (it was mode {mode:04o})",
                path.display()
            ),
            cause: "munged refuses a key of another owner or one that others can read".to_owned(),
            repair: "nothing to do; make a new key if somebody else may have read the old one".to_owned(),
        }))
    }
}

/// The key that an orchestrator has mounted, if nobody but root could have put it there. Whose the file is does not
/// matter: a mount keeps the owner that it has outside.
fn secret(root: &Path, path: &Path, findings: &mut Vec<Finding>) -> Result<Option<Vec<u8>>, InstallError> {
    match walk::open_file(root, path) {
        Ok(file) => read_key(&file, path, TOO_SHORT),
        Err(error) if error.is_missing() => Ok(None),
        Err(Astray::Io { path, source }) => Err(InstallError::Read { path, source }),
        Err(astray) => {
            findings.push(Finding {
                severity: Severity::Warning,
                what: format!("the key {} is not taken: {astray}", path.display()),
                cause: "whoever has the key is root in this cluster, and this one could be anybody's".to_owned(),
                repair: "mount it as a secret, in directories that are root's; or remove it".to_owned(),
            });
            Ok(None)
        }
    }
}

/// The key in a file; `None` if it is empty, which is what a crash leaves of a new key.
fn read_key(file: &File, path: &Path, repair: &'static str) -> Result<Option<Vec<u8>>, InstallError> {
    let unreadable = |source| InstallError::Read { path: path.to_owned(), source };
    let metadata = file.metadata().map_err(unreadable)?;
    if metadata.len() == 0 {
        return Ok(None);
    }
    if !(SHORTEST..=LONGEST).contains(&metadata.len()) {
        return Err(InstallError::KeyLength { path: path.to_owned(), length: metadata.len(), repair });
    }
    walk::read_whole(file).map(Some).map_err(unreadable)
}
