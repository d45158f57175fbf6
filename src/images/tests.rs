//! Imports of archives into a directory.

pub(super) mod archive;
mod hostile;
mod limits;
mod owners;

use std::fs;
use std::io::{Cursor, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;

use super::*;
use archive::{Layout, Tar, layout, named_save, save};

/// An importer into a new directory, with a size limit in bytes.
pub(super) fn importer(directory: &TempDir, bytes: u64) -> Importer {
    let limits = Limits { reserve: 1, bytes, entries: 1000 };
    let store = Store::shared(directory.path().join("images"));
    Importer { store, limits, user: "alice".to_owned(), now: 1, replaces: false }
}

/// Sets mode 0755, because directories created with umask 0002 are group-writable and rejected.
pub(super) fn scratch() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

pub(super) fn stream(bytes: Vec<u8>) -> Source {
    Source::Stream(Box::new(Cursor::new(bytes)))
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Compresses the bytes into this many frames, each followed by a frame that decoders skip, as in zstd:chunked.
fn zstd(bytes: &[u8], frames: usize) -> Vec<u8> {
    let frame = |part: &[u8]| ruzstd::encoding::compress_to_vec(part, ruzstd::encoding::CompressionLevel::Fastest);
    let skipped = [b"\x5a\x2a\x4d\x18".as_slice(), &7_u32.to_le_bytes(), b"chunked"].concat();
    bytes.chunks(bytes.len().div_ceil(frames)).flat_map(|part| [frame(part), skipped.clone()].concat()).collect()
}

fn name(text: &str) -> ImageName {
    text.parse().unwrap()
}

fn read(store: &Store, image: &str, path: &str) -> Option<String> {
    fs::read_to_string(store.rootfs(&name(image)).join(path)).ok()
}

fn layers() -> [Vec<u8>; 3] {
    let lower = Tar::new()
        .directory("etc/", 0o777)
        .file("etc/kept", 0o4777, b"kept")
        .file("etc/removed", 0o644, b"x")
        .directory("opt/", 0o755)
        .file("opt/lower", 0o644, b"x")
        .symlink("bin", "usr/bin")
        .directory("usr/bin/", 0o755)
        .file("usr/bin/tool", 0o755, b"tool");
    // A whiteout applies to all lower layers, whatever its position in its own layer.
    let middle = Tar::new()
        .file("etc/.wh.removed", 0o644, b"")
        .file("opt/upper", 0o644, b"upper")
        .file("opt/.wh..wh..opq", 0o644, b"")
        .file("etc/.wh..wh.plnk", 0o644, b"");
    let upper = Tar::new().hardlink("usr/bin/alias", "usr/bin/tool").file("bin/second", 0o755, b"second");
    [lower, middle, upper].map(Tar::end)
}

fn assert_files(store: &Store, image: &str) {
    assert_eq!(read(store, image, "etc/kept").as_deref(), Some("kept"));
    assert_eq!(read(store, image, "etc/removed"), None);
    assert_eq!(read(store, image, "opt/lower"), None);
    assert_eq!(read(store, image, "opt/upper").as_deref(), Some("upper"));
    assert_eq!(read(store, image, "usr/bin/alias").as_deref(), Some("tool"));
    assert_eq!(read(store, image, "usr/bin/second").as_deref(), Some("second"));
    let root = store.rootfs(&name(image));
    // Import clears setuid and the write bits of group and others, and keeps modification times.
    assert_eq!(root.join("etc/kept").metadata().unwrap().mode() & 0o7777, 0o755);
    assert_eq!(root.join("etc").metadata().unwrap().mode() & 0o7777, 0o755);
    assert_eq!(root.join("etc/kept").metadata().unwrap().mtime(), 1_700_000_000);
}

#[test]
fn all_archive_formats_import_same_files() {
    let directory = scratch();
    let importer = importer(&directory, 1 << 20);
    let plain = layers();
    let zipped = layers().map(|layer| gzip(&layer));
    let oci = layout(&Layout { layers: &zipped, plain: &plain, ..Layout::default() });
    let compressed = [layers().map(|layer| zstd(&layer, 1)), layers().map(|layer| zstd(&layer, 4))];
    let of_zstd = |layers: &[Vec<u8>]| layout(&Layout { layers, plain: &plain, ..Layout::default() });
    let of_tool = |layers: &[Vec<u8>], names| stream(named_save(layers, &plain, names));
    let blob: archive::Namer = |hex| format!("blobs/sha256/{hex}");
    let all = [
        ("save", stream(save(&plain, true))),
        ("linked-save", stream(save(&plain, false))),
        ("zipped-save", stream(gzip(&save(&plain, true)))),
        ("oci", stream(oci.clone())),
        ("oci-plain", stream(layout(&Layout { layers: &plain, plain: &plain, ..Layout::default() }))),
        ("two-tags", stream(layout(&Layout { layers: &plain, plain: &plain, tags: 2, ..Layout::default() }))),
        ("zstd", stream(of_zstd(&compressed[0]))),
        ("zstd-chunked", stream(of_zstd(&compressed[1]))),
        ("crane-kaniko-ko", of_tool(&zipped, hostile::FLAT)),
        ("rules-docker", of_tool(&plain, [|hex| format!("{hex}.json"), |hex| format!("{hex}/layer.tar")])),
        ("rules-oci", of_tool(&zipped, [blob, blob])),
        ("own-names", of_tool(&plain, [|_| "app/config".to_owned(), |hex| format!("app/layers/{hex}")])),
    ];
    for (image, source) in all {
        let record = importer.import(&name(image), source).unwrap_or_else(|error| panic!("{image}: {error}"));
        assert_files(&importer.store, image);
        assert_eq!((record.layers, record.architecture.as_str()), (3, manifest::ARCHITECTURE), "{image}");
        assert_eq!(record.entrypoint, ["/bin/tool"], "{image}");
        assert_eq!(record.environment, ["PATH=/opt/bin:/usr/bin"], "{image}");
        assert_eq!(record.reference, "docker.io/library/test:1", "{image}");
        assert_eq!(importer.store.find(&name(image)).unwrap(), Some(record), "{image}");
    }
    // Imports from a file, and from an unpacked layout.
    let file = directory.path().join("oci.tar");
    fs::write(&file, &oci).unwrap();
    importer.import(&name("file"), Source::Path(file.clone())).unwrap();
    assert_files(&importer.store, "file");
    let unpacked = directory.path().join("layout");
    archive::unpack(&oci, &unpacked);
    importer.import(&name("layout"), Source::Path(unpacked)).unwrap();
    assert_files(&importer.store, "layout");
    // Imports the file tree of an imported image.
    importer.import(&name("tree"), Source::Path(importer.store.rootfs(&name("oci")))).unwrap();
    assert_files(&importer.store, "tree");
    let exported = Tar::new().file("bin/sh", 0o755, b"sh").file(".wh.literal", 0o644, b"x").device("dev/null").end();
    importer.import(&name("export"), stream(exported)).unwrap();
    assert_eq!(read(&importer.store, "export", ".wh.literal").as_deref(), Some("x"));
    assert!(!importer.store.rootfs(&name("export")).join("dev/null").exists());
    assert_eq!(importer.store.list().unwrap().images.len(), 16);
}

#[test]
fn exported_file_system_may_have_files_of_an_image() {
    let directory = scratch();
    let importer = importer(&directory, 1 << 20);
    let web_application = br#"{"name": "Config", "icons": []}"#.as_slice();
    for (image, content) in
        [("application", web_application), ("list", b"[]"), ("names", br#"["Config"]"#), ("no-json", b"{")]
    {
        let exported = Tar::new().file("manifest.json", 0o644, content).file("index.json", 0o644, b"{}");
        let exported = exported.file("bin/sh", 0o755, b"sh").file("0/layer.tar", 0o644, b"no archive").end();
        let record = importer.import(&name(image), stream(exported)).unwrap_or_else(|error| panic!("{image}: {error}"));
        assert_eq!((record.layers, read(&importer.store, image, "bin/sh").as_deref()), (0, Some("sh")), "{image}");
        assert_eq!(read(&importer.store, image, "manifest.json").unwrap().as_bytes(), content, "{image}");
    }
}

#[test]
fn home_of_root_is_open_and_its_files_keep_their_modes() {
    let directory = scratch();
    let importer = importer(&directory, 1 << 20);
    let exported = Tar::new().directory("root/", 0o700).directory("root/.ssh/", 0o700).file("root/.netrc", 0o600, b"x");
    let exported = exported.directory("root/conda/", 0o755).directory("opt/root/", 0o700);
    importer.import(&name("x"), stream(exported.end())).unwrap();
    let mode = |path: &str| importer.store.rootfs(&name("x")).join(path).metadata().unwrap().mode() & 0o7777;
    let modes = ["root", "root/.ssh", "root/.netrc", "root/conda", "opt/root"].map(mode);
    assert_eq!(modes, [0o755, 0o700, 0o600, 0o755, 0o700]);
}

#[test]
fn reads_long_names_and_pax_attributes() {
    let directory = scratch();
    let importer = importer(&directory, 1 << 20);
    let long = format!("{}/{}", "d".repeat(150), "f".repeat(150));
    let exported = Tar::new()
        .gnu_long(&long, b"gnu")
        .pax(&[("path", "pax/näme"), ("mtime", "1600000000.5"), ("size", "3")], "short", b"pax")
        .file("a", 0o644, b"a")
        .end();
    importer.import(&name("x"), stream(exported)).unwrap();
    assert_eq!(read(&importer.store, "x", &long).as_deref(), Some("gnu"));
    assert_eq!(read(&importer.store, "x", "pax/näme").as_deref(), Some("pax"));
    let time = importer.store.rootfs(&name("x")).join("pax/näme").metadata().unwrap().mtime();
    assert_eq!(time, 1_600_000_000);
}

#[test]
fn replaces_image_only_on_request_and_removes_it_completely() {
    let directory = scratch();
    let mut importer = importer(&directory, 1 << 20);
    let with = |content: &[u8]| stream(Tar::new().file("a", 0o644, content).end());
    importer.import(&name("x"), with(b"1")).unwrap();
    assert!(matches!(importer.import(&name("x"), with(b"2")), Err(ImageError::Exists(_))));
    assert_eq!(read(&importer.store, "x", "a").as_deref(), Some("1"));
    importer.replaces = true;
    importer.import(&name("x"), with(b"2")).unwrap();
    assert_eq!(read(&importer.store, "x", "a").as_deref(), Some("2"));
    importer.store.remove(&name("x")).unwrap();
    assert!(matches!(importer.store.remove(&name("x")), Err(ImageError::Missing { .. })));
    assert_eq!(entries(importer.store.path()), 0);
}

#[test]
fn import_removes_leftovers_of_killed_import() {
    let directory = scratch();
    let importer = importer(&directory, 1 << 20);
    let host = nix::unistd::gethostname().unwrap();
    let leftover = importer.store.path().join(format!(".unfinished-{}-1-0", host.display()));
    let of_other_machine = importer.store.path().join(".unfinished-other-1-0");
    fs::create_dir_all(&of_other_machine).unwrap();
    fs::create_dir_all(leftover.join("rootfs/a")).unwrap();
    fs::set_permissions(importer.store.path(), fs::Permissions::from_mode(0o755)).unwrap();
    importer.import(&name("x"), stream(Tar::new().file("a", 0o644, b"1").end())).unwrap();
    assert!(!leftover.exists());
    assert!(of_other_machine.exists());
    let long_ago = std::time::UNIX_EPOCH;
    fs::File::open(&of_other_machine).unwrap().set_modified(long_ago).unwrap();
    importer.import(&name("y"), stream(Tar::new().file("a", 0o644, b"1").end())).unwrap();
    assert!(!of_other_machine.exists());
}

pub(super) fn entries(directory: &Path) -> usize {
    fs::read_dir(directory).map_or(0, Iterator::count)
}
