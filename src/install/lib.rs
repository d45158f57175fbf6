//! Writes configuration files, accounts, keys and the daemons' directories.
//!
//! Paths are below a root directory (`/` except in tests). Except for home directories and [`replace_users_file`], root writes only to directories
//! whose paths no other user controls ([`sys::trusted_path`]). Files that are already correct are not written, and nothing is synced unless data
//! could be lost. So a start without changes does not wait for the disk, and a first start does so only for accounts and keys.

#![forbid(unsafe_code)]

mod accounting;
mod accounts;
mod applied;
mod atomic;
mod bundles;
mod closed_partitions;
mod copies;
mod daemon_directory;
mod device_files;
mod directories;
mod environments;
pub mod exposure;
mod host_accounts;
mod hosts;
mod jwt_key;
pub mod load_config;
mod munge_key;
mod owner;
mod password_lock;
mod pattern;
pub mod planned;
#[cfg(test)]
mod private_mount;
mod skeleton;
mod sshd;
mod users_file;

pub use accounting::install_accounting;
pub use accounts::{AccountError, check_accounts, install_accounts, removed_users};
pub use applied::{keep_applied, keep_start_only, read_applied, read_former, read_start_only, restore_applied};
pub use bundles::make_bundle_directories;
pub use closed_partitions::{closed_partitions, forget_closed_partitions, record_closed_partitions};
pub use copies::record_copies;
pub use daemon_directory::{is_usable_by, make_daemon_directory};
pub use device_files::{
    close_device_file, device_file_user, give_device_file, is_restricted_device_file, revoke_device_file,
};
pub use directories::{make_directories, make_simulated_gpus};
pub use environments::{install_environments, read_login_files};
pub use host_accounts::add_host_accounts;
pub use hosts::{
    HostsWriter, has_host_name, install_address, install_host_name, install_node_names, is_loopback_name,
    node_names_writer,
};
pub use jwt_key::install_jwt_key;
pub use munge_key::{KeySource, MungeKey, OperatorKey, install_munge_key, install_token_key, munge_keys};
pub use owner::Owner;
pub use probe::device_files::WATCHER_USER;
pub use sshd::install_sshd;
pub use users_file::replace_users_file;

use std::io;
use std::path::{Path, PathBuf};

use config::Paths;
use plan::{FileName, Origin, Text, UserFile};
use sys::trusted_path::{self, UntrustedPath};
use sys::under;

/// Why the installation failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message describes the variant")]
pub enum InstallError {
    #[error("cannot read {path}: {error}; make sure that it is a regular file that slurminit can read")]
    Read { path: PathBuf, error: io::Error },
    #[error("{path} is missing; restore it from the image")]
    Missing { path: PathBuf },
    #[error("{path} is not UTF-8 text; save it as UTF-8")]
    NotText { path: PathBuf },
    #[error("cannot write {path}: {error}; {fix}")]
    Write { path: PathBuf, error: io::Error, fix: &'static str },
    #[error("cannot create or use the directory {path}: {error}; {fix}")]
    Directory { path: PathBuf, error: io::Error, fix: &'static str },
    #[error("user not found: `{user}`, who must own {path}; {fix}")]
    NoUser { user: String, path: PathBuf, fix: String },
    #[error(
        "cannot give {path} to user `{user}`: {error}; start as root, with the capabilities CHOWN and DAC_OVERRIDE"
    )]
    Owner { path: PathBuf, user: String, error: io::Error },
    #[error("cannot switch to user `{user}`: {error}; start as root, with the capabilities SETUID and SETGID")]
    Switch { user: String, error: io::Error },
    #[error(
        "{path} belongs to uid {uid} and contains files other than slurmctld's state; configure an empty directory, or run `chown` to give this one to the daemon's user"
    )]
    Occupied { path: PathBuf, uid: u32 },
    #[error(
        "cannot make root the owner of {path}: {error}; add the capability CHOWN, or run `chown root` on the host's directory"
    )]
    Take { path: PathBuf, error: io::Error },
    #[error("the munge key {path} has {length} bytes, but munged requires 32 to 1024; {fix}")]
    KeyLength { path: PathBuf, length: u64, fix: &'static str },
    #[error(transparent)]
    UntrustedPath(UntrustedPath),
    #[error(
        "no munge key: mount the controller's key at {path} or as the secret {secret}, or set the same SLURMINIT_MUNGE_KEY in all containers"
    )]
    NoKey { path: PathBuf, secret: PathBuf },
    #[error("SLURMINIT_MUNGE_KEY and {secret} hold two different keys: remove one of them")]
    TwoKeys { secret: PathBuf },
    #[error("the munge key {path} is not a regular file (links are not followed); remove it")]
    KeyKind { path: PathBuf },
    #[error(
        "the munge key {path} has several hard links, so its owner and mode are not corrected (required: munged's user, mode 0400); \
         replace it with a copy (cp -p)"
    )]
    KeyLinks { path: PathBuf },
    #[error("cannot add names of nodes to {path}: {error}; start the container with --add-host {hosts}")]
    Hosts { path: PathBuf, hosts: String, error: io::Error },
    #[error(
        "unusable password of the accounting database in {path}: {why}; mount a file with a usable password there, or set `[accounting] password_secret` to its path"
    )]
    Password { path: PathBuf, why: String },
    #[error("cannot read random bytes for a new key: {error}")]
    Random { error: io::Error },
}

impl From<UntrustedPath> for InstallError {
    fn from(untrusted: UntrustedPath) -> Self {
        match untrusted {
            UntrustedPath::Io { path, error } => Self::directory(&path, error),
            other => Self::UntrustedPath(other),
        }
    }
}

impl InstallError {
    fn write(path: &Path, error: io::Error) -> Self {
        let fix = fix(&error);
        Self::Write { path: path.to_owned(), error, fix }
    }

    /// The error for a directory whose owner could not be changed to root.
    fn take(path: &Path, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::Take { path: path.to_owned(), error },
            _ => Self::directory(path, error),
        }
    }

    fn directory(path: &Path, error: io::Error) -> Self {
        let fix = fix(&error);
        Self::Directory { path: path.to_owned(), error, fix }
    }
}

/// The operator's fix for an error.
fn fix(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => "the disk is full: free some space",
        io::ErrorKind::QuotaExceeded => "the quota is used up: free some space, or raise the quota",
        io::ErrorKind::ReadOnlyFilesystem => {
            "mount it writable (with --read-only: --tmpfs /run --tmpfs /etc/slurm:exec, volumes at /etc/munge and /var/lib/slurm)"
        }
        io::ErrorKind::PermissionDenied => "no write permission: start the container as root, or correct the owner",
        io::ErrorKind::ResourceBusy => {
            "the file is a mount point: mount its directory, or put the file into the configuration directory instead"
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "a part of the path is not a directory: move it away"
        }
        io::ErrorKind::TimedOut => "another program is changing the accounts: wait until it finishes, and try again",
        io::ErrorKind::IsADirectory => "a directory of that name exists: move it away",
        _ => "check the directory that contains it",
    }
}

/// Reads a text file; `None` if it does not exist.
fn read_text(root: &Path, path: &Path) -> Result<Option<String>, InstallError> {
    match trusted_path::read(&under(root, path)) {
        Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(|_| InstallError::NotText { path: path.to_owned() }),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(InstallError::Read { path: path.to_owned(), error }),
    }
}

/// Slurm's configuration files in the operator's directory and in Slurm's. Call it before new files are installed.
///
/// # Errors
/// An existing file cannot be read as text.
pub fn find_user_files(paths: &Paths, root: &Path) -> Result<Vec<UserFile>, InstallError> {
    let mut found = Vec::new();
    for (origin, directory) in [(Origin::Config, &paths.config), (Origin::Slurm, &paths.slurm)] {
        for name in FileName::ALL {
            let path = directory.join(name.as_str());
            let Some(text) = read_text(root, &path)? else { continue };
            let is_copy = origin == Origin::Slurm && copies::is_copy(paths, root, name, &text);
            let origin = if is_copy { Origin::Copy } else { origin };
            found.push(UserFile::new(name, origin, path, &text, &|name| read_included(paths, root, origin, name)));
        }
    }
    Ok(found)
}

/// The path and text of a file that a file of the user includes: from the same directory or from Slurm's.
fn read_included(paths: &Paths, root: &Path, origin: Origin, name: &str) -> Result<(PathBuf, String), String> {
    let operator_directory = (origin == Origin::Config).then_some(&paths.config);
    for directory in operator_directory.into_iter().chain([&paths.slurm]) {
        let path = directory.join(name);
        if let Some(text) = read_text(root, &path).map_err(|error| error.to_string())? {
            return Ok((path, text));
        }
    }
    Err("file not found".to_owned())
}

/// Installs `files` into Slurm's directory, except over a user's own oci.conf or CLI filter. Returns the paths of those that changed.
///
/// # Errors
/// The first file that cannot be read or written; it stays unchanged.
pub fn install_files(paths: &Paths, root: &Path, files: &[Text]) -> Result<Vec<PathBuf>, InstallError> {
    let mut changed = Vec::new();
    for Text { name, text } in files {
        let path = paths.slurm.join(name.as_str());
        if matches!(name, FileName::OciConf | FileName::CliFilter) && is_user_file(root, &path)? {
            continue;
        }
        if replace_in(root, &paths.slurm, name.as_str(), text, name.mode())? {
            changed.push(path);
        }
    }
    Ok(changed)
}

/// Whether the file exists and was not written by slurminit.
fn is_user_file(root: &Path, path: &Path) -> Result<bool, InstallError> {
    Ok(read_text(root, path)?.is_some_and(|text| !text.starts_with(plan::HEADER)))
}

/// Replaces a file in a root-owned directory, which is created if it is missing. Returns whether the file was written.
fn replace_in(root: &Path, directory: &Path, name: &str, text: &str, mode: u32) -> Result<bool, InstallError> {
    let (real, _) = trusted_path::make(root, directory, &mut Vec::new())?;
    real.require_ours()?;
    atomic::replace(&real, name, text.as_bytes(), mode)
        .map_err(|error| InstallError::write(&directory.join(name), error))
}

#[cfg(test)]
mod tests {
    use io::ErrorKind;

    use super::*;

    #[test]
    fn fix_depends_on_kind_of_error() {
        for (kind, expected) in [
            (ErrorKind::StorageFull, "free some space"),
            (ErrorKind::QuotaExceeded, "free some space"),
            (ErrorKind::ReadOnlyFilesystem, "mount it writable"),
            (ErrorKind::PermissionDenied, "start the container as root"),
            (ErrorKind::ResourceBusy, "mount its directory"),
            (ErrorKind::NotADirectory, "not a directory: move it away"),
            (ErrorKind::AlreadyExists, "not a directory: move it away"),
            (ErrorKind::TimedOut, "changing the accounts: wait"),
            (ErrorKind::IsADirectory, "a directory of that name exists"),
            (ErrorKind::Other, "check the directory that contains it"),
        ] {
            for error in [InstallError::write, InstallError::directory] {
                let text = error(Path::new("/file"), kind.into()).to_string();
                assert!(text.contains("/file: ") && text.contains(expected), "{kind}: {text}");
            }
        }
    }

    #[test]
    fn directory_that_cannot_be_given_to_root_needs_capability_only_without_permission() {
        let fix = |kind: ErrorKind| InstallError::take(Path::new("/state"), kind.into()).to_string();
        assert!(fix(ErrorKind::PermissionDenied).contains("add the capability CHOWN"));
        assert!(fix(ErrorKind::ReadOnlyFilesystem).contains("mount it writable"));
    }
}
