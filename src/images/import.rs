//! Imports an image.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::sys::statvfs::fstatvfs;
use sys::trusted_path;

use super::codec::{self, Digest};
use super::layer::{self, Whiteouts};
use super::manifest::{self, Configuration, SavedImage};
use super::pull::{Download, LAYOUT};
use super::source::{self, ImageFiles};
use super::store::{RECORD, ROOTFS, Store, Unfinished};
use super::tree::{Budget, Tree};
use super::{ImageError, ImageName, ImageRecord, copy};

/// The directory of a download, beside the directory of the image's files.
const DOWNLOAD: &str = "download";
/// The maximum depth of the files in a download: skopeo's cache and the OCI layout.
const DOWNLOAD_DEPTH: usize = 8;

/// The source of an image.
pub enum Source {
    /// An archive that is read once: standard input, or a pipe.
    Stream(Box<dyn Read>),
    /// An archive, or the directory of an OCI layout or a file tree. Its owner is not trusted.
    Path(PathBuf),
    /// An image in a registry, to be downloaded.
    Registry(Download),
}

/// Limits of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Free space that an import leaves, in bytes.
    pub reserve: u64,
    /// The maximum size of the files in all layers, in bytes.
    pub bytes: u64,
    /// The maximum number of entries in all layers: files, directories, links, and special files that are left out.
    pub entries: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { reserve: 256 << 20, bytes: 1 << 40, entries: 4_000_000 }
    }
}

/// Imports images into a directory.
#[derive(Clone, Debug)]
pub struct Importer {
    /// The target directory.
    pub store: Store,
    /// The limits of each image.
    pub limits: Limits,
    /// The importing user.
    pub user: String,
    /// The current time, in seconds since 1970.
    pub now: u64,
    /// Whether an image of the same name is replaced.
    pub replaces: bool,
}

impl Importer {
    /// Returns an importer for the user of this process, with the default limits. It replaces no images.
    pub fn new(store: Store, now: u64) -> Self {
        let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
        let user = user.map_or_else(|| nix::unistd::getuid().to_string(), |user| user.name);
        Self { store, limits: Limits::default(), user, now, replaces: false }
    }

    /// Imports an image. A failed import removes its files.
    ///
    /// # Errors
    /// The name is taken, another user could change the store, or the image cannot be read, downloaded or written, or is damaged, hostile,
    /// for another machine or too large.
    pub fn import(&self, name: &ImageName, source: Source) -> Result<ImageRecord, ImageError> {
        if !self.replaces && self.store.find(name)?.is_some() {
            return Err(ImageError::Exists(name.clone()));
        }
        let (directory, unfinished) = self.store.begin()?;
        let imported = self.unpack(name, source, &unfinished).and_then(|record| {
            self.store.publish(&directory, &unfinished, name, self.replaces)?;
            Ok(record)
        });
        let discarded = self.store.discard(&directory, &unfinished);
        // Once the image is published, the unfinished name no longer refers to it.
        imported.and_then(|record| discarded.map(|()| record))
    }

    fn unpack(&self, name: &ImageName, source: Source, at: &Unfinished) -> Result<ImageRecord, ImageError> {
        let directory = at.directory.as_fd();
        let fault = |error: nix::Error| ImageError::io(self.store.path(), error);
        mkdirat(directory, ROOTFS, Mode::from_bits_truncate(0o755)).map_err(fault)?;
        let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let root = openat(directory, ROOTFS, flags, Mode::empty()).map_err(fault)?;
        fchmod(&root, Mode::from_bits_truncate(0o755)).map_err(fault)?;
        let reference = match &source {
            Source::Registry(download) => Some(download.reference.to_string()),
            Source::Stream(_) | Source::Path(_) => None,
        };
        let (files, mut record) = (self.open(source, at)?, ImageRecord::default());
        let mut tree = Tree::new(root, Budget { bytes: self.byte_limit(at)?, entries: self.limits.entries });
        match files {
            Contents::Image(files) => apply_layers(&files, &mut tree, &mut record)?,
            Contents::Archive(file) => {
                let mut reader = std::io::BufReader::with_capacity(256 << 10, file);
                layer::apply(&mut reader, &mut tree, Whiteouts::Literal)?;
            }
            Contents::Tree(from) => copy::copy(&from, &mut tree)?,
        }
        if let Some(reference) = reference {
            record.reference = reference;
            super::tree::remove_entry(&at.directory, OsStr::new(DOWNLOAD), DOWNLOAD_DEPTH)
                .map_err(|error| ImageError::io(self.store.path(), error))?;
        }
        check_programs(&tree)?;
        manifest::ARCHITECTURE.clone_into(&mut record.architecture);
        name.as_str().clone_into(&mut record.name);
        self.user.clone_into(&mut record.imported_by);
        (record.files, record.bytes, record.imported_at) = (tree.entries, tree.bytes, self.now);
        record.skipped = tree.skipped;
        self.finish(&record, at)?;
        Ok(record)
    }

    fn open(&self, source: Source, at: &Unfinished) -> Result<Contents, ImageError> {
        let file = match source {
            Source::Path(path) => {
                let opened = trusted_path::open_untrusted(Path::new("/"), &path);
                let mut file = opened.map_err(|why| ImageError::Unreadable { path: path.clone(), why })?;
                let metadata = file.metadata()?;
                if metadata.is_dir() {
                    self.require_public(&path, metadata.mode())?;
                    let directory = OwnedFd::from(file);
                    let files = ImageFiles::Directory(directory.try_clone()?);
                    let is_image = source::is_layout(&files);
                    return Ok(if is_image { Contents::Image(files) } else { Contents::Tree(directory) });
                }
                let mut start = [0; 262];
                let read = super::tar::read_up_to(&mut file, &mut start)?;
                if start[..read].ends_with(b"ustar") {
                    Arc::new(file)
                } else {
                    file.rewind()?;
                    self.spool(file, at)?
                }
            }
            Source::Stream(stream) => self.spool(stream, at)?,
            Source::Registry(download) => {
                let path = self.store.path().join(&at.name).join(DOWNLOAD);
                let fault = |error: nix::Error| ImageError::io(&path, error);
                mkdirat(at.directory.as_fd(), DOWNLOAD, Mode::from_bits_truncate(0o700)).map_err(fault)?;
                download.run(&path)?;
                let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
                let layout = openat(at.directory.as_fd(), &*Path::new(DOWNLOAD).join(LAYOUT), flags, Mode::empty());
                return Ok(Contents::Image(ImageFiles::Directory(layout.map_err(fault)?)));
            }
        };
        let image = source::index_archive(&file)?;
        let file_system = || {
            let mut file = file.try_clone()?;
            file.rewind()?;
            Ok(Contents::Archive(file))
        };
        image.map_or_else(file_system, |files| Ok(Contents::Image(files)))
    }

    /// An import for all users makes the root directory of an image readable by everyone. So a source directory that other users cannot read
    /// or enter is refused.
    fn require_public(&self, path: &Path, mode: u32) -> Result<(), ImageError> {
        if self.store.is_shared() && mode & 0o005 != 0o005 {
            return Err(ImageError::Private { path: path.to_owned(), mode: mode & 0o7777 });
        }
        Ok(())
    }

    /// An unnamed file with the decompressed content of the stream. It disappears with its descriptor.
    fn spool(&self, stream: impl Read + 'static, at: &Unfinished) -> Result<Arc<File>, ImageError> {
        const NAME: &str = "archive";
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_RDWR | OFlag::O_CLOEXEC;
        let fault = |error: nix::Error| ImageError::io(self.store.path(), error);
        let created = openat(at.directory.as_fd(), NAME, flags, Mode::from_bits_truncate(0o600)).map_err(fault)?;
        nix::unistd::unlinkat(at.directory.as_fd(), NAME, nix::unistd::UnlinkatFlags::NoRemoveDir).map_err(fault)?;
        let mut file = File::from(created);
        source::spool(stream, &mut file, self.byte_limit(at)?)?;
        Ok(Arc::new(file))
    }

    /// The maximum size of the image: the free space minus the reserve, but at most the limit.
    fn byte_limit(&self, at: &Unfinished) -> Result<u64, ImageError> {
        let status = fstatvfs(at.directory.as_fd()).map_err(|error| ImageError::io(self.store.path(), error))?;
        let free = status.blocks_available().saturating_mul(status.fragment_size());
        let limit = free.saturating_sub(self.limits.reserve).min(self.limits.bytes);
        let (free, reserve) = (free >> 20, self.limits.reserve >> 20);
        if limit == 0 {
            return Err(ImageError::Space { path: self.store.path().to_owned(), free, reserve });
        }
        Ok(limit)
    }

    /// Writes the record, and waits until everything is on the disk.
    fn finish(&self, record: &ImageRecord, at: &Unfinished) -> Result<(), ImageError> {
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let fault = |error: nix::Error| ImageError::io(self.store.path(), error);
        let created = openat(at.directory.as_fd(), RECORD, flags, Mode::from_bits_truncate(0o644)).map_err(fault)?;
        fchmod(&created, Mode::from_bits_truncate(0o644)).map_err(fault)?;
        fchmod(at.directory.as_fd(), Mode::from_bits_truncate(0o755)).map_err(fault)?;
        let text = serde_json::to_string_pretty(record).map_err(std::io::Error::other)?;
        File::from(created).write_all(text.as_bytes())?;
        nix::unistd::syncfs(at.directory.as_fd()).map_err(fault)
    }
}

/// The content of a source.
enum Contents {
    Image(ImageFiles),
    /// An archive of a file system.
    Archive(File),
    Tree(OwnedFd),
}

/// Applies the layers of an image.
fn apply_layers(files: &ImageFiles, tree: &mut Tree, record: &mut ImageRecord) -> Result<(), ImageError> {
    let (configuration, layers) =
        if source::is_layout(files) { read_layout(files, record)? } else { read_docker_save(files, record)? };
    let configuration: Configuration = manifest::parse(&configuration, "configuration")?;
    configuration.check()?;
    let contents = &configuration.rootfs.diff_ids;
    if contents.len() != layers.len() || layers.len() > manifest::MAX_LAYERS {
        return Err(ImageError::Malformed(format!(
            "invalid number of layers: {} in the configuration, {} in the manifest, and at most {} are allowed",
            contents.len(),
            layers.len(),
            manifest::MAX_LAYERS
        )));
    }
    for ((name, digest), content) in layers.iter().zip(contents) {
        let content: Digest = content.parse()?;
        let mut layer = codec::open(files.open(name)?)?;
        layer::apply(&mut layer.reader, tree, Whiteouts::Apply)?;
        layer.content.verify(&content, "a layer's content")?;
        if let Some(digest) = digest {
            layer.compressed.verify(digest, "a layer")?;
        }
    }
    record.layers = layers.len();
    record.set_configuration(configuration);
    Ok(())
}

/// The configuration, and for each layer the name and, if known, the digest of its file.
type ConfigurationAndLayers = (Vec<u8>, Vec<(String, Option<Digest>)>);

fn read_layout(files: &ImageFiles, record: &mut ImageRecord) -> Result<ConfigurationAndLayers, ImageError> {
    let mut read = |digest: &Digest| files.verified(&source::blob(digest), digest, "a manifest");
    let (manifest, digest, reference) = manifest::select(&files.document("index.json")?, &mut read)?;
    record.digest = digest.to_string();
    record.reference = reference.unwrap_or_default();
    let digest: Digest = manifest.config.digest.parse()?;
    let configuration = files.verified(&source::blob(&digest), &digest, "the configuration")?;
    let layer = |descriptor: &manifest::Descriptor| {
        let digest: Digest = descriptor.digest.parse()?;
        Ok((source::blob(&digest), Some(digest)))
    };
    Ok((configuration, manifest.layers.iter().map(layer).collect::<Result<_, ImageError>>()?))
}

/// Reads the configuration, and verifies it if its name contains its digest, as with most tools: `HEX.json`, `blobs/sha256/HEX`, or `sha256:HEX`
/// (crane, kaniko, ko). The layers are verified later, by the digests in the configuration.
fn read_docker_save(files: &ImageFiles, record: &mut ImageRecord) -> Result<ConfigurationAndLayers, ImageError> {
    let bytes = files.document("manifest.json")?;
    let mut images: Vec<SavedImage> = manifest::parse(&bytes, "manifest.json")?;
    // An image with several tags is listed once for each tag.
    images.dedup_by(|one, other| one.config == other.config && one.layers == other.layers);
    if images.len() != 1 {
        return Err(ImageError::Malformed(format!(
            "the archive contains {} images, but exactly one is expected; save a single image",
            images.len()
        )));
    }
    let image = images.remove(0);
    let name = image.config.rsplit('/').next().unwrap_or_default();
    let name = name.strip_suffix(".json").unwrap_or(name);
    let configuration = files.document(&image.config)?;
    let digest = Digest::of(&configuration);
    if let Ok(expected) = format!("sha256:{}", name.strip_prefix("sha256:").unwrap_or(name)).parse::<Digest>() {
        digest.verify(&expected, "the configuration")?;
    }
    record.digest = digest.to_string();
    let tag = image.repo_tags.unwrap_or_default().into_iter().next().unwrap_or_default();
    record.reference = model::printable::short(&tag, 200);
    Ok((configuration, image.layers.into_iter().map(|name| (name, None)).collect()))
}

/// Checks that the tree contains data, and not only programs for other machines: a file tree without metadata does not specify its architecture.
pub(crate) fn check_programs(tree: &Tree) -> Result<(), ImageError> {
    match tree.programs {
        (0, Some(machine)) => {
            let found = match machine {
                3 => "linux/386".to_owned(),
                40 => "linux/arm".to_owned(),
                62 => "linux/amd64".to_owned(),
                183 => "linux/arm64".to_owned(),
                243 => "linux/riscv64".to_owned(),
                other => format!("ELF machine {other}"),
            };
            Err(ImageError::Architecture { expected: manifest::ARCHITECTURE, found })
        }
        _ if tree.bytes == 0 => Err(ImageError::Malformed("the image contains no data".to_owned())),
        _ => Ok(()),
    }
}
