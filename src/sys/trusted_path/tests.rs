//! Attacks by another user, as files on disk. Most tests fail without root, which is required to create files of other
//! users.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::path::Path;
use std::time::Duration;

use nix::sys::stat::Mode;
use nix::unistd::{geteuid, mkfifo};
use tempfile::TempDir;

use super::*;

/// A user other than root.
const OTHER: u32 = 1234;

fn fixture() -> TempDir {
    assert!(geteuid().is_root(), "requires root to create files of another user");
    tempfile::tempdir().unwrap()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// A root directory with `/srv/deep`, whose `/srv` has this owner and mode.
fn root_with_srv(uid: u32, bits: u32) -> TempDir {
    let root = fixture();
    let srv = root.path().join("srv");
    fs::create_dir_all(srv.join("deep")).unwrap();
    set_mode(&srv, bits);
    chown(&srv, Some(uid), None).unwrap();
    root
}

#[test]
fn opens_and_creates_path_below_directories_of_root() {
    let root = root_with_srv(0, 0o755);
    assert_eq!(open(root.path(), Path::new("/srv/deep")).unwrap().path(), Path::new("/srv/deep"));
    assert!(open(root.path(), Path::new("/srv/none")).unwrap_err().is_missing());
    let mut repaired = Vec::new();
    let (made, is_new) = make(root.path(), Path::new("/srv/a/b"), &mut repaired).unwrap();
    assert!(is_new && made.require_ours().is_ok());
    assert!(!make(root.path(), Path::new("/srv/a/b"), &mut repaired).unwrap().1);
    assert_eq!(repaired, []);
}

#[test]
fn rejects_path_through_directory_of_another_user() {
    let root = root_with_srv(OTHER, 0o755);
    for outcome in [
        open(root.path(), Path::new("/srv/deep")),
        make(root.path(), Path::new("/srv/deep"), &mut Vec::new()).map(|(dir, _)| dir),
    ] {
        assert!(matches!(outcome, Err(UntrustedPath::Foreign { uid: OTHER, .. })), "{outcome:?}");
        let reason = outcome.unwrap_err().reason();
        assert!(reason.contains("/srv") && reason.contains(&OTHER.to_string()), "{reason}");
    }
    assert_eq!(fs::metadata(root.path().join("srv")).unwrap().uid(), OTHER, "the owner of a parent must not change");
}

#[test]
fn removes_write_permission_of_others_from_parent() {
    let root = root_with_srv(0, 0o777);
    let outcome = open(root.path(), Path::new("/srv/deep"));
    assert!(matches!(outcome, Err(UntrustedPath::Open { mode: 0o777, .. })), "{outcome:?}");
    let mut repaired = Vec::new();
    make(root.path(), Path::new("/srv/deep"), &mut repaired).unwrap();
    assert_eq!(repaired, [RepairedPath::Closed { path: "/srv".into(), mode: 0o777 }]);
    assert_eq!(mode(&root.path().join("srv")), 0o755);
    open(root.path(), Path::new("/srv/deep")).unwrap();
}

#[test]
fn sets_sticky_bit_only_on_world_writable_directory() {
    for (before, after) in [(0o777, 0o1777), (0o1777, 0o1777), (0o755, 0o755)] {
        let root = tempfile::tempdir().unwrap();
        let tmp = root.path().join("tmp");
        fs::create_dir(&tmp).unwrap();
        set_mode(&tmp, before);
        let mut repaired = Vec::new();
        open(root.path(), Path::new("/tmp")).unwrap().ensure_sticky_bit(&mut repaired);
        assert_eq!((mode(&tmp), repaired.len()), (after, usize::from(before != after)));
    }
}

#[test]
fn opens_directory_of_temporary_files_that_users_cannot_write() {
    for (before, after) in [(0o755, 0o1777), (0o1777, 0o1777), (0o700, 0o1777)] {
        let root = tempfile::tempdir().unwrap();
        let tmp = root.path().join("tmp");
        fs::create_dir(&tmp).unwrap();
        set_mode(&tmp, before);
        let mut repaired = Vec::new();
        open(root.path(), Path::new("/tmp")).unwrap().open_to_users(&mut repaired);
        assert_eq!((mode(&tmp), repaired.len()), (after, usize::from(before != after)));
    }
}

#[test]
fn keeps_sticky_parent_and_removes_planted_files() {
    let root = root_with_srv(0, 0o1777);
    let (srv, victim) = (root.path().join("srv"), root.path().join("victim"));
    fs::create_dir(&victim).unwrap();
    symlink("/victim", srv.join("ours")).unwrap();
    lchown(srv.join("ours"), Some(OTHER), None).unwrap();
    let refused = open(root.path(), Path::new("/srv/ours"));
    assert!(matches!(refused, Err(UntrustedPath::Link { .. })), "{refused:?}");
    let mut repaired = Vec::new();
    let (made, is_new) = make(root.path(), Path::new("/srv/ours"), &mut repaired).unwrap();
    assert!(is_new);
    assert_eq!(made.path(), Path::new("/srv/ours"));
    assert_eq!(repaired, [RepairedPath::Removed { path: "/srv/ours".into() }]);
    assert!(!srv.join("ours").is_symlink() && mode(&srv) == 0o1777);
}

#[test]
fn follows_only_links_owned_by_root() {
    let root = root_with_srv(0, 0o755);
    let (run, var) = (root.path().join("run"), root.path().join("var"));
    fs::create_dir_all(run.join("slurminit")).unwrap();
    fs::create_dir(&var).unwrap();
    symlink("/run", var.join("run")).unwrap();
    symlink("../srv/./deep", var.join("relative")).unwrap();
    let found = open(root.path(), Path::new("/var/run/slurminit")).unwrap();
    assert_eq!(found.path(), Path::new("/run/slurminit"), "resolved below the given root");
    assert_eq!(open(root.path(), Path::new("/var/relative")).unwrap().path(), Path::new("/srv/deep"));
    assert_eq!(open(root.path(), Path::new("/var/../../run")).unwrap().path(), Path::new("/run"));
    lchown(var.join("run"), Some(OTHER), None).unwrap();
    assert!(matches!(open(root.path(), Path::new("/var/run")), Err(UntrustedPath::Link { .. })));
    // The longest chain of links that is followed.
    symlink("/srv", var.join("40")).unwrap();
    for number in 0..40 {
        symlink((number + 1).to_string(), var.join(number.to_string())).unwrap();
    }
    assert_eq!(open(root.path(), Path::new("/var/1")).unwrap().path(), Path::new("/srv"));
    let too_many = open(root.path(), Path::new("/var/0"));
    assert!(matches!(&too_many, Err(UntrustedPath::Io { error, .. }) if error.raw_os_error() == Some(libc::ELOOP)));
    symlink("round", var.join("round")).unwrap();
    let circular = open(root.path(), Path::new("/var/round"));
    assert!(matches!(&circular, Err(UntrustedPath::Io { error, .. }) if error.raw_os_error() == Some(libc::ELOOP)));
}

#[test]
fn rejects_link_in_place_of_child_directory() {
    let root = root_with_srv(0, 0o755);
    symlink("deep", root.path().join("srv/slurmctld")).unwrap();
    let srv = open(root.path(), Path::new("/srv")).unwrap();
    assert!(matches!(srv.child("slurmctld"), Err(UntrustedPath::Link { .. })));
    assert!(matches!(srv.child("deep"), Ok((_, false))));
    assert!(matches!(srv.child("new"), Ok((_, true))));
}

#[test]
fn trusts_secret_by_its_directory_not_by_its_owner() {
    let root = root_with_srv(0, 0o755);
    let srv = root.path().join("srv");
    let read = |name: &str| {
        open_file(root.path(), &Path::new("/srv").join(name))
            .and_then(|file| read_whole(&file).map_err(|error| UntrustedPath::io(Path::new("/"), error)))
    };
    fs::write(srv.join("mounted"), "key").unwrap();
    chown(srv.join("mounted"), Some(OTHER), None).unwrap();
    assert_eq!(read("mounted").unwrap(), b"key");

    // Layout of a Kubernetes secret volume: a world-writable directory with links and files of root.
    fs::create_dir(srv.join("..2026")).unwrap();
    fs::write(srv.join("..2026/key"), "key").unwrap();
    symlink("..2026", srv.join("..data")).unwrap();
    symlink("..data/key", srv.join("key")).unwrap();
    assert_eq!(read("key").unwrap(), b"key");
    set_mode(&srv, 0o1777);
    assert_eq!(read("key").unwrap(), b"key");
    // Others can add their own files there, or hard links to files of root.
    assert!(matches!(read("mounted"), Err(UntrustedPath::Foreign { uid: OTHER, .. })));
    fs::write(root.path().join("shadow"), "secret").unwrap();
    fs::hard_link(root.path().join("shadow"), srv.join("second")).unwrap();
    assert!(matches!(read("second"), Err(UntrustedPath::Foreign { .. })));
    lchown(srv.join("key"), Some(OTHER), None).unwrap();
    assert!(matches!(read("key"), Err(UntrustedPath::Link { .. })));
    set_mode(&srv, 0o777);
    assert!(matches!(read("..data/key"), Err(UntrustedPath::Open { .. })));
}

/// Runs `work` with a deadline: opening a pipe without a writer would block for ever.
fn with_timeout<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    is_done.recv_timeout(Duration::from_secs(60)).expect("blocked on a pipe without a writer")
}

#[test]
fn read_rejects_pipe_device_and_directory_without_blocking() {
    let root = tempfile::tempdir().unwrap();
    let pipe = root.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    let path = pipe.clone();
    assert!(with_timeout(move || read(&path)).is_err());
    let path = root.path().to_owned();
    assert!(with_timeout(move || Dir::open_unchecked(&path).unwrap().read("pipe")).is_err());
    assert!(read(Path::new("/dev/zero")).is_err());
    assert!(read(root.path()).is_err());
}

#[test]
fn changes_owner_of_tree_except_planted_links_and_pipes() {
    let root = fixture();
    let (tree, shadow) = (root.path().join("tree"), root.path().join("shadow"));
    fs::create_dir_all(tree.join("hash.0")).unwrap();
    fs::create_dir(root.path().join("bin")).unwrap();
    fs::write(&shadow, "secret").unwrap();
    for name in ["job_state", "hash.0/script"] {
        fs::write(tree.join(name), "").unwrap();
    }
    // Slurm leaves this if it is killed between link and unlink.
    fs::hard_link(tree.join("job_state"), tree.join("job_state.old")).unwrap();
    for name in [".", "hash.0", "job_state", "hash.0/script"] {
        chown(tree.join(name), Some(OTHER), None).unwrap();
    }
    fs::hard_link(&shadow, tree.join("second")).unwrap();
    symlink("../bin", tree.join("link")).unwrap();
    symlink("../shadow", tree.join("hash.0/link")).unwrap();
    mkfifo(&tree.join("pipe"), Mode::S_IRWXU).unwrap();

    let mut dir = open(root.path(), Path::new("/tree")).unwrap();
    let mut repaired = Vec::new();
    let give = |dir: &mut Dir, repaired: &mut Vec<RepairedPath>| {
        assert!(dir.set_owner_and_mode(Some((4321, 4321)), 0o700, repaired).unwrap());
        dir.chown_contents((4321, 4321), OTHER, repaired).unwrap();
    };
    give(&mut dir, &mut repaired);
    let uid = |path: &Path| fs::symlink_metadata(path).unwrap().uid();
    for name in [".", "hash.0", "job_state", "job_state.old", "hash.0/script"] {
        assert_eq!(uid(&tree.join(name)), 4321, "{name}");
    }
    assert_eq!((uid(&shadow), uid(&root.path().join("bin")), mode(&tree)), (0, 0, 0o700));
    assert_eq!(
        repaired.iter().filter(|repaired| matches!(repaired, RepairedPath::OwnerKept { .. })).count(),
        3,
        "{repaired:?}"
    );
    assert!(repaired.contains(&RepairedPath::OwnerChanged { path: "/tree".into(), uid: OTHER, new_uid: 4321 }));
}

#[test]
fn owner_of_tree_is_changed_down_to_depth_32() {
    let root = fixture();
    let depth = |depth: usize| root.path().join(format!("tree{}", "/d".repeat(depth)));
    fs::create_dir_all(depth(34)).unwrap();
    let mut repaired = Vec::new();
    open(root.path(), Path::new("/tree")).unwrap().chown_contents((OTHER, OTHER), 0, &mut repaired).unwrap();
    let uid = |path: &Path| fs::metadata(path).unwrap().uid();
    assert_eq!([1, 32, 33, 34].map(|level| uid(&depth(level))), [OTHER, OTHER, 0, 0]);
    let kept = Path::new("/tree").join(["d"; 33].iter().collect::<std::path::PathBuf>());
    assert_eq!(repaired, [RepairedPath::OwnerKept { path: kept }]);
}

#[test]
fn changes_and_opens_entries_by_name() {
    let root = root_with_srv(0, 0o755);
    let srv = root.path().join("srv");
    let directory = open(root.path(), Path::new("/srv")).unwrap();
    fs::write(srv.join("file"), "content").unwrap();
    directory.chmod_entry("file", 0o640).unwrap();
    assert_eq!(mode(&srv.join("file")), 0o640);
    directory.symlink("file", "link").unwrap();
    assert_eq!(fs::read_link(srv.join("link")).unwrap(), Path::new("file"));
    assert_eq!(read_whole(&directory.open_linked("link").unwrap()).unwrap(), b"content");
    directory.chown_entry("link", (OTHER, OTHER)).unwrap();
    let owner = |name: &str| fs::symlink_metadata(srv.join(name)).unwrap();
    assert_eq!([owner("link").uid(), owner("link").gid(), owner("file").uid()], [OTHER, OTHER, 0]);
    // A pipe without a writer is opened at once.
    mkfifo(&srv.join("pipe"), Mode::S_IRWXU).unwrap();
    directory.symlink("pipe", "to-pipe").unwrap();
    let pipe = with_timeout(move || directory.open_linked("to-pipe")).unwrap();
    let flags = nix::fcntl::fcntl(&pipe, nix::fcntl::FcntlArg::F_GETFD).unwrap();
    assert_ne!(flags & nix::libc::FD_CLOEXEC, 0, "programs must not inherit it");
}

#[test]
fn directory_to_which_others_can_add_is_not_ours() {
    for (uid, bits) in [(0, 0o1777), (0, 0o777), (OTHER, 0o755)] {
        let root = root_with_srv(uid, bits);
        match open_parent(root.path()).require_ours() {
            Err(UntrustedPath::Open { mode, .. }) => assert_eq!((uid, mode), (0, bits)),
            Err(UntrustedPath::Foreign { uid: found, .. }) => assert_eq!(found, uid),
            other => panic!("{bits:o}: {other:?}"),
        }
    }
}

/// The owner and mode of `/srv` after a change, whether others could write there before, and the repairs.
type Changed = (u32, u32, bool, Vec<RepairedPath>);

fn changed(uid: u32, bits: u32, change: impl FnOnce(&mut Dir, &mut Vec<RepairedPath>) -> io::Result<bool>) -> Changed {
    let root = root_with_srv(uid, bits);
    let mut directory = open_parent(root.path());
    let mut repaired = Vec::new();
    let could_write = change(&mut directory, &mut repaired).unwrap();
    let found = fs::metadata(root.path().join("srv")).unwrap();
    assert_eq!((directory.metadata().uid(), directory.metadata().mode()), (found.uid(), found.mode()));
    (found.uid(), found.mode() & 0o7777, could_write, repaired)
}

/// `/srv` without a check of its owner and mode.
fn open_parent(root: &Path) -> Dir {
    Dir::open_root(root).unwrap().open_entry(OsStr::new("srv")).unwrap()
}

#[test]
fn restricts_directory_to_root_and_reports_who_could_write() {
    let restricted = |uid, bits| changed(uid, bits, |directory, repaired| directory.restrict_to_root(repaired));
    let closed = |mode| vec![RepairedPath::Closed { path: "/srv".into(), mode }];
    let taken = || vec![RepairedPath::OwnerChanged { path: "/srv".into(), uid: OTHER, new_uid: 0 }];
    assert_eq!(restricted(0, 0o750), (0, 0o750, false, vec![]));
    assert_eq!(restricted(0, 0o1755), (0, 0o1755, false, vec![]));
    assert_eq!(restricted(0, 0o1777), (0, 0o755, true, closed(0o1777)));
    assert_eq!(restricted(0, 0o770), (0, 0o750, true, closed(0o770)));
    assert_eq!(restricted(OTHER, 0o700), (0, 0o755, true, taken()));
    assert_eq!(restricted(OTHER, 0o1777), (0, 0o755, true, taken()));
}

#[test]
fn sets_owner_and_mode_and_reports_only_those_who_could_write() {
    let set = |uid, bits, owner: Option<u32>, mode| {
        let owner = owner.map(|uid| (uid, uid));
        changed(uid, bits, |directory, repaired| directory.set_owner_and_mode(owner, mode, repaired))
    };
    let closed = vec![RepairedPath::Closed { path: "/srv".into(), mode: 0o777 }];
    let owner_changed = |uid, new_uid| vec![RepairedPath::OwnerChanged { path: "/srv".into(), uid, new_uid }];
    assert_eq!(set(0, 0o755, None, 0o755), (0, 0o755, false, vec![]));
    assert_eq!(set(0, 0o755, None, 0o700), (0, 0o700, false, vec![]));
    assert_eq!(set(0, 0o777, None, 0o755), (0, 0o755, true, closed.clone()));
    assert_eq!(set(0, 0o755, Some(4321), 0o755), (4321, 0o755, false, vec![]));
    assert_eq!(set(0, 0o777, Some(4321), 0o700), (4321, 0o700, true, closed));
    assert_eq!(set(OTHER, 0o755, Some(OTHER), 0o750), (OTHER, 0o750, false, vec![]));
    assert_eq!(set(OTHER, 0o755, Some(0), 0o755), (0, 0o755, true, owner_changed(OTHER, 0)));
    assert_eq!(set(OTHER, 0o755, Some(4321), 0o700), (4321, 0o700, true, owner_changed(OTHER, 4321)));
}

#[test]
fn content_is_own_unless_another_user_owns_or_can_write_the_directory() {
    for (uid, bits, expected) in [(0, 0o755, true), (0, 0o775, false), (0, 0o1777, false), (OTHER, 0o755, false)] {
        let root = root_with_srv(uid, bits);
        match open_parent(root.path()).require_own_content() {
            Ok(()) => assert!(expected, "{bits:o}"),
            Err(UntrustedPath::Open { path, mode }) => assert_eq!((path.to_str(), uid, mode), (Some("/srv"), 0, bits)),
            Err(UntrustedPath::Foreign { path, uid: found }) => assert_eq!((path.to_str(), found), (Some("/srv"), uid)),
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn clear_empties_directory_without_following_links() {
    let root = tempfile::tempdir().unwrap();
    let (spool, outside) = (root.path().join("spool"), root.path().join("outside"));
    fs::create_dir_all(spool.join("job1/deeper")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "").unwrap();
    symlink("../outside", spool.join("link")).unwrap();
    symlink("../../outside", spool.join("job1/link")).unwrap();
    mkfifo(&spool.join("pipe"), Mode::S_IRWXU).unwrap();
    open(root.path(), Path::new("/spool")).unwrap().clear().unwrap();
    assert_eq!(fs::read_dir(&spool).unwrap().count(), 0);
    assert!(outside.join("kept").exists());
}

#[test]
fn creates_home_in_foreign_directory_but_not_through_links() {
    let root = root_with_srv(OTHER, 0o777);
    let home = make_anywhere(root.path(), Path::new("/srv/homes/alice")).unwrap();
    assert_eq!(home.path(), Path::new("/srv/homes/alice"));
    symlink("/srv/deep", root.path().join("srv/link")).unwrap();
    lchown(root.path().join("srv/link"), Some(OTHER), None).unwrap();
    let refused = make_anywhere(root.path(), Path::new("/srv/link/alice"));
    assert!(matches!(refused, Err(UntrustedPath::Link { .. })), "{refused:?}");
    assert!(!root.path().join("srv/deep/alice").exists());
}

#[test]
fn opens_untrusted_content_without_links_or_second_names() {
    let root = root_with_srv(OTHER, 0o755);
    let srv = root.path().join("srv");
    fs::write(root.path().join("secret"), "secret").unwrap();
    fs::write(srv.join("file"), "theirs").unwrap();
    fs::hard_link(root.path().join("secret"), srv.join("second")).unwrap();
    symlink("/secret", srv.join("link")).unwrap();
    mkfifo(&srv.join("fifo"), Mode::S_IRWXU).unwrap();
    for name in ["file", "fifo", "deep"] {
        chown(srv.join(name), Some(OTHER), None).unwrap();
    }
    lchown(srv.join("link"), Some(OTHER), None).unwrap();
    let opened = |path: &str| open_untrusted(root.path(), Path::new(path));
    assert!(opened("/srv/file").unwrap().metadata().unwrap().is_file());
    assert!(opened("/srv/deep").unwrap().metadata().unwrap().is_dir());
    for refused in ["/srv/second", "/srv/link", "/srv/fifo", "/srv/none", "/srv/link/x"] {
        assert!(opened(refused).is_err(), "{refused}");
    }
    assert!(!root.path().join("srv/none").exists());
}

#[test]
fn own_file_is_changeable_by_others_only_by_its_mode() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let file = File::create(&path).unwrap();
    for (bits, is_changeable) in [(0o600, false), (0o644, false), (0o620, true), (0o602, true)] {
        set_mode(&path, bits);
        for owner in [None, Some(OTHER)] {
            assert_eq!(changeable_by_others(&file, owner).unwrap().is_some(), is_changeable, "{bits:o} {owner:?}");
        }
    }
}
