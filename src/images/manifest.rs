//! The JSON documents of an image, as far as they are used: OCI image-spec 1.1, and the manifest.json of docker save.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::ImageError;
use super::codec::Digest;

/// This machine's architecture, as images name it.
pub(crate) const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
/// ELF's number for this machine (`e_machine`).
pub(crate) const ELF_MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
/// The maximum depth of nested indexes. For example, an index of names may refer to an index of architectures.
const MAX_INDEX_DEPTH: u32 = 3;
/// The maximum number of layers.
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

/// The image's program, with its user, environment and working directory.
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
    /// Checks the architecture and the operating system. A missing value is accepted.
    ///
    /// # Errors
    /// The image is for another architecture or operating system.
    pub(crate) fn check(&self) -> Result<(), ImageError> {
        let is_compatible = |value: &str, expected: &str| value.is_empty() || value == expected;
        if is_compatible(&self.architecture, ARCHITECTURE) && is_compatible(&self.os, "linux") {
            return Ok(());
        }
        let found = model::printable::short(&format!("{}/{}", self.os, self.architecture), 60);
        Err(ImageError::Architecture { expected: ARCHITECTURE, found })
    }
}

/// Selects the manifest for this machine. Returns it with its digest and the image's name. `index` is the content of index.json, and `read` returns a
/// verified blob.
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
    // docker buildx stores attestations as manifests for the platform `unknown`.
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
        0 if platforms.is_empty() => Err(ImageError::Malformed("the index contains no image".to_owned())),
        0 => Err(ImageError::Architecture {
            expected: ARCHITECTURE,
            found: model::printable::short(&platforms.join(", "), 200),
        }),
        count => Err(ImageError::Malformed(format!(
            "the index contains {count} images that fit this machine, but exactly one is expected; save a single image"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: &str = if cfg!(target_arch = "aarch64") { "amd64" } else { "arm64" };

    fn hex(number: u8) -> String {
        format!("sha256:{number:064}")
    }

    /// An entry of an index, whose platform is `OS/ARCHITECTURE`, if any.
    fn entry(number: u8, kind: &str, platform: &str, annotations: &str) -> String {
        let platform = platform
            .split_once('/')
            .map(|(os, architecture)| format!(r#","platform":{{"os":"{os}","architecture":"{architecture}"}}"#));
        let (platform, digest) = (platform.unwrap_or_default(), hex(number));
        format!(r#"{{"mediaType":"{kind}","digest":"{digest}","annotations":{{{annotations}}}{platform}}}"#)
    }

    fn index(entries: &[String]) -> Vec<u8> {
        format!(r#"{{"manifests":[{}]}}"#, entries.join(",")).into_bytes()
    }

    fn selected(entries: &[String]) -> Result<String, ImageError> {
        let index: Index = parse(&index(entries), "index")?;
        select_for_this_machine(index.manifests).map(|descriptor| descriptor.digest)
    }

    #[test]
    fn selects_the_only_image_for_this_machine() {
        let (own, other) = (format!("linux/{ARCHITECTURE}"), format!("linux/{OTHER}"));
        let of = |number, platform: &str| entry(number, MANIFEST_TYPES[0], platform, "");
        let attestation = of(9, "unknown/unknown");
        for entries in [
            vec![of(1, &own)],
            vec![of(1, "")],
            vec![entry(1, "", "", "")],
            vec![entry(1, MANIFEST_TYPES[1], &own, "")],
            vec![entry(1, INDEX_TYPES[0], "", "")],
            vec![entry(1, INDEX_TYPES[1], "", "")],
            vec![of(2, &other), of(1, &own), attestation.clone()],
            vec![of(2, &format!("windows/{ARCHITECTURE}")), of(1, &own)],
            vec![entry(2, "application/vnd.other+json", &own, ""), of(1, &own)],
            vec![of(1, &own), of(1, &own)],
        ] {
            assert_eq!(selected(&entries).unwrap(), hex(1), "{entries:?}");
        }
        let twice = selected(&[of(1, &own), of(2, &own)]);
        assert!(matches!(&twice, Err(ImageError::Malformed(why)) if why.contains("2 images")), "{twice:?}");
        for entries in [vec![], vec![entry(1, "application/vnd.other+json", &own, "")], vec![attestation]] {
            let none = selected(&entries);
            assert!(matches!(&none, Err(ImageError::Malformed(why)) if why.contains("no image")), "{none:?}");
        }
        let foreign = selected(&[of(1, &other), of(2, "linux/s390x")]);
        let platforms = format!("linux/{OTHER}, linux/s390x");
        assert!(matches!(&foreign, Err(ImageError::Architecture { found, .. }) if *found == platforms), "{foreign:?}");
    }

    #[test]
    fn follows_up_to_two_nested_indexes_and_takes_the_first_name() {
        let manifest = format!(r#"{{"config":{{"digest":"{}"}},"layers":[]}}"#, hex(7)).into_bytes();
        let name = |key: &str, value: &str| format!(r#""{key}":"{value}""#);
        let (oci, containerd) = ("org.opencontainers.image.ref.name", "io.containerd.image.name");
        // The digest of the manifest behind this many indexes, and the name of the image.
        let select_at = |depth: u8, annotations: &[String]| {
            let annotations = |at: u8| annotations.get(usize::from(at)).map_or("", String::as_str);
            let nested = |at: u8| {
                let kind = if at + 1 == depth { MANIFEST_TYPES[0] } else { INDEX_TYPES[0] };
                index(&[entry(at + 1, kind, "", annotations(at))])
            };
            let mut read = |digest: &Digest| {
                let at = (1..=depth).find(|at| hex(*at) == digest.to_string()).unwrap();
                Ok(if at == depth { manifest.clone() } else { nested(at) })
            };
            let (found, digest, reference) = select(&nested(0), &mut read)?;
            assert_eq!(found.config.digest, hex(7));
            Ok::<_, ImageError>((digest.to_string(), reference))
        };
        assert_eq!(select_at(1, &[]).unwrap(), (hex(1), None));
        let both = [name(oci, "1"), name(containerd, "full")].join(",");
        assert_eq!(select_at(1, &[both]).unwrap(), (hex(1), Some("full".to_owned())));
        let inner = [String::new(), name(oci, "inner"), name(oci, "innermost")];
        assert_eq!(select_at(3, &inner).unwrap(), (hex(3), Some("inner".to_owned())));
        assert!(matches!(select_at(4, &[]), Err(ImageError::Malformed(_))));
    }

    #[test]
    fn configuration_may_name_this_machine_or_none() {
        for (os, architecture, is_accepted) in
            [("linux", ARCHITECTURE, true), ("", "", true), ("linux", OTHER, false), ("windows", ARCHITECTURE, false)]
        {
            let (os, architecture) = (os.to_owned(), architecture.to_owned());
            let configuration = Configuration { os, architecture, ..Configuration::default() };
            assert_eq!(configuration.check().is_ok(), is_accepted, "{configuration:?}");
        }
    }
}
