//! The JSON documents of an image, as far as they are used: OCI image-spec 1.1, and the manifest.json of docker save.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::ImageError;
use super::codec::Digest;

/// This machine's architecture, as images name it.
pub(crate) const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
/// ELF's number of this machine (`e_machine`).
pub(crate) const ELF_MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
/// The maximum depth of nested indexes, for example of names and of architectures.
const MAX_INDEX_DEPTH: u32 = 3;
/// The maximum number of layers, as in overlay file systems.
pub(crate) const MAX_LAYERS: usize = 512;
const MANIFEST_TYPES: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
const INDEX_TYPES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];

/// A reference to a blob.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    media_type: String,
    pub(crate) digest: String,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Debug, Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

/// An image manifest.
#[derive(Debug, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// An entry of the manifest.json of docker save.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SavedImage {
    pub(crate) config: String,
    pub(crate) repo_tags: Option<Vec<String>>,
    pub(crate) layers: Vec<String>,
}

/// The configuration of an image.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Configuration {
    pub(crate) architecture: String,
    pub(crate) os: String,
    pub(crate) created: Option<String>,
    pub(crate) config: Option<Process>,
    pub(crate) rootfs: RootFs,
}

/// The program of the image.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Process {
    pub(crate) user: String,
    pub(crate) env: Option<Vec<String>>,
    pub(crate) entrypoint: Option<Vec<String>>,
    pub(crate) cmd: Option<Vec<String>>,
    pub(crate) working_dir: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RootFs {
    pub(crate) diff_ids: Vec<String>,
}

/// Parses a document of the image.
pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Result<T, ImageError> {
    serde_json::from_slice(bytes).map_err(|error| ImageError::Malformed(format!("invalid {what}: {error}")))
}

impl Configuration {
    /// # Errors
    /// The image is for another machine.
    pub(crate) fn check(&self) -> Result<(), ImageError> {
        let is_compatible = |value: &str, expected: &str| value.is_empty() || value == expected;
        if is_compatible(&self.architecture, ARCHITECTURE) && is_compatible(&self.os, "linux") {
            return Ok(());
        }
        let found = model::printable::short(&format!("{}/{}", self.os, self.architecture), 60);
        Err(ImageError::Architecture { expected: ARCHITECTURE, found })
    }
}

/// The manifest for this machine, and the image's name, starting at index.json. `read` returns a verified blob.
pub(crate) fn select(
    index: &[u8],
    read: &mut impl FnMut(&Digest) -> Result<Vec<u8>, ImageError>,
) -> Result<(Manifest, Digest, Option<String>), ImageError> {
    let (mut bytes, mut reference) = (index.to_vec(), None);
    for _ in 0..MAX_INDEX_DEPTH {
        let index: Index = parse(&bytes, "index")?;
        let descriptor = select_for_this_machine(index.manifests)?;
        let names = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
        let name = names.iter().find_map(|key| descriptor.annotations.get(*key));
        reference = reference.or_else(|| name.map(|name| model::printable::short(name, 200)));
        let digest: Digest = descriptor.digest.parse()?;
        bytes = read(&digest)?;
        if !INDEX_TYPES.contains(&descriptor.media_type.as_str()) {
            return Ok((parse(&bytes, "manifest")?, digest, reference));
        }
    }
    Err(ImageError::Malformed("the image's indexes are nested too deeply".to_owned()))
}

fn select_for_this_machine(all: Vec<Descriptor>) -> Result<Descriptor, ImageError> {
    let has_known_type = |descriptor: &Descriptor| {
        let kind = descriptor.media_type.as_str();
        kind.is_empty() || MANIFEST_TYPES.contains(&kind) || INDEX_TYPES.contains(&kind)
    };
    // docker buildx stores signatures and the like as manifests for the platform `unknown`.
    let is_image = |descriptor: &Descriptor| {
        has_known_type(descriptor) && descriptor.platform.as_ref().is_none_or(|platform| platform.os != "unknown")
    };
    let mut images: Vec<Descriptor> = all.into_iter().filter(is_image).collect();
    let platforms = images.iter().filter_map(|image| image.platform.as_ref());
    let platforms: Vec<String> =
        platforms.map(|platform| format!("{}/{}", platform.os, platform.architecture)).collect();
    images.retain(|image| {
        image.platform.as_ref().is_none_or(|platform| platform.os == "linux" && platform.architecture == ARCHITECTURE)
    });
    // An image with several tags is listed once for each tag.
    let mut digests = std::collections::HashSet::new();
    images.retain(|image| digests.insert(image.digest.clone()));
    match images.len() {
        1 => Ok(images.remove(0)),
        0 if platforms.is_empty() => Err(ImageError::Malformed("the archive contains no image".to_owned())),
        0 => Err(ImageError::Architecture {
            expected: ARCHITECTURE,
            found: model::printable::short(&platforms.join(", "), 200),
        }),
        count => Err(ImageError::Malformed(format!("the archive contains {count} images; save one of them alone"))),
    }
}
