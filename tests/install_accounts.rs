//! Accounts in the container's passwd, group and shadow files.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use config::Config;
use install::{AccountError, add_host_accounts, install_accounts};
use model::inventory::{Finding, Severity};
use nix::unistd::geteuid;
use tempfile::TempDir;

const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n";
const ALICE: &str = "[[user]]\nname = \"alice\"\nuid = 1001\n";

fn fixture() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let etc = root.path().join("etc");
    fs::create_dir(&etc).unwrap();
    for (name, text, mode) in [
        ("passwd", PASSWD, 0o644),
        ("group", "root:x:0:\nshadow:x:42:\n", 0o644),
        ("shadow", "root:*:19000:0:99999:7:::\n", 0o640),
    ] {
        fs::write(etc.join(name), text).unwrap();
        fs::set_permissions(etc.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    if geteuid().is_root() {
        std::os::unix::fs::chown(etc.join("shadow"), Some(0), Some(42)).unwrap();
    }
    root
}

fn install(root: &Path, toml: &str) -> Result<Vec<Finding>, AccountError> {
    install_accounts(&Config::parse(toml, Path::new("slurminit.toml")).unwrap(), root)
}

fn passwd(root: &Path) -> String {
    fs::read_to_string(root.join("etc/passwd")).unwrap()
}

/// Names and inodes of the files in /etc, without the lock file.
fn inodes(root: &Path) -> Vec<(std::ffi::OsString, u64)> {
    let entries = fs::read_dir(root.join("etc")).unwrap().map(Result::unwrap);
    let entries = entries.filter(|entry| entry.file_name() != ".pwd.lock");
    let mut inodes: Vec<_> = entries.map(|entry| (entry.file_name(), entry.metadata().unwrap().ino())).collect();
    inodes.sort();
    inodes
}

#[test]
fn writes_nothing_without_configured_users() {
    let root = fixture();
    let before = inodes(root.path());
    assert_eq!(install(root.path(), "").unwrap(), []);
    assert_eq!(inodes(root.path()), before);
    // The root directory may have no account files.
    assert_eq!(install(tempfile::tempdir().unwrap().path(), "").unwrap(), []);
}

#[test]
fn adds_keeps_and_removes_account() {
    let root = fixture();
    let findings = install(root.path(), ALICE).unwrap();
    // Without root, the owner of a home cannot be changed; a finding reports it.
    assert_eq!(findings.is_empty(), geteuid().is_root(), "{findings:?}");
    let alice = "alice:x:1001:1001:made by slurminit:/home/alice:/bin/bash\n";
    assert_eq!(passwd(root.path()), format!("{PASSWD}{alice}"));
    let shadow = root.path().join("etc/shadow");
    assert!(fs::read_to_string(&shadow).unwrap().ends_with("\nalice:*::0:99999:7:::\n"));
    assert_eq!(fs::metadata(&shadow).unwrap().permissions().mode() & 0o7777, 0o640);
    if geteuid().is_root() {
        assert_eq!(fs::metadata(&shadow).unwrap().gid(), 42);
        let home = fs::metadata(root.path().join("home/alice")).unwrap();
        assert_eq!((home.uid(), home.gid(), home.permissions().mode() & 0o7777), (1001, 1001, 0o700));
    }
    let after = inodes(root.path());
    assert_eq!(after.len(), 3, "{after:?}");
    install(root.path(), ALICE).unwrap();
    assert_eq!(inodes(root.path()), after, "the second start wrote files");

    install(root.path(), "").unwrap();
    assert_eq!(passwd(root.path()), PASSWD);
    assert!(root.path().join("home/alice").is_dir(), "the home directory was removed");
}

/// ssh logins read ~/.bashrc. An existing home is not changed.
#[test]
fn new_home_has_files_of_skeleton() {
    let root = fixture();
    let skeleton = root.path().join("etc/skel");
    fs::create_dir_all(skeleton.join(".config")).unwrap();
    fs::write(skeleton.join(".bashrc"), "alias ll='ls -l'\n").unwrap();
    fs::write(skeleton.join(".config/settings"), "x").unwrap();
    fs::set_permissions(skeleton.join(".bashrc"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("/etc/passwd", skeleton.join("link")).unwrap();
    let existing = root.path().join("home/bob");
    fs::create_dir_all(&existing).unwrap();
    install(root.path(), &format!("{ALICE}[[user]]\nname = \"bob\"\nuid = 1002\n")).unwrap();
    let home = root.path().join("home/alice");
    assert_eq!(fs::read_to_string(home.join(".bashrc")).unwrap(), "alias ll='ls -l'\n");
    assert_eq!(fs::read_to_string(home.join(".config/settings")).unwrap(), "x");
    assert!(home.join("link").symlink_metadata().is_err());
    assert_eq!(fs::read_dir(&existing).unwrap().count(), 0);
    if geteuid().is_root() {
        for (name, mode) in [(".bashrc", 0o640), (".config", 0o755), (".config/settings", 0o644)] {
            let metadata = fs::metadata(home.join(name)).unwrap();
            assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o777), (1001, 1001, mode), "{name}");
        }
    }
}

#[test]
fn rejected_user_writes_nothing() {
    let root = fixture();
    let before = inodes(root.path());
    let toml = format!("{ALICE}[[user]]\nname = \"root\"\nuid = 1002\n");
    assert!(matches!(install(root.path(), &toml), Err(AccountError::Refused(_))));
    assert_eq!(inodes(root.path()), before);
    assert!(!root.path().join("home").exists());
}

#[test]
fn staging_failure_leaves_all_files_unchanged() {
    let root = fixture();
    let before = passwd(root.path());
    fs::create_dir(root.path().join("etc/shadow.new")).unwrap();
    assert!(matches!(install(root.path(), ALICE), Err(AccountError::Install(_))));
    assert_eq!(passwd(root.path()), before);
    assert!(!root.path().join("etc/passwd.new").exists());
}

#[test]
fn leaves_linked_passwd_unchanged_and_reports_it() {
    let root = fixture();
    let passwd_file = root.path().join("etc/passwd");
    fs::rename(&passwd_file, root.path().join("hosts-passwd")).unwrap();
    symlink("../hosts-passwd", &passwd_file).unwrap();
    let findings = install(root.path(), ALICE).unwrap();
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].severity, Severity::Warning);
    let what = "/etc/passwd is a link: the existing accounts are used unchanged, and these are missing or different: alice (uid 1001)";
    assert_eq!(findings[0].what, what);
    assert_eq!(passwd(root.path()), PASSWD);
    assert!(!root.path().join("home").exists());

    fs::write(root.path().join("hosts-passwd"), "alice:x:1001:1001::/home/alice:/bin/sh\n").unwrap();
    let findings = install(root.path(), ALICE).unwrap();
    assert_eq!(findings[0].severity, Severity::Info);
}

#[test]
fn keeps_existing_home() {
    let root = fixture();
    let home = root.path().join("home/alice");
    fs::create_dir_all(&home).unwrap();
    fs::set_permissions(&home, fs::Permissions::from_mode(0o755)).unwrap();
    let owner = geteuid().as_raw();
    // Differs from the user ID of this process, which may be any.
    let uid = owner + 1001;
    let findings = install(root.path(), &format!("[[user]]\nname = \"alice\"\nuid = {uid}\n")).unwrap();
    assert!(findings[0].what.contains(&format!("belongs to uid {owner}, but alice has uid {uid}")), "{findings:?}");
    assert_eq!(fs::metadata(&home).unwrap().permissions().mode() & 0o7777, 0o755);
    assert_eq!(fs::metadata(&home).unwrap().uid(), owner);

    // A link at the path of a home is not followed.
    let toml = "[[user]]\nname = \"bob\"\nuid = 1002\n";
    symlink(root.path().join("elsewhere"), root.path().join("home/bob")).unwrap();
    let findings = install(root.path(), toml).unwrap();
    assert!(findings[0].what.contains("cannot create the home directory /home/bob"), "{findings:?}");
    assert!(!root.path().join("elsewhere").exists());
}

#[test]
fn creates_at_most_1000_homes_per_start_and_limits_findings() {
    let root = fixture();
    let host = root.path().join("host");
    fs::create_dir(&host).unwrap();
    let passwd: String = (2000..4000).map(|id| format!("u{id}:x:{id}:{id}::/home/u{id}:/bin/sh\n")).collect();
    fs::write(host.join("passwd"), passwd).unwrap();
    fs::write(host.join("group"), "root:x:0:\n").unwrap();
    let mut config = Config::parse("[users]\nfrom = \"/host\"", Path::new("slurminit.toml")).unwrap();
    let findings = add_host_accounts(&mut config, root.path()).unwrap();
    assert_eq!((config.users.len(), findings.len()), (2000, 0), "{findings:?}");
    let findings = install_accounts(&config, root.path()).unwrap();
    assert!((1..=4).contains(&findings.len()), "{findings:?}");
    if geteuid().is_root() {
        assert_eq!(fs::read_dir(root.path().join("home")).unwrap().count(), 1000);
        install_accounts(&config, root.path()).unwrap();
        assert_eq!(install_accounts(&config, root.path()).unwrap(), []);
    }
}

/// A shell of the host may be missing in the container.
#[test]
fn host_user_gets_own_shell_only_if_it_is_program() {
    let root = fixture();
    let host = root.path().join("host");
    let bin = root.path().join("bin");
    for directory in [&host, &bin, &bin.join("directory")] {
        fs::create_dir(directory).unwrap();
    }
    for (name, mode) in [("zsh", 0o755), ("text", 0o644)] {
        fs::write(bin.join(name), "").unwrap();
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let shells = ["zsh", "text", "directory", "missing"];
    let line = |(id, shell): (usize, &&str)| format!("u{id}:x:{id}:{id}::/home/u{id}:/bin/{shell}\n");
    fs::write(host.join("passwd"), (2000..).zip(&shells).map(line).collect::<String>()).unwrap();
    fs::write(host.join("group"), "root:x:0:\n").unwrap();
    let mut config = Config::parse("[users]\nfrom = \"/host\"", Path::new("slurminit.toml")).unwrap();
    assert_eq!(add_host_accounts(&mut config, root.path()).unwrap(), []);
    let shells: Vec<_> = config.users.iter().map(|user| user.shell.as_deref().unwrap()).collect();
    assert_eq!(shells, ["/bin/zsh", "/bin/sh", "/bin/sh", "/bin/sh"].map(Path::new));
}
