//! Archives that must be rejected without leaving files behind.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::archive::{Layout, Namer, Tar, hex, layout, named_save, save, saved};
use super::{entries, gzip, importer, name, scratch, stream, zstd};
use crate::ImageError;

/// A gzip stream of this many zeros, in MiB.
fn zeros(mib: usize) -> Vec<u8> {
    gzip(&vec![0; mib << 20])
}

fn image(layer: Vec<u8>) -> Vec<u8> {
    let layers = [layer];
    layout(&Layout { layers: &layers, plain: &layers, ..Layout::default() })
}

fn good() -> Tar {
    Tar::new().file("bin/sh", 0o755, b"sh")
}

/// Bytes of an ELF program for another machine (SPARC).
fn foreign_program() -> Vec<u8> {
    let mut program = b"\x7fELF\x02\x01\x01".to_vec();
    program.resize(64, 0);
    program[18] = 43;
    program
}

#[expect(clippy::too_many_lines, reason = "a list")]
fn hostile_archives() -> Vec<(&'static str, Vec<u8>)> {
    let plain = good().end();
    let layers = [plain.clone()];
    let oci = |spec: Layout<'_>| layout(&Layout { layers: &layers, plain: &layers, ..spec });
    let deep = "d/".repeat(300);
    let damaged = |at| oci(Layout { damaged: Some(at), ..Layout::default() });
    let truncated = |keep: usize| plain[..keep].to_vec();
    let config = format!("{}.json", "0".repeat(64));
    let nested = (0..20).fold(Tar::new(), |tar, _| tar.member("long", b'L', 0, (2, b"a\0"), "")).file("a", 0o644, b"");
    let chain = (0..60).fold(good(), |tar, at| tar.symlink(&format!("l{at}"), &format!("l{}", at + 1)));
    // Each link target is 45 directories deeper.
    let levels = "d/".repeat(45);
    let deeper = good().directory(&levels, 0o755).symlink("l0", &levels);
    let deeper = (0..5).fold(deeper, |tar, at| {
        let path = format!("l{at}/{levels}");
        tar.directory(&path, 0o755).symlink(&format!("l{}", at + 1), &path)
    });
    let hidden = |name: &str| image(good().file(name, 0o644, b"").end());
    let many = (0..2000).fold(good(), |tar, at| tar.directory(&format!("{at}/"), 0o755));
    vec![
        ("parent directory", good().file("../x", 0o644, b"x").end()),
        ("parent directory inside", good().file("a/../../x", 0o644, b"x").end()),
        ("parent directory at the end", good().directory("a/..", 0o755).end()),
        ("parent directory in a GNU name", good().gnu_long(&format!("../{}", "x".repeat(120)), b"x").end()),
        ("link without a target", good().symlink("a", "").end()),
        ("hard link to an absolute path", good().hardlink("a", "/etc/passwd").end()),
        ("hard link that leaves the root", good().hardlink("a", "../../etc/passwd").end()),
        ("hard link to a missing file", good().hardlink("a", "missing").end()),
        ("hard link through a link to the root", good().symlink("r", "/").hardlink("a", "r/etc/shadow").end()),
        ("hard link to a directory", good().hardlink("a", "bin").end()),
        ("hard link to the root", good().hardlink("a", ".").end()),
        ("a parent of the path is not a directory", good().file("bin/sh/x", 0o644, b"x").end()),
        ("path through a loop of links", good().symlink("a", "b").symlink("b", "a").file("a/x", 0o644, b"x").end()),
        ("path through too many links", chain.file("l0/x", 0o644, b"x").end()),
        ("unknown type", good().member("x", b'S', 0o644, (0, b""), "").end()),
        ("too many directories", good().gnu_long(&format!("{deep}x"), b"x").end()),
        ("too many directories through a link", deeper.end()),
        ("name that is too long", good().gnu_long(&"x".repeat(300), b"x").end()),
        ("path that is too long", good().gnu_long(&"x/".repeat(3000), b"x").end()),
        ("headers without a member", nested.end()),
        ("pax attributes that are too long", good().member("p", b'x', 0, (1 << 40, b""), "").end()),
        ("damaged pax attributes", good().member("p", b'x', 0, (9, b"99 path=x"), "").file("x", 0o644, b"").end()),
        ("sparse file", good().pax(&[("GNU.sparse.major", "1")], "x", b"").end()),
        ("size that is not a number", good().pax(&[("size", "many")], "x", b"").end()),
        ("size beyond 64 bits", good().patch(124, &[0xbf; 12]).end()),
        ("negative size", good().patch(124, &[0xff; 12]).end()),
        ("name with a NUL", good().pax(&[("path", "a\0b")], "x", b"").end()),
        ("size beyond the end of the archive", good().member("x", b'0', 0o644, (1 << 30, b"x"), "").end()),
        ("truncated in a header", truncated(700)),
        ("truncated in a file", truncated(513)),
        ("truncated before the end", truncated(1024)),
        ("not an archive", b"#!/bin/sh\necho hello\n".repeat(100)),
        ("empty", Vec::new()),
        ("no members", Tar::new().end()),
        ("damaged checksum of a header", [b"x", &plain[1..]].concat()),
        ("damaged gzip data", gzip(&plain)[..60].to_vec()),
        ("bzip2", b"BZh91AY&SY".repeat(100)),
        ("damaged layer", damaged(0)),
        ("damaged configuration", damaged(1)),
        ("damaged manifest", damaged(2)),
        (
            "layer digest that differs from the configuration",
            layout(&Layout { layers: &layers, plain: &[Tar::new().end()], ..Layout::default() }),
        ),
        ("layers without digests", layout(&Layout { layers: &layers, ..Layout::default() })),
        ("other architecture", oci(Layout { architecture: "s390x", ..Layout::default() })),
        ("other operating system", oci(Layout { os: "windows", ..Layout::default() })),
        ("program for another machine", Tar::new().file("bin/sh", 0o755, &foreign_program()).end()),
        ("two images", oci(Layout { manifests: 2, ..Layout::default() })),
        ("no image", oci(Layout { manifests: 0, ..Layout::default() })),
        ("missing layer", {
            let archive = save(&layers, true);
            let name = b"layer0/layer.tar";
            let at = archive.windows(name.len()).rposition(|window| window == name).unwrap();
            [&archive[..at], b"layer9/layer.tar", &archive[at + name.len()..]].concat()
        }),
        (
            "wrong name of the configuration",
            Tar::new()
                .file(&config, 0o644, b"{}")
                .file("manifest.json", 0o644, format!(r#"[{{"Config":"{config}","Layers":[]}}]"#).as_bytes())
                .end(),
        ),
        (
            "configuration outside the archive",
            Tar::new()
                .file(
                    "manifest.json",
                    0o644,
                    format!(r#"[{{"Config":"../{}.json","Layers":[]}}]"#, hex(b"{}")).as_bytes(),
                )
                .end(),
        ),
        ("link to itself as layer", {
            let config = format!(r#"{{"rootfs":{{"diff_ids":["sha256:{}"]}}}}"#, hex(b""));
            let name = format!("{}.json", hex(config.as_bytes()));
            let manifest = format!(r#"[{{"Config":"{name}","Layers":["layer0/layer.tar"]}}]"#);
            Tar::new()
                .symlink("layer0/layer.tar", "../layer0/layer.tar")
                .file(&name, 0o644, config.as_bytes())
                .file("manifest.json", 0o644, manifest.as_bytes())
                .end()
        }),
        ("invalid index", Tar::new().file("index.json", 0o644, b"[").file("oci-layout", 0o644, b"{}").end()),
        ("whiteout of its directory", hidden("bin/.wh..")),
        ("whiteout of the parent directory", hidden("bin/.wh...")),
        ("whiteout without a name", hidden("bin/.wh.")),
        ("too many files", many.end()),
        ("too large", good().file("x", 0o644, &vec![1; 2 << 20]).end()),
        ("gzip bomb", zeros(64)),
        ("gzip bomb as a layer", layout(&Layout { layers: &[zeros(64)], plain: &layers, ..Layout::default() })),
        ("nested gzip", gzip(&gzip(&plain))),
    ]
}

/// How crane, kaniko and ko name files.
pub(super) const FLAT: [Namer; 2] = [|hex| format!("sha256:{hex}"), |hex| format!("{hex}.tar.gz")];

/// Defects in the layouts of crane, kaniko, ko and Bazel, and in layers of zstd.
fn hostile_layouts() -> Vec<(&'static str, Vec<u8>)> {
    let plain = [good().end()];
    let flat = |layer: &[u8]| named_save(&[layer.to_vec()], &plain, FLAT);
    let described = |config: &str, layers: &[&str]| {
        let layers: Vec<String> = layers.iter().map(|layer| (*layer).to_owned()).collect();
        good().file("manifest.json", 0o644, saved(config, &layers).as_bytes())
    };
    let compressed = |layer: Vec<u8>| layout(&Layout { layers: &[layer], plain: &plain, ..Layout::default() });
    let frame = zstd(&plain[0], 1);
    let skipped = |length: u32| [&frame[..], b"\x50\x2a\x4d\x18", &length.to_le_bytes(), b"x"].concat();
    let json = format!(r#"{{"rootfs":{{"diff_ids":["sha256:{}"]}}}}"#, hex(&plain[0]));
    let wrong = format!("sha256:{}", "1".repeat(64));
    let parents = "../".repeat(4);
    vec![
        ("other layer", flat(&gzip(&Tar::new().file("x", 0o644, b"x").end()))),
        ("layer that is no archive", flat(b"text")),
        (
            "name of another configuration",
            described(&wrong, &["l"]).file(&wrong, 0o644, json.as_bytes()).file("l", 0o644, &plain[0]).end(),
        ),
        ("configuration of the machine", described("/etc/passwd", &["bin/sh"]).end()),
        ("layer of the machine", described("c.json", &["/etc/passwd"]).file("c.json", 0o644, json.as_bytes()).end()),
        (
            "layer of the machine through a link",
            described("c.json", &["l.tar.gz"])
                .file("c.json", 0o644, json.as_bytes())
                .symlink("l.tar.gz", "/etc/passwd")
                .end(),
        ),
        (
            "layer of the machine through a hard link",
            described("c.json", &["l.tar.gz"])
                .file("c.json", 0o644, json.as_bytes())
                .hardlink("l.tar.gz", &format!("{parents}etc/passwd"))
                .end(),
        ),
        (
            "layer that is a directory",
            described("c.json", &["l.tar"]).file("c.json", 0o644, json.as_bytes()).directory("l.tar", 0o755).end(),
        ),
        (
            "layers that link to each other",
            described("c.json", &["a.tar"])
                .file("c.json", 0o644, json.as_bytes())
                .symlink("a.tar", "b.tar")
                .symlink("b.tar", "a.tar")
                .end(),
        ),
        ("configuration that is a device", described("sha256:x", &["bin/sh"]).device("sha256:x").end()),
        (
            "configuration without layers",
            described("c.json", &["l.tar"]).file("c.json", 0o644, b"{}").file("l.tar", 0o644, &plain[0]).end(),
        ),
        (
            "layers that the configuration does not list",
            described("c.json", &["l.tar", "l.tar"])
                .file("c.json", 0o644, json.as_bytes())
                .file("l.tar", 0o644, &plain[0])
                .end(),
        ),
        ("zstd: half a frame", compressed(frame[..frame.len() / 3].to_vec())),
        ("zstd: damaged frame", compressed([&frame[..8], &[0xff; 40]].concat())),
        ("zstd: skipped frame beyond the end", compressed(skipped(u32::MAX))),
        ("zstd: data after the last frame", compressed([&frame[..], b"data"].concat())),
        ("zstd: bomb", compressed(zstd(&vec![0; 16 << 20], 8))),
        ("zstd: skipped frames alone", compressed(b"\x50\x2a\x4d\x18\0\0\0\0".repeat(100))),
    ]
}

/// The paths of all entries below the directory.
fn tree(directory: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let with_content = |path: PathBuf| {
        let below = if path.is_dir() && !path.is_symlink() { tree(&path) } else { Vec::new() };
        std::iter::once(path).chain(below).collect::<Vec<_>>()
    };
    found.flat_map(with_content).collect()
}

#[test]
fn rejects_hostile_archives_and_leaves_no_files() {
    let directory = scratch();
    let importer = importer(&directory, 1 << 20);
    let file = directory.path().join("archive");
    let expected = [file.clone(), importer.store.path().to_owned()];
    let mut reasons = BTreeMap::new();
    for (what, archive) in hostile_archives().into_iter().chain(hostile_layouts()) {
        fs::write(&file, &archive).unwrap();
        for source in [stream(archive), crate::Source::Path(file.clone())] {
            let imported = importer.import(&name("x"), source);
            assert!(imported.is_err(), "{what} was imported");
            let error = imported.unwrap_err().to_string();
            assert!(error.chars().all(|c| !c.is_control()), "{what}: {error:?}");
            // Also searches beside the store, where a member that escapes the root would be.
            let found = tree(directory.path());
            assert!(found.iter().all(|path| expected.contains(path)), "{what} left files behind: {error}: {found:?}");
            reasons.insert(what, error);
        }
    }
    for (what, reason) in [
        ("two images", "contains 2 images"),
        ("no image", "contains no image"),
        ("other architecture", "s390x"),
        ("damaged layer", "wrong digest"),
    ] {
        assert!(reasons[what].contains(reason), "{what}: {}", reasons[what]);
    }
    // Without a defect, the archives are accepted.
    importer.import(&name("x"), stream(good().end())).unwrap();
    importer.import(&name("y"), stream(image(good().end()))).unwrap();
}

/// Entries that would escape the root stay in it, or are left out. The number is the count of those left out.
fn confined_archives() -> Vec<(&'static str, Tar, u64)> {
    let device = |tar: Tar, path: &str, kind: u8| tar.member(path, kind, 0o666, (0, b""), "");
    let through = |target: &str| good().symlink("way", target).file("way/x", 0o644, b"x");
    vec![
        ("absolute path", good().file("/etc/x", 0o644, b"x"), 0),
        ("absolute path of several slashes", good().file("///etc/x", 0o644, b"x"), 0),
        ("absolute path in a pax header", good().pax(&[("path", "/etc/x")], "x", b"x"), 0),
        ("absolute directory", good().directory("/a/", 0o755), 0),
        ("absolute hard link", good().hardlink("/a", "/bin/sh"), 0),
        ("link above the root", good().symlink("a", "../x"), 0),
        ("link above the root later", good().symlink("a/b", "c/../../../x"), 0),
        ("absolute link above the root", good().symlink("a", "/../x"), 0),
        ("file through a link above the root", through("../../../.."), 0),
        ("file through a link to the root", through("/"), 0),
        ("file through a link to a missing directory above", through("../../../../outside"), 0),
        ("file through an absolute link above", through("/../../outside"), 0),
        ("hard link through a link above", good().symlink("way", "../..").hardlink("way/other", "bin/sh"), 0),
        ("hard link to a file through a link above", good().symlink("way", "../..").hardlink("a", "way/bin/sh"), 0),
        ("hard link to itself", good().hardlink("bin/sh", "bin/sh"), 0),
        ("hard link to itself through a linked directory", good().symlink("b", "bin").hardlink("b/sh", "bin/sh"), 0),
        ("hard link to a link above the root", good().symlink("a", "../../x").hardlink("b", "a"), 0),
        ("character device", device(good(), "x", b'3'), 1),
        ("block device", device(good(), "x", b'4'), 1),
        ("FIFO", device(good(), "run/x", b'6'), 1),
        ("absolute device", device(good(), "/x", b'3'), 1),
        ("device in dev", device(good(), "dev/x", b'3'), 0),
        ("device through a link to dev", device(good().symlink("d", "dev"), "d/x", b'3'), 1),
        ("device above the root", device(good().symlink("d", "../.."), "d/x", b'3'), 1),
    ]
}

#[test]
fn confines_entries_that_would_leave_the_root() {
    for as_layer in [false, true] {
        let directory = scratch();
        let importer = importer(&directory, 1 << 20);
        fs::create_dir(directory.path().join("outside")).unwrap();
        for (what, archive, skipped) in confined_archives() {
            let archive = if as_layer { image(archive.end()) } else { archive.end() };
            let record = importer.import(&name("x"), stream(archive)).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(record.skipped, skipped, "{what}");
            let rootfs = importer.store.rootfs(&name("x"));
            assert_eq!(fs::read(rootfs.join("bin/sh")).unwrap(), b"sh", "{what}");
            assert_only_in(directory.path(), &importer.store, what);
            importer.store.remove(&name("x")).unwrap();
        }
    }
}

/// Asserts that nothing was created beside the store, and that the store contains nothing that is forbidden in an image.
#[track_caller]
fn assert_only_in(directory: &Path, store: &crate::Store, what: &str) {
    for path in tree(directory) {
        if !path.starts_with(store.path()) {
            assert!(path.ends_with("outside"), "{what} made {}", path.display());
            continue;
        }
        let metadata = fs::symlink_metadata(&path).unwrap();
        let kind = metadata.file_type();
        assert!(kind.is_file() || kind.is_dir() || kind.is_symlink(), "{what} made {}", path.display());
        let is_closed = kind.is_symlink() || metadata.mode() & 0o6022 == 0;
        assert!(is_closed, "{what} made {} with mode {:o}", path.display(), metadata.mode());
    }
}

#[test]
fn accepts_layers_without_end_but_no_exported_file_system() {
    let directory = scratch();
    let importer = importer(&directory, 1 << 20);
    let cut = |archive: Vec<u8>, bytes: usize| archive[..archive.len() - bytes].to_vec();
    // Without one end block, without both, and without the padding of the last file.
    for bytes in [512, 1024, 1024 + 510] {
        importer.import(&name(&format!("layer{bytes}")), stream(image(cut(good().end(), bytes)))).unwrap();
        let without_end = bytes.min(1024);
        importer.import(&name(&format!("outer{bytes}")), stream(cut(image(good().end()), without_end))).unwrap();
        let exported = importer.import(&name("x"), stream(cut(good().end(), bytes)));
        assert!(matches!(exported, Err(ImageError::Malformed(_))), "{exported:?}");
    }
    let half = importer.import(&name("half"), stream(image(cut(good().end(), 1024 + 511))));
    assert!(half.is_err(), "{half:?}");
}

/// The number of archives of each test. One of the tests generates the same archives in every run.
const GENERATED: u32 = 120;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: GENERATED, rng_seed: RngSeed::Fixed(52), ..ProptestConfig::default() })]

    #[test]
    fn confines_generated_archives(members in any_members(), form in any_form()) {
        confines(&members, form);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: GENERATED, ..ProptestConfig::default() })]

    #[test]
    fn confines_any_archive(members in any_members(), form in any_form()) {
        confines(&members, form);
    }
}

/// How a test passes an archive to the importer.
#[derive(Clone, Copy, Debug)]
enum Form {
    FileSystem,
    OciLayer,
    /// A layer of an archive with the file names of crane.
    FlatLayer,
    /// Cut off after this share of its bytes, in 256ths.
    Cut(u8),
}

fn any_form() -> impl Strategy<Value = Form> {
    prop_oneof![Just(Form::FileSystem), Just(Form::OciLayer), Just(Form::FlatLayer), any::<u8>().prop_map(Form::Cut)]
}

/// A sequence of members whose names and targets may lead out of the image is rejected or confined.
fn confines(members: &[AnyMember], form: Form) {
    let directory = scratch();
    let importer = importer(&directory, 1 << 20);
    fs::create_dir(directory.path().join("outside")).unwrap();
    let archive = members.iter().fold(good(), |tar, (kind, path, target, mode, named)| {
        let content: &[u8] = if *kind == b'0' { b"content" } else { b"" };
        match named {
            Named::Header => tar.member(path, *kind, *mode, (content.len() as u64, content), target),
            Named::Gnu => tar.gnu_long(path, content),
            Named::Pax => tar.pax(&[("path", path), ("linkpath", target)], "short", content),
            Named::Size(size) => tar.member(path, *kind, *mode, (*size, content), target),
        }
    });
    let layer = archive.end();
    let archive = match form {
        Form::FileSystem => layer,
        Form::OciLayer => image(layer),
        Form::FlatLayer => named_save(&[gzip(&layer)], &[layer], FLAT),
        Form::Cut(share) => layer[..layer.len() * usize::from(share) / 256].to_vec(),
    };
    let _ = importer.import(&name("x"), stream(archive));
    assert_only_in(directory.path(), &importer.store, "an archive");
}

/// How a member's name is stored, or a forged size in its header.
#[derive(Clone, Debug)]
enum Named {
    Header,
    Gnu,
    Pax,
    Size(u64),
}

type AnyMember = (u8, String, String, u32, Named);

fn any_members() -> impl Strategy<Value = Vec<AnyMember>> {
    proptest::collection::vec(any_member(), 1..12)
}

fn any_member() -> impl Strategy<Value = AnyMember> {
    const PARTS: [&str; 11] = ["..", ".", "", "a", "b", "bin", "sh", "dev", "outside", ".wh.a", ".wh..wh..opq"];
    let path =
        || proptest::collection::vec(proptest::sample::select(&PARTS[..]), 1..6).prop_map(|parts| parts.join("/"));
    (
        proptest::sample::select(&b"0123456"[..]),
        path().prop_filter("a name", |path| !path.is_empty()),
        path(),
        0_u32..0o10000,
        prop_oneof![8 => Just(Named::Header), 2 => Just(Named::Gnu), 2 => Just(Named::Pax), 1 => (0..2000_u64).prop_map(Named::Size)],
    )
}

#[test]
fn links_resolve_inside_image_root() {
    let directory = scratch();
    let importer = importer(&directory, 1 << 20);
    let outside = directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    // An absolute link is resolved from the root of the image, as in the job.
    let target = outside.to_str().unwrap();
    let archive = good().symlink("a", target).file("a/x", 0o644, b"x").end();
    importer.import(&name("x"), stream(archive)).unwrap();
    assert_eq!(entries(&outside), 0);
    let inside = importer.store.rootfs(&name("x")).join(target.trim_start_matches('/')).join("x");
    assert_eq!(fs::read(inside).unwrap(), b"x");
}

#[test]
fn detects_bomb_by_compression_ratio() {
    let directory = scratch();
    let importer = importer(&directory, 1 << 40);
    let bomb = layout(&Layout { layers: &[zeros(20)], plain: &[Vec::new()], ..Layout::default() });
    assert!(matches!(importer.import(&name("x"), stream(bomb)), Err(ImageError::TooLarge(_))));
    let tar = Tar::new().file("x", 0o644, &vec![0; 20 << 20]).end();
    let bomb = layout(&Layout { layers: &[gzip(&tar)], plain: &[tar], ..Layout::default() });
    assert!(matches!(importer.import(&name("x"), stream(bomb)), Err(ImageError::TooLarge(_))));
    assert_eq!(entries(importer.store.path()), 0);
}
