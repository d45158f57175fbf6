//! Writes archives byte by byte, so that tests can create malformed ones.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use ring::digest::{SHA256, digest};

use crate::tar::Archive;

#[derive(Clone, Default)]
pub(crate) struct Tar(pub(crate) Vec<u8>);

impl Tar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a member. The size in its header can differ from that of its content.
    pub(crate) fn member(mut self, path: &str, kind: u8, mode: u32, (size, content): (u64, &[u8]), link: &str) -> Self {
        let mut header = [0_u8; 512];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, path.as_bytes());
        put(100, format!("{mode:07o}\0{:07o}\0{:07o}\0{size:011o}\0{:011o}\0        ", 0, 0, 1_700_000_000).as_bytes());
        put(156, &[kind]);
        put(157, link.as_bytes());
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend(header);
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, path: &str, mode: u32, content: &[u8]) -> Self {
        self.member(path, b'0', mode, (content.len() as u64, content), "")
    }

    pub(crate) fn directory(self, path: &str, mode: u32) -> Self {
        self.member(path, b'5', mode, (0, b""), "")
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.member(path, b'2', 0o777, (0, b""), target)
    }

    pub(crate) fn hardlink(self, path: &str, target: &str) -> Self {
        self.member(path, b'1', 0o644, (0, b""), target)
    }

    pub(crate) fn device(self, path: &str) -> Self {
        self.member(path, b'3', 0o666, (0, b""), "")
    }

    pub(crate) fn gnu_long(self, path: &str, content: &[u8]) -> Self {
        let long = [path.as_bytes(), b"\0"].concat();
        self.member("././@LongLink", b'L', 0, (long.len() as u64, &long), "").file("cut", 0o644, content)
    }

    pub(crate) fn pax(self, attributes: &[(&str, &str)], path: &str, content: &[u8]) -> Self {
        let record = |(key, value): &(&str, &str)| {
            let rest = format!(" {key}={value}\n");
            let length = (1..).find(|length: &usize| length.to_string().len() + rest.len() == *length).unwrap();
            format!("{length}{rest}")
        };
        let records: String = attributes.iter().map(record).collect();
        self.member("pax", b'x', 0, (records.len() as u64, records.as_bytes()), "").file(path, 0o644, content)
    }

    /// Changes the first header and updates its checksum.
    pub(crate) fn patch(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self.0[148..156].fill(b' ');
        let sum: u32 = self.0[..512].iter().map(|byte| u32::from(*byte)).sum();
        self.0[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Content of an OCI layout, and its defects.
pub(crate) struct Layout<'a> {
    pub(crate) layers: &'a [Vec<u8>],
    pub(crate) plain: &'a [Vec<u8>],
    pub(crate) architecture: &'a str,
    pub(crate) os: &'a str,
    /// Index of the blob whose content does not match its digest: layers, then configuration, then manifest.
    pub(crate) damaged: Option<usize>,
    pub(crate) manifests: usize,
    /// How often the first manifest is listed: once for each tag.
    pub(crate) tags: usize,
}

impl Default for Layout<'_> {
    fn default() -> Self {
        let architecture = crate::manifest::ARCHITECTURE;
        Self { layers: &[], plain: &[], architecture, os: "linux", damaged: None, manifests: 1, tags: 1 }
    }
}

fn configuration(spec: &Layout<'_>) -> Vec<u8> {
    let digests: Vec<String> = spec.plain.iter().map(|layer| format!("\"sha256:{}\"", hex(layer))).collect();
    format!(
        r#"{{"architecture":"{}","os":"{}","created":"2024-01-01T00:00:00Z","config":{{"Env":["PATH=/opt/bin:/usr/bin","=bad"],"Entrypoint":["/bin/tool"]}},"rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#,
        spec.architecture,
        spec.os,
        digests.join(",")
    )
    .into_bytes()
}

/// An OCI layout in an archive.
pub(crate) fn layout(spec: &Layout<'_>) -> Vec<u8> {
    let mut blobs: Vec<Vec<u8>> = spec.layers.to_vec();
    blobs.push(configuration(spec));
    let descriptor = |kind: &str, blob: &[u8]| {
        format!(
            r#"{{"mediaType":"application/vnd.oci.image.{kind}","digest":"sha256:{}","size":{}}}"#,
            hex(blob),
            blob.len()
        )
    };
    let layers: Vec<String> = spec.layers.iter().map(|layer| descriptor("layer.v1.tar", layer)).collect();
    let config = descriptor("config.v1+json", &blobs[spec.layers.len()]);
    blobs.push(format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{}]}}"#, layers.join(",")).into_bytes());
    let manifest = descriptor("manifest.v1+json", &blobs[spec.layers.len() + 1]);
    let named = manifest.replacen('{', r#"{"annotations":{"io.containerd.image.name":"docker.io/library/test:1"},"#, 1);
    let other = named.replacen(&hex(&blobs[spec.layers.len() + 1]), &hex(b"other"), 1);
    let others = spec.manifests.saturating_sub(1);
    let manifests = [vec![&*named; spec.tags.min(spec.manifests)], vec![&*other; others]].concat();
    let manifests = manifests.join(",");
    let index = format!(r#"{{"schemaVersion":2,"manifests":[{manifests}]}}"#);
    let mut tar = Tar::new().directory("blobs/", 0o755).directory("blobs/sha256/", 0o755);
    for (at, blob) in blobs.iter().enumerate() {
        let content = if spec.damaged == Some(at) { damage(blob) } else { blob.clone() };
        tar = tar.file(&format!("blobs/sha256/{}", hex(blob)), 0o644, &content);
    }
    tar.file("index.json", 0o644, index.as_bytes())
        .file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)
        .end()
}

/// Changes the content without breaking JSON syntax or a tar checksum.
fn damage(blob: &[u8]) -> Vec<u8> {
    let mut blob = blob.to_vec();
    match blob.first() {
        Some(b'{') => blob.insert(1, b' '),
        _ => blob[512] ^= 1,
    }
    blob
}

/// An archive as `docker save` writes it before version 25, where duplicate layers are symlinks.
pub(crate) fn save(layers: &[Vec<u8>], as_files: bool) -> Vec<u8> {
    let config = configuration(&Layout { layers, plain: layers, ..Layout::default() });
    let mut tar = Tar::new();
    let names: Vec<String> = (0..layers.len()).map(|at| format!("layer{at}/layer.tar")).collect();
    for (at, (layer, name)) in layers.iter().zip(&names).enumerate() {
        tar = if as_files {
            tar.file(name, 0o644, layer)
        } else {
            tar.file(&format!("real{at}/layer.tar"), 0o644, layer).symlink(name, &format!("../real{at}/layer.tar"))
        };
    }
    let config_name = format!("{}.json", hex(&config));
    tar.file(&config_name, 0o644, &config).file("manifest.json", 0o644, saved(&config_name, &names).as_bytes()).end()
}

/// The manifest.json that docker save writes.
pub(crate) fn saved(config: &str, layers: &[String]) -> String {
    let layers: Vec<String> = layers.iter().map(|name| format!("\"{name}\"")).collect();
    let layers = layers.join(",");
    format!(r#"[{{"Config":"{config}","RepoTags":["docker.io/library/test:1"],"Layers":[{layers}]}}]"#)
}

/// A function that names a file by the digest of its content.
pub(crate) type Namer = fn(&str) -> String;

/// An archive as `docker save` of another tool writes it, with that tool's names for the configuration and the layers. `layers` are the files of the
/// layers, and `plain` is their decompressed content.
pub(crate) fn named_save(layers: &[Vec<u8>], plain: &[Vec<u8>], names: [Namer; 2]) -> Vec<u8> {
    let config = configuration(&Layout { plain, ..Layout::default() });
    let [config_name, layer_name] = names;
    let (config_name, mut tar) = (config_name(&hex(&config)), Tar::new());
    let layer_names: Vec<String> = layers.iter().map(|layer| layer_name(&hex(layer))).collect();
    tar = tar.file(&config_name, 0o644, &config);
    tar = layers.iter().zip(&layer_names).fold(tar, |tar, (layer, name)| tar.file(name, 0o644, layer));
    tar.file("manifest.json", 0o644, saved(&config_name, &layer_names).as_bytes()).end()
}

/// Extracts an archive.
pub(crate) fn unpack(archive: &[u8], to: &Path) {
    let mut archive = Archive::new(archive);
    while let Some(member) = archive.next().unwrap() {
        let path = to.join(String::from_utf8(member.path).unwrap());
        let mut content = Vec::new();
        archive.read_to_end(&mut content).unwrap();
        match member.kind {
            crate::tar::Kind::Directory => fs::create_dir_all(path).unwrap(),
            _ => fs::write(path, content).unwrap(),
        }
    }
}
