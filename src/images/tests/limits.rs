//! The limits of an image: the largest that is accepted, and the smallest that is not.

use std::fs::{self, File};

use super::archive::{Layout, Tar, layout};
use super::{importer, name, scratch, stream};
use crate::import::check_programs;
use crate::manifest::ELF_MACHINE;
use crate::tree::{Budget, Tree, components};
use crate::{ImageError, Limits};

/// Runs `change` with a new tree that accepts this many bytes and entries, and returns whether it was rejected.
fn rejects(bytes: u64, entries: u64, change: impl FnOnce(&mut Tree) -> Result<(), ImageError>) -> bool {
    let directory = scratch();
    let mut tree = Tree::new(File::open(directory.path()).unwrap().into(), Budget { bytes, entries });
    match change(&mut tree) {
        Ok(()) => false,
        Err(ImageError::TooLarge(_) | ImageError::Rejected { .. }) => true,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn path_has_up_to_200_directories_and_names_up_to_255_bytes() {
    let count = |path: &str| components(path.as_bytes()).ok().map(|parts| parts.len());
    assert_eq!([count(&"d/".repeat(200)), count(&"d/".repeat(201))], [Some(200), None]);
    assert_eq!([count(&"x".repeat(255)), count(&"x".repeat(256))], [Some(1), None]);
    // Through a link, too.
    for (levels, expected) in [(100, false), (101, true)] {
        let rejected = rejects(0, 1000, |tree| {
            let half = "d/".repeat(100);
            let link = components(b"link")?;
            tree.symlink(&link, b"link", half.as_bytes())?;
            tree.directory(&components(format!("link/{}", "d/".repeat(levels + 1)).as_bytes())?, b"deep", 0o755, 0)
        });
        assert_eq!(rejected, expected, "{levels}");
    }
}

#[test]
fn path_leads_through_up_to_40_links() {
    for (links, expected) in [(40, false), (41, true)] {
        let rejected = rejects(0, 1000, |tree| {
            for at in 0..links {
                let target = if at + 1 == links { "/".to_owned() } else { format!("l{}", at + 1) };
                let label = format!("l{at}");
                tree.symlink(&components(label.as_bytes())?, label.as_bytes(), target.as_bytes())?;
            }
            tree.directory(&components(b"l0/made")?, b"l0/made", 0o755, 0)
        });
        assert_eq!(rejected, expected, "{links}");
    }
}

#[test]
fn target_of_link_has_1_to_4095_bytes() {
    for (length, expected) in [(0, true), (1, false), (4095, false), (4096, true)] {
        let target = "x/".repeat(2048)[..length].to_owned();
        let rejected = rejects(0, 10, |tree| tree.symlink(&components(b"a")?, b"a", target.as_bytes()));
        assert_eq!(rejected, expected, "{length}");
    }
}

#[test]
fn image_has_up_to_the_allowed_bytes_and_entries() {
    // Each entry counts, and each directory that is missing in the archive.
    for (bytes, entries, expected) in [(6, 4, false), (5, 4, true), (6, 3, true)] {
        let rejected = rejects(bytes, entries, |tree| {
            tree.file(&components(b"a")?, b"a", (0o644, 0), &mut &b"123"[..])?;
            tree.file(&components(b"d/b")?, b"d/b", (0o644, 0), &mut &b"456"[..])?;
            tree.symlink(&components(b"l")?, b"l", b"a")
        });
        assert_eq!(rejected, expected, "{bytes} {entries}");
    }
    for change in [
        (|tree| tree.skip(&components(b"x")?)) as fn(&mut Tree) -> Result<(), ImageError>,
        |tree| tree.directory(&components(b"x")?, b"x", 0o755, 0),
        |tree| tree.symlink(&components(b"x")?, b"x", b"y"),
        |tree| tree.file(&components(b"x")?, b"x", (0o644, 0), &mut &b""[..]),
        |tree| tree.hardlink(&components(b"x")?, b"x", b"x"),
    ] {
        assert!(rejects(0, 0, change) && !rejects(0, 1, change));
    }
}

#[test]
fn import_leaves_reserve_of_disk() {
    let directory = scratch();
    let mut importer = importer(&directory, 1 << 20);
    importer.limits = Limits { reserve: u64::MAX, ..importer.limits };
    let imported = importer.import(&name("x"), stream(Tar::new().file("a", 0o644, b"a").end()));
    assert!(matches!(imported, Err(ImageError::Space { reserve, .. }) if reserve == u64::MAX >> 20), "{imported:?}");
}

#[test]
fn image_has_up_to_512_layers() {
    let directory = scratch();
    let importer = importer(&directory, 16 << 20);
    let layers = vec![Tar::new().file("a", 0o644, b"a").end(); 513];
    let image = |count: usize, plain: usize| {
        stream(layout(&Layout { layers: &layers[..count], plain: &layers[..plain], ..Layout::default() }))
    };
    assert_eq!(importer.import(&name("x"), image(512, 512)).unwrap().layers, 512);
    for (count, plain) in [(513, 513), (2, 1)] {
        let imported = importer.import(&name("y"), image(count, plain));
        assert!(matches!(imported, Err(ImageError::Malformed(_))), "{count} {plain}: {imported:?}");
    }
}

#[test]
fn image_without_program_for_this_machine_is_rejected() {
    let directory = scratch();
    let mut tree = Tree::new(File::open(directory.path()).unwrap().into(), Budget { bytes: 1 << 20, entries: 100 });
    let mut add = |machine: u16, mode: u32| {
        let program = [b"\x7fELF\x02\x01".as_slice(), &[0; 12], &machine.to_le_bytes()].concat();
        tree.file(&components(b"program").unwrap(), b"program", (mode, 0), &mut &*program).unwrap();
        match check_programs(&tree) {
            Err(ImageError::Architecture { found, .. }) => Some(found),
            other => other.map(|()| None).unwrap(),
        }
    };
    // Only programs count.
    assert_eq!(add(3, 0o644), None);
    let machines = [
        (3, "linux/386"),
        (40, "linux/arm"),
        (62, "linux/amd64"),
        (183, "linux/arm64"),
        (243, "linux/riscv64"),
        (43, "ELF machine 43"),
    ];
    for (machine, expected) in machines.into_iter().filter(|(machine, _)| *machine != ELF_MACHINE) {
        assert_eq!(add(machine, 0o755).as_deref(), Some(expected));
    }
    assert_eq!(add(ELF_MACHINE, 0o755), None);
    assert_eq!(add(3, 0o755), None, "other programs may be there, too");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}
