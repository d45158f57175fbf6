//! The source of an image: an archive, as a file or a stream, or a directory.
//!
//! If an archive contains an image (docker save, OCI), its members are not extracted. An index contains their locations, and they are read in place.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::ImageError;
use super::codec::Digest;
use super::manifest::SavedImage;
use super::tar::{Archive, Kind};

/// The maximum size of a JSON document of an image, in bytes. An index of all architectures has a few KiB.
const MAX_DOCUMENT: u64 = 4 << 20;
/// The maximum number of members in the index of an archive; an image has a few for each layer. Further members are ignored.
const MAX_MEMBERS: usize = 10_000;
/// The maximum number of names that are looked up to find a file: each link adds one.
const MAX_LINKS: u32 = 8;

/// The files of an image by name.
pub(crate) enum ImageFiles {
    /// A tar archive, and the location of each of its files that the image may need.
    Archive(Arc<File>, BTreeMap<Vec<u8>, ArchiveEntry>),
    /// The directory of an OCI layout.
    Directory(OwnedFd),
}

/// The location of a file in an archive.
pub(crate) enum ArchiveEntry {
    File {
        offset: u64,
        size: u64,
    },
    /// A link to the file with this name: docker save writes identical layers as links.
    Link(Vec<u8>),
}

/// Reads a part of a file without moving the file's offset.
struct Part {
    file: Arc<File>,
    offset: u64,
    remaining: u64,
}

impl Read for Part {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let limit = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..limit], self.offset)?;
        self.offset += read as u64;
        self.remaining -= read as u64;
        Ok(read)
    }
}

impl ImageFiles {
    /// Whether a file of this name exists.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.open(name).is_ok()
    }

    /// Opens a file by its relative name.
    pub(crate) fn open(&self, name: &str) -> Result<Box<dyn Read>, ImageError> {
        let missing = || {
            ImageError::Malformed(format!("a file is missing or unreadable: {}", super::tar::lossy(name.as_bytes())))
        };
        match self {
            Self::Archive(file, members) => {
                let mut name = name.as_bytes().to_vec();
                for _ in 0..MAX_LINKS {
                    match members.get(&name).ok_or_else(missing)? {
                        ArchiveEntry::File { offset, size } => {
                            return Ok(Box::new(Part { file: Arc::clone(file), offset: *offset, remaining: *size }));
                        }
                        ArchiveEntry::Link(to) => name.clone_from(to),
                    }
                }
                Err(missing())
            }
            Self::Directory(directory) => {
                let mut current = directory.try_clone()?;
                for component in name.split('/') {
                    if matches!(component, "" | "." | "..") {
                        return Err(missing());
                    }
                    current = super::copy::open(&current, OsStr::new(component)).map_err(|_| missing())?;
                }
                let file = File::from(current);
                if file.metadata()?.is_file() { Ok(Box::new(file)) } else { Err(missing()) }
            }
        }
    }

    /// Reads a JSON document.
    pub(crate) fn document(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        let mut bytes = Vec::new();
        self.open(name)?.take(MAX_DOCUMENT + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_DOCUMENT {
            return Err(ImageError::Malformed(format!(
                "a document is too long: {}",
                super::tar::lossy(name.as_bytes())
            )));
        }
        Ok(bytes)
    }

    /// Reads a JSON document, and verifies its digest.
    pub(crate) fn verified(&self, name: &str, digest: &Digest, what: &'static str) -> Result<Vec<u8>, ImageError> {
        let bytes = self.document(name)?;
        Digest::of(&bytes).verify(digest, what)?;
        Ok(bytes)
    }
}

/// The name of a blob in an OCI layout.
pub(crate) fn blob(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// Whether a file of this name in an archive may belong to an image. Other names are ignored, because the archive of an
/// exported file system has too many to keep in memory.
fn is_image_file_name(name: &[u8]) -> bool {
    let depth = name.iter().filter(|byte| **byte == b'/').count();
    let is_document = depth == 0 && (name.ends_with(b".json") || name == b"oci-layout" || name.ends_with(b".tar"));
    // crane, kaniko and ko: `sha256:HEX` and `HEX.tar.gz`.
    let is_flat = depth == 0 && (name.starts_with(b"sha256:") || name.ends_with(b".tar.gz"));
    is_document || is_flat || name.starts_with(b"blobs/sha256/") || depth == 1 && name.ends_with(b"/layer.tar")
}

/// Finds the files of an image in an archive; `None` if the archive is a file system.
pub(crate) fn index_archive(file: &Arc<File>) -> Result<Option<ImageFiles>, ImageError> {
    let files = members(file, &|name| is_image_file_name(name))?;
    if is_layout(&files) {
        return Ok(Some(files));
    }
    // An exported file system may also contain a manifest.json, which is not that of an image.
    let documents = files.document("manifest.json").ok();
    let images = documents.and_then(|bytes| serde_json::from_slice::<Vec<SavedImage>>(&bytes).ok());
    let Some(images) = images.filter(|images| !images.is_empty()) else { return Ok(None) };
    if images.iter().flat_map(|image| [&image.config].into_iter().chain(&image.layers)).all(|name| files.has(name)) {
        return Ok(Some(files));
    }
    // Other tools, such as Bazel's rules, choose other names. So the names in manifest.json are accepted, too.
    let named: BTreeSet<&[u8]> = images
        .iter()
        .flat_map(|image| [&image.config].into_iter().chain(&image.layers))
        .map(|name| name.as_bytes())
        .collect();
    members(file, &|name| is_image_file_name(name) || named.contains(name)).map(Some)
}

/// The files and links of an archive whose names satisfy `accepts`.
fn members(file: &Arc<File>, accepts: &dyn Fn(&[u8]) -> bool) -> Result<ImageFiles, ImageError> {
    let mut members = BTreeMap::new();
    let mut reader = file.try_clone()?;
    reader.seek(SeekFrom::Start(0))?;
    let mut archive = Archive::seekable(BufReader::new(reader)).without_end();
    while let Some(member) = archive.next()? {
        let path = member.path.strip_prefix(b"./").unwrap_or(&member.path);
        let path = path.strip_prefix(b"/").unwrap_or(path);
        if !accepts(path) || members.len() > MAX_MEMBERS {
            continue;
        }
        match member.kind {
            Kind::File => {
                let entry = ArchiveEntry::File { offset: member.offset, size: member.size };
                members.insert(path.to_vec(), entry);
            }
            Kind::Hardlink => _ = members.insert(path.to_vec(), ArchiveEntry::Link(member.link)),
            // Older versions of docker save link to `../DIGEST/layer.tar`.
            Kind::Symlink => {
                let to = member.link.strip_prefix(b"../").unwrap_or(&member.link);
                members.insert(path.to_vec(), ArchiveEntry::Link(to.to_vec()));
            }
            Kind::Directory | Kind::Special => {}
        }
    }
    Ok(ImageFiles::Archive(Arc::clone(file), members))
}

/// Whether these are the files of an OCI layout.
pub(crate) fn is_layout(files: &ImageFiles) -> bool {
    files.has("oci-layout") && files.has("index.json")
}

/// Writes a stream to a file, because the description of an image may come after its layers. Decompresses a compressed
/// archive.
pub(crate) fn spool(stream: impl Read + 'static, to: &mut File, limit: u64) -> Result<(), ImageError> {
    let layer = super::codec::open(stream)?;
    let mut to = BufWriter::with_capacity(256 << 10, to);
    let written = io::copy(&mut layer.reader.take(limit.saturating_add(1)), &mut to)?;
    to.flush()?;
    if written > limit {
        return Err(ImageError::TooLarge(
            "the image does not fit into the free space (256 MiB must stay free), or is larger than 1 TiB",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_names_of_an_images_files_are_indexed() {
        let needed = [
            "manifest.json",
            "oci-layout",
            "layer.tar",
            "sha256:ab",
            "ab.tar.gz",
            "blobs/sha256/ab",
            "blobs/sha256/a/b",
            "ab/layer.tar",
        ];
        let other = [
            "a/manifest.json",
            "a/oci-layout",
            "a/b.tar",
            "a/sha256:ab",
            "a/b.tar.gz",
            "a/b/layer.tar",
            "blobs",
            "bin/sh",
        ];
        assert!(needed.iter().all(|name| is_image_file_name(name.as_bytes())));
        assert_eq!(other.iter().find(|name| is_image_file_name(name.as_bytes())), None);
    }

    fn read(files: &ImageFiles, name: &str) -> Option<String> {
        let mut text = String::new();
        files.open(name).ok()?.read_to_string(&mut text).unwrap();
        Some(text)
    }

    #[test]
    fn name_in_a_directory_leads_to_a_regular_file_below_it() {
        let directory = crate::tests::scratch();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("layout/blobs")).unwrap();
        fs::write(at("layout/blobs/a"), "content").unwrap();
        fs::write(at("outside"), "x").unwrap();
        std::os::unix::fs::symlink("blobs/a", at("layout/link")).unwrap();
        let files = ImageFiles::Directory(File::open(at("layout")).unwrap().into());
        assert_eq!(read(&files, "blobs/a").as_deref(), Some("content"));
        for name in [
            "",
            "blobs",
            "blobs/b",
            "blobs//a",
            "./blobs/a",
            "../outside",
            "blobs/../../outside",
            "/etc/passwd",
            "link",
        ] {
            assert_eq!(read(&files, name), None, "{name}");
        }
    }

    #[test]
    fn name_in_an_archive_leads_through_up_to_7_links_to_a_part_of_it() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let entry = |at: u8| match at {
            0 => ArchiveEntry::File { offset: 2, size: 5 },
            _ => ArchiveEntry::Link(vec![b'a' + at - 1]),
        };
        let members =
            (0..9).map(|at| (vec![b'a' + at], entry(at))).chain([(b"z".to_vec(), ArchiveEntry::Link(b"z".to_vec()))]);
        let files = ImageFiles::Archive(Arc::new(file), members.collect());
        assert_eq!(["a", "b", "h"].map(|name| read(&files, name)), ["23456"; 3].map(|text| Some(text.to_owned())));
        assert_eq!(["i", "z", "y"].map(|name| read(&files, name)), [const { None }; 3]);
        let mut part = files.open("a").unwrap();
        let mut pieces = [[0; 3]; 2];
        assert_eq!(pieces.each_mut().map(|piece| part.read(piece).unwrap()), [3, 2]);
        assert_eq!(pieces, [*b"234", *b"56\0"]);
    }

    #[test]
    fn document_and_stream_have_a_maximum_size() {
        let directory = crate::tests::scratch();
        let files = ImageFiles::Directory(File::open(directory.path()).unwrap().into());
        for (length, is_accepted) in [(4 << 20, true), ((4 << 20) + 1, false)] {
            fs::write(directory.path().join("document"), vec![b' '; length]).unwrap();
            assert_eq!(files.document("document").is_ok(), is_accepted, "{length}");
        }
        for (limit, is_accepted) in [(5, true), (4, false)] {
            let mut file = tempfile::tempfile().unwrap();
            let spooled = spool(&b"12345"[..], &mut file, limit);
            assert_eq!(spooled.is_ok(), is_accepted, "{limit}");
            assert!(is_accepted || matches!(spooled, Err(ImageError::TooLarge(_))), "{spooled:?}");
        }
    }
}
