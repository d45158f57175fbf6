//! Images, and sources of images, that another user could change. These tests require root, because they create files of other users.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::path::Path;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::archive::Tar;
use super::{entries, importer, name, scratch, stream};
use crate::{ImageError, Importer, Source, Store};

/// A user other than root.
const OTHER: u32 = 1234;

fn give(path: &Path) {
    chown(path, Some(OTHER), None).unwrap();
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn import(importer: &Importer, image: &str) -> Result<(), ImageError> {
    importer.import(&name(image), stream(Tar::new().file("a", 0o644, b"1").end())).map(drop)
}

#[track_caller]
fn assert_untrusted(store: &Store) {
    let error = store.find(&name("x")).unwrap_err();
    assert!(error.is_untrusted(), "{error}");
    let listing = store.list().unwrap();
    assert_eq!((listing.images.len(), listing.untrusted.len()), (0, 1), "{listing:?}");
}

#[test]
fn uses_no_image_that_another_user_could_change() {
    for part in ["", "rootfs", "image.json"] {
        let directory = scratch();
        let importer = importer(&directory, 1 << 20);
        import(&importer, "x").unwrap();
        let path = importer.store.path().join("x").join(part);
        set_mode(&path, path.metadata().unwrap().mode() | 0o020);
        assert_untrusted(&importer.store);
        set_mode(&path, path.metadata().unwrap().mode() & !0o020);
        give(&path);
        assert_untrusted(&importer.store);
        // The image can be replaced and removed.
        importer.store.remove(&name("x")).unwrap();
        import(&importer, "x").unwrap();
        assert!(importer.store.find(&name("x")).unwrap().is_some());
    }
}

#[test]
fn uses_no_image_below_directory_of_another_user() {
    let directory = scratch();
    let importer = importer(&directory, 1 << 20);
    import(&importer, "x").unwrap();
    for path in [importer.store.path(), directory.path()] {
        give(path);
        assert_untrusted(&importer.store);
        // The owner is not changed, because the directory could contain anything.
        assert!(import(&importer, "y").unwrap_err().is_untrusted());
        assert_eq!(path.metadata().unwrap().uid(), OTHER);
        assert_eq!(importer.store.find(&name("missing")).unwrap(), None);
        chown(path, Some(0), None).unwrap();
        set_mode(path, 0o777);
        assert_untrusted(&importer.store);
        set_mode(path, 0o755);
    }
    assert!(importer.store.find(&name("x")).unwrap().is_some());
}

#[test]
fn import_into_open_directory_closes_it_and_trusts_nothing_in_it() {
    let directory = scratch();
    let importer = importer(&directory, 1 << 20);
    let planted = importer.store.path().join("x");
    fs::create_dir_all(planted.join("rootfs")).unwrap();
    fs::write(planted.join("image.json"), r#"{"imported_by": "root"}"#).unwrap();
    [planted.join("rootfs"), planted.join("image.json"), planted].iter().for_each(|path| give(path));
    set_mode(importer.store.path(), 0o777);
    import(&importer, "y").unwrap();
    assert_eq!(importer.store.path().metadata().unwrap().mode() & 0o7777, 0o755);
    assert!(importer.store.find(&name("x")).unwrap_err().is_untrusted());
    assert!(importer.store.find(&name("y")).unwrap().is_some());
}

#[test]
fn import_follows_no_link_of_another_user() {
    let directory = scratch();
    let importer = importer(&directory, 1 << 20);
    let at = |path: &str| directory.path().join(path);
    fs::create_dir_all(at("private/tree")).unwrap();
    fs::write(at("private/tree/secret"), "secret").unwrap();
    fs::write(at("private/archive"), Tar::new().file("secret", 0o644, b"secret").end()).unwrap();
    fs::create_dir(at("theirs")).unwrap();
    for (link, target) in [("tree", "../private/tree"), ("archive", "../private/archive"), ("parent", "../private")] {
        symlink(target, at("theirs").join(link)).unwrap();
        lchown(at("theirs").join(link), Some(OTHER), None).unwrap();
    }
    give(&at("theirs"));
    for path in ["theirs/tree", "theirs/archive", "theirs/parent/tree"] {
        let imported = importer.import(&name("x"), Source::Path(at(path)));
        assert!(matches!(imported, Err(ImageError::Unreadable { .. })), "{path}: {imported:?}");
    }
    assert_eq!(entries(importer.store.path()), 0);
    // A file tree of another user can be imported: its files are only content.
    fs::rename(at("private/tree"), at("theirs/own")).unwrap();
    give(&at("theirs/own"));
    importer.import(&name("x"), Source::Path(at("theirs/own"))).unwrap();
}

#[test]
fn import_does_not_block_on_fifo() {
    let directory = scratch();
    let importer = importer(&directory, 1 << 20);
    let fifo = directory.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let imported = importer.import(&name("x"), Source::Path(fifo));
    assert!(matches!(imported, Err(ImageError::Unreadable { .. })), "{imported:?}");
}

#[test]
fn import_of_directory_counts_pipes_but_not_sockets() {
    let directory = scratch();
    let importer = importer(&directory, 1 << 20);
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    set_mode(&tree, 0o755);
    fs::write(tree.join("file"), "x").unwrap();
    ["one", "two"].iter().for_each(|name| mkfifo(&tree.join(name), Mode::S_IRWXU).unwrap());
    let _socket = std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
    assert_eq!(importer.import(&name("x"), Source::Path(tree)).unwrap().skipped, 2);
    assert_eq!(entries(&importer.store.rootfs(&name("x"))), 1);
}

#[test]
fn import_for_all_users_rejects_closed_directory() {
    let directory = scratch();
    let importer = importer(&directory, 1 << 20);
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "private").unwrap();
    set_mode(&tree, 0o700);
    let imported = importer.import(&name("x"), Source::Path(tree.clone()));
    assert!(matches!(imported, Err(ImageError::Private { mode: 0o700, .. })), "{imported:?}");
    let own = Importer { store: Store::of_user(directory.path()), ..importer.clone() };
    own.import(&name("x"), Source::Path(tree.clone())).unwrap();
    assert_eq!(own.store.path().metadata().unwrap().mode() & 0o7777, 0o700);
    set_mode(&tree, 0o755);
    importer.import(&name("x"), Source::Path(tree)).unwrap();
}
