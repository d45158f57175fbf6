//! Container images for jobs: import, storage, and the runtime that slurmstepd calls.
//!
//! Images are untrusted, even if root imports them. So an archive is only parsed as data (`tar`, `codec`). Its files are created through directory
//! descriptors of one tree (`tree`), never by a path from the archive. No file in a tree is set-user-id, a device, or writable by other users. An
//! image appears under its name only once it is complete and its digests are verified (`import`).

#![forbid(unsafe_code)]

mod codec;
mod copy;
mod import;
mod layer;
mod manifest;
mod name;
mod pull;
mod record;
mod reference;
pub mod runtime;
mod source;
mod store;
mod tar;
mod tree;

pub use import::{Importer, Limits, Source};
pub use name::ImageName;
pub use pull::{Download, Puller};
pub use record::ImageRecord;
pub use reference::{Reference, SCHEME};
pub use store::{Listing, Store};

use std::io;
use std::path::{Path, PathBuf};

use sys::trusted_path::UntrustedPath;

/// An image could not be imported, found or removed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message describes the variant")]
pub enum ImageError {
    #[error("invalid image: {0}")]
    Malformed(String),
    #[error("rejected: {what}: {path}")]
    Rejected { path: String, what: &'static str },
    #[error("unsupported {what}: {path}")]
    Unsupported { path: String, what: &'static str },
    #[error("rejected: {0}")]
    TooLarge(&'static str),
    #[error("wrong digest of {what}: expected {expected}, got {found}; copy or pull the image again")]
    Digest { what: &'static str, expected: String, found: String },
    #[error(
        "the image is for {found}, but this machine is linux/{expected}; get the image for linux/{expected} \
         (with Docker: docker pull --platform linux/{expected})"
    )]
    Architecture { expected: &'static str, found: String },
    #[error(
        "not enough free space in {path}: {free} MiB free, and {reserve} MiB must stay free; remove images, or use a larger disk"
    )]
    Space { path: PathBuf, free: u64, reserve: u64 },
    #[error("image {0} already exists; replace it with --replace, or remove it with `slurminit image remove {0}`")]
    Exists(ImageName),
    #[error("no image {name} in {path}; `slurminit image list` shows the images")]
    Missing { name: ImageName, path: PathBuf },
    #[error("untrusted image: {path} belongs to uid {uid}, who could change the programs of jobs; {fix}")]
    Foreign { path: PathBuf, uid: u32, fix: String },
    #[error("untrusted image: {path} is writable by other users (mode {mode:04o}), who could change the programs of jobs; {}", closing(path, *mode))]
    Open { path: PathBuf, mode: u32 },
    #[error("untrusted image: {path} is a symbolic link that another user may have made; remove it")]
    Link { path: PathBuf },
    #[error("cannot import {path}: {why}")]
    Unreadable { path: PathBuf, why: UntrustedPath },
    #[error(
        "{path} is closed to other users (mode {mode:04o}), but root imports images for all users; run `chmod go+rx {path}`"
    )]
    Private { path: PathBuf, mode: u32 },
    #[error("cannot pull {image}: {error}")]
    NotPulled { image: Reference, error: Box<Self> },
    #[error("{why}; {fix}")]
    Registry { why: String, fix: String },
    #[error("{0} (reported by another process that was pulling the same image)")]
    PullOfAnother(String),
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
    #[error("cannot read or unpack the image: {0}")]
    Read(io::Error),
}

/// Unwraps an [`ImageError`] that one of this crate's readers returned as an I/O error.
impl From<io::Error> for ImageError {
    fn from(error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(own) => own,
            Err(error) => Self::Read(error),
        }
    }
}

/// The fix for a file or directory that other users can write to.
fn closing(path: &Path, mode: u32) -> String {
    let path = path.display();
    let shared = if mode & 0o002 != 0 {
        format!(" (or `chmod +t {path}` if it only contains the image directory)")
    } else {
        String::new()
    };
    format!("run `chmod go-w {path}`{shared}, or choose another directory")
}

impl ImageError {
    /// Whether another user could change the image, or all images of the directory.
    pub fn is_untrusted(&self) -> bool {
        matches!(self, Self::Foreign { .. } | Self::Open { .. } | Self::Link { .. })
    }

    fn untrusted_directory(error: UntrustedPath) -> Self {
        match error {
            UntrustedPath::Foreign { path, uid } => {
                let owner = nix::unistd::geteuid();
                let fix = format!("run `chown {owner} {}`, or choose another directory", path.display());
                Self::Foreign { path, uid, fix }
            }
            UntrustedPath::Open { path, mode } => Self::Open { path, mode },
            UntrustedPath::Link { path } => Self::Link { path },
            UntrustedPath::Io { path, error } => Self::Io { path, error },
        }
    }

    fn io(path: impl Into<PathBuf>, error: impl Into<io::Error>) -> Self {
        Self::Io { path: path.into(), error: error.into() }
    }
}

#[cfg(test)]
mod tests;
