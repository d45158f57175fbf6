//! References to images in registries: `docker://python:3.13`.

use std::fmt;
use std::str::FromStr;

use super::ImageName;
use super::codec::Digest;

/// The scheme of a reference to an image in a registry. No other scheme is accepted.
pub const SCHEME: &str = "docker://";
/// The registry of a reference that names none.
const DOCKER_HUB: &str = "docker.io";
/// The maximum length of a reference without the scheme, in bytes. Docker's `distribution/reference` limits only the name, without tag and digest.
const LONGEST: usize = 255;
/// The number of hexadecimal digits in the name of a pulled image that come from the digest of the reference's text.
const NAME_DIGITS: usize = 16;
/// The maximum length of the readable part of the name of a pulled image, in characters.
const LONGEST_LABEL: usize = 40;

/// A complete reference, such as `docker.io/library/python:3.13`. It contains no whitespace, no control characters, and no text that a shell would
/// execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    registry: String,
    repository: String,
    version: Version,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Version {
    Tag(String),
    /// A digest: `sha256:HEX`.
    Digest(String),
}

impl Reference {
    /// The host of the registry, with the port if the reference specifies one.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Whether the reference always names the same content.
    pub fn is_pinned(&self) -> bool {
        matches!(self.version, Version::Digest(_))
    }

    /// Whether the registry is on this machine. Then it needs no TLS, as with Docker.
    pub fn is_local(&self) -> bool {
        let host = match self.registry.strip_prefix('[') {
            Some(rest) => rest.split(']').next(),
            None => self.registry.split(':').next(),
        };
        let host = host.unwrap_or_default();
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// The name of the pulled image in a store: readable, and different for each reference.
    pub fn name(&self) -> ImageName {
        let whole = Digest::of(self.to_string().as_bytes());
        let image = self.repository.rsplit('/').next().unwrap_or_default();
        let version = match &self.version {
            Version::Tag(tag) => tag,
            Version::Digest(digest) => digest.trim_start_matches("sha256:").get(..12).unwrap_or_default(),
        };
        let label: String = format!("{image}-{version}").chars().take(LONGEST_LABEL).collect();
        ImageName::valid(format!("{label}-{}", &whole.hex()[..NAME_DIGITS]))
    }
}

impl FromStr for Reference {
    type Err = String;

    /// Parses `[docker://][REGISTRY[:PORT]/]IMAGE[:TAG][@sha256:HEX]`. The default registry is Docker Hub, the default tag `latest`. As in docker, a
    /// tag before a digest is ignored.
    fn from_str(text: &str) -> Result<Self, String> {
        let fault = |what: &str| {
            Err(format!(
                "{what}; expected docker://[REGISTRY[:PORT]/]IMAGE[:TAG][@sha256:HEX], such as docker://python:3.13"
            ))
        };
        let name = text.strip_prefix(SCHEME).unwrap_or(text);
        if name.len() > LONGEST {
            return fault("the reference is too long");
        }
        let (name, digest) = match name.split_once('@') {
            Some((name, digest)) if is_digest(digest) => (name, Some(digest)),
            Some(_) => return fault("the digest is not `sha256:` followed by 64 lowercase hexadecimal digits"),
            None => (name, None),
        };
        let (registry, path) = match name.split_once('/') {
            Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host, path),
            _ => (DOCKER_HUB, name),
        };
        let (path, tag) = path.split_once(':').unwrap_or((path, "latest"));
        if !is_host(registry) {
            return fault("the name of the registry is invalid");
        }
        if !path.split('/').all(is_component) {
            return fault(
                "the name of the image is invalid (allowed: lowercase letters, digits, and between them `.`, `_`, `-`, `/`)",
            );
        }
        if !is_tag(tag) {
            return fault("the tag is invalid");
        }
        let is_docker_hub = ["index.docker.io", DOCKER_HUB].contains(&registry);
        let registry = if is_docker_hub { DOCKER_HUB } else { registry }.to_owned();
        let repository = if is_docker_hub && !path.contains('/') { format!("library/{path}") } else { path.to_owned() };
        let version = digest.map_or_else(|| Version::Tag(tag.to_owned()), |digest| Version::Digest(digest.to_owned()));
        Ok(Self { registry, repository, version })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registry, repository, version } = self;
        match version {
            Version::Tag(tag) => write!(f, "{registry}/{repository}:{tag}"),
            Version::Digest(digest) => write!(f, "{registry}/{repository}@{digest}"),
        }
    }
}

fn is_digest(text: &str) -> bool {
    text.parse::<Digest>().is_ok()
}

/// Whether the text is `HOST` or `[ADDRESS]`, optionally followed by `:PORT`.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_port = port.is_none_or(|port| !port.starts_with('+') && port.parse::<u16>().is_ok());
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'))
    };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    is_port && address.map_or_else(|| is_name(host), |address| address.parse::<std::net::Ipv6Addr>().is_ok())
}

fn is_component(text: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(is_alphanumeric)
        && text.ends_with(is_alphanumeric)
        && text.chars().all(|c| is_alphanumeric(c) || matches!(c, '.' | '_' | '-'))
}

fn is_tag(text: &str) -> bool {
    text.len() <= 128
        && text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn completes_reference_as_docker_does() {
        for (text, complete, registry) in [
            ("docker://python:3.13", "docker.io/library/python:3.13", "docker.io"),
            ("python", "docker.io/library/python:latest", "docker.io"),
            ("docker://index.docker.io/python", "docker.io/library/python:latest", "docker.io"),
            ("docker://pytorch/pytorch:2.4.0", "docker.io/pytorch/pytorch:2.4.0", "docker.io"),
            ("docker://nvcr.io/nvidia/pytorch:25.01-py3", "nvcr.io/nvidia/pytorch:25.01-py3", "nvcr.io"),
            ("docker://localhost:5000/x", "localhost:5000/x:latest", "localhost:5000"),
            ("docker://localhost/x:_1", "localhost/x:_1", "localhost"),
            ("docker://[::1]:5000/a/b__c:1", "[::1]:5000/a/b__c:1", "[::1]:5000"),
            ("docker://[::1]/a:1", "[::1]/a:1", "[::1]"),
            ("docker://registry:5000/x", "registry:5000/x:latest", "registry:5000"),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!((reference.to_string().as_str(), reference.registry()), (complete, registry), "{text}");
            assert_eq!(complete.parse::<Reference>().unwrap(), reference);
        }
        let pinned: Reference = format!("docker://python:3.13@sha256:{HEX}").parse().unwrap();
        assert_eq!(pinned.to_string(), format!("docker.io/library/python@sha256:{HEX}"));
        assert!(pinned.is_pinned());
    }

    #[test]
    fn rejects_invalid_references() {
        let long = format!("docker://a/{}", "b".repeat(260));
        for text in [
            "",
            "docker://",
            "docker:///",
            "docker://-x",
            "docker://a b",
            "docker://A",
            "docker://a/",
            "docker://a//b",
            "docker://a/../b",
            "docker://a:",
            "docker://a:b:c",
            "docker://a:+5000/b",
            "docker://a@sha256:12",
            "docker://a@b",
            "docker://x:y/a",
            "docker://x:99999/a",
            "docker://a\n",
            "docker://a:$(id)",
            "docker://user:word@host.org/a",
            "dir:/etc",
            "--help",
            "docker://[::1/a",
            "docker://é",
            &long,
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_registry_of_this_machine_needs_no_tls() {
        let is_local = |text: &str| text.parse::<Reference>().unwrap().is_local();
        for local in ["localhost:5000/x", "localhost/x", "127.0.0.1:5000/x", "127.1.2.3:1/x", "[::1]:5000/x"] {
            assert!(is_local(local), "{local}");
        }
        for remote in ["x", "localhost.org/x", "128.0.0.1:5000/x", "127.0.0.1.org/x", "[::2]:5000/x", "local.host/x"] {
            assert!(!is_local(remote), "{remote}");
        }
    }

    #[test]
    fn name_of_pulled_image_is_readable_and_unique() {
        let name = |text: &str| text.parse::<Reference>().unwrap().name().to_string();
        let python = name("docker://python:3.13");
        assert!(python.starts_with("python-3.13-"), "{python}");
        assert_eq!(python, name("docker.io/library/python:3.13"));
        assert_ne!(python, name("quay.io/library/python:3.13"));
        assert!(name(&format!("a/b@sha256:{HEX}")).starts_with("b-0123456789ab-"));
    }

    proptest! {
        #[test]
        fn each_reference_gives_a_valid_name(text in "[a-z]{1,80}(\\.[a-z]{2}(:[0-9]{1,4})?/[a-z_.-]{1,90})?(:[A-Za-z_.-]{1,130})?") {
            if let Ok(reference) = text.parse::<Reference>() {
                let name = reference.name();
                prop_assert_eq!(name.as_str().parse::<ImageName>(), Ok(name.clone()));
                prop_assert_eq!(reference.to_string().parse::<Reference>(), Ok(reference));
            }
        }
    }
}
