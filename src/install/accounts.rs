//! Writes users' accounts to /etc/passwd, /etc/group and /etc/shadow, and creates their home directories.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{InstallError, atomic, password_lock, read_text};
use config::{Config, Fault, User};
use model::inventory::{Finding, Kind, Severity};
use plan::accounts::AccountFiles;
use sys::proc::parse::Mount;
use sys::trusted_path;
use sys::under;

const FILES: [&str; 3] = ["/etc/group", "/etc/passwd", "/etc/shadow"];

/// Why the accounts could not be created. If they were refused, nothing was written.
#[derive(Debug)]
pub enum AccountError {
    /// A value conflicts with an existing account, or names a missing group.
    Refused(Fault),
    /// A file cannot be read or written.
    Install(InstallError),
}

impl From<InstallError> for AccountError {
    fn from(error: InstallError) -> Self {
        Self::Install(error)
    }
}

/// Creates the accounts of `[[user]]` and `[[group]]` with their home directories, and removes accounts that an earlier start created and that are
/// no longer configured. Without either, this only reads two small files. Returns findings for the operator.
///
/// # Errors
/// A value conflicts with an existing account or names a missing group, or a file cannot be read or written.
pub fn install_accounts(config: &Config, root: &Path) -> Result<Vec<Finding>, AccountError> {
    let has_accounts = !config.users.is_empty() || !config.groups.is_empty();
    let old = read(root, has_accounts)?;
    if !has_accounts && !old.has_managed_accounts() {
        return Ok(Vec::new());
    }
    if let Some((why, remedy)) = why_not_writable(root) {
        return Ok(unchanged_accounts_finding(&old, &config.users, &why, remedy));
    }
    let _lock = password_lock::take(root)?;
    let old = AccountFiles { shadow: read_text(root, Path::new(FILES[2]))?, ..read(root, has_accounts)? };
    let new = old.with(&config.users, &config.groups).map_err(AccountError::Refused)?;
    match write(root, &old, &new) {
        Err((_, error)) if error.kind() == ErrorKind::ReadOnlyFilesystem => {
            let remedy = "start the container without --read-only";
            return Ok(unchanged_accounts_finding(&old, &config.users, "/etc is read-only", remedy));
        }
        Err((path, error)) => return Err(InstallError::write(Path::new(path), error).into()),
        Ok(()) => {}
    }
    Ok(create_homes(config, root))
}

/// The maximum number of host users whose home directories are reported individually.
const REPORTED_HOMES: usize = 3;
/// The maximum number of home directories that a start or reload creates for host users. On a slow storage driver each takes milliseconds.
const NEW_HOMES: usize = 1000;

/// Creates the missing home directories, at most [`NEW_HOMES`] of them for users of the host. Returns the warnings.
fn create_homes(config: &Config, root: &Path) -> Vec<Finding> {
    let (host_users, configured_users): (Vec<&User>, Vec<&User>) = config.users.iter().partition(|user| user.is_hosts);
    let (missing, existing): (Vec<&User>, Vec<&User>) =
        host_users.into_iter().partition(|user| under(root, &user.home()).symlink_metadata().is_err());
    let (new, postponed) = missing.split_at(missing.len().min(NEW_HOMES));
    let mut findings: Vec<Finding> = existing.iter().chain(new).filter_map(|user| create_home(root, user)).collect();
    let unreported = findings.len().saturating_sub(REPORTED_HOMES) + postponed.len();
    findings.truncate(REPORTED_HOMES);
    if unreported > 0 {
        let noun = if findings.is_empty() { "host user" } else { "other host user" };
        let what = format!("{} without a usable home directory", model::printable::count(unreported, noun));
        let fix = "mount the host's home directories at the same path; if any are only missing, `slurminit reload` creates up to 1000 of them";
        findings.push(Finding::warning(
            Kind::Files,
            what,
            "their jobs that write to their home directories will fail",
            fix,
        ));
    }
    findings.into_iter().chain(configured_users.iter().filter_map(|user| create_home(root, user))).collect()
}

/// Checks that [`install_accounts`] would not refuse the accounts; changes nothing.
///
/// # Errors
/// A value conflicts with an existing account or names a missing group, or a file cannot be read.
pub fn check_accounts(config: &Config, root: &Path) -> Result<(), AccountError> {
    if (config.users.is_empty() && config.groups.is_empty()) || why_not_writable(root).is_some() {
        return Ok(());
    }
    let old = AccountFiles { shadow: read_text(root, Path::new(FILES[2]))?, ..read(root, true)? };
    old.with(&config.users, &config.groups).map(drop).map_err(AccountError::Refused)
}

/// The UID and name of each user whose account [`install_accounts`] would remove and whose UID no configured user has.
///
/// # Errors
/// A file cannot be read.
pub fn removed_users(config: &Config, root: &Path) -> Result<Vec<(u32, String)>, InstallError> {
    if why_not_writable(root).is_some() {
        return Ok(Vec::new());
    }
    Ok(read(root, false)?.removed_users(&config.users))
}

/// Reads /etc/passwd and /etc/group, but not /etc/shadow. With `must_exist`, a missing file is an error.
pub(super) fn read(root: &Path, must_exist: bool) -> Result<AccountFiles, InstallError> {
    let read_file = |path| match read_text(root, path)? {
        None if must_exist => Err(InstallError::Missing { path: path.to_owned() }),
        text => Ok(text.unwrap_or_default()),
    };
    Ok(AccountFiles { group: read_file(Path::new(FILES[0]))?, passwd: read_file(Path::new(FILES[1]))?, shadow: None })
}

/// Writes the files that differ: all new versions are on disk before the first file is replaced.
fn write(root: &Path, old: &AccountFiles, new: &AccountFiles) -> Result<(), (&'static str, io::Error)> {
    let empty = String::new();
    let texts = [(&old.group, &new.group), (&old.passwd, &new.passwd)];
    let shadow = (old.shadow.as_ref().unwrap_or(&empty), new.shadow.as_ref().unwrap_or(&empty));
    let changed = FILES.into_iter().zip(texts.into_iter().chain([shadow])).filter(|(_, (old, new))| old != new);
    let etc = trusted_path::open(root, Path::new("/etc")).map_err(|error| ("/etc", error.into()))?;
    let mut staged = Vec::new();
    for (path, (_, text)) in changed {
        let name = path.strip_prefix("/etc/").unwrap_or(path);
        staged.push((path, atomic::stage(&etc, name, text.as_bytes()).map_err(|error| (path, error))?));
    }
    staged.into_iter().try_for_each(|(path, staged)| staged.commit().map_err(|error| (path, error)))
}

/// The reason why the files must not be written, and the remedy: a mounted file or the target of a link may be the host's.
fn why_not_writable(root: &Path) -> Option<(String, &'static str)> {
    // Every container has /proc; without it mounts are unknown.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if let Some(path) = host_mount(root, &mounts) {
        return Some((format!("{path} is mounted"), "start the container without that mount"));
    }
    let is_link = |path: &&str| under(root, Path::new(path)).is_symlink();
    let linked = FILES.into_iter().find(is_link)?;
    Some((format!("{linked} is a link"), "replace the link with a regular file"))
}

/// /etc or the account file that is mounted from the host. A tmpfs with its root at /etc belongs to the container: with
/// a read-only root, users of Kubernetes mount an emptyDir in memory there, with a copy of the image's /etc.
fn host_mount(root: &Path, mountinfo: &str) -> Option<&'static str> {
    let is_own = |mount: &Mount<'_>| mount.kind == "tmpfs" && mount.from == "/";
    let mount =
        |path: &str| Mount::all(mountinfo).filter(|mount| Path::new(&mount.at) == under(root, Path::new(path))).last();
    if mount("/etc").is_some_and(|mount| !is_own(&mount)) {
        return Some("/etc");
    }
    FILES.into_iter().find(|path| mount(path).is_some())
}

fn unchanged_accounts_finding(old: &AccountFiles, users: &[User], why: &str, remedy: &str) -> Vec<Finding> {
    let missing: Vec<String> =
        old.missing_users(users).iter().map(|user| format!("{} (uid {})", user.name, user.uid)).collect();
    let (severity, what, fix) = if missing.is_empty() {
        let what = "the existing accounts are used unchanged".to_owned();
        (Severity::Info, what, "nothing to do: the files contain all configured users".to_owned())
    } else {
        let names = missing.join(", ");
        (
            Severity::Warning,
            format!("the existing accounts are used unchanged, and these are missing or different: {names}"),
            format!("add or correct these users in /etc/passwd (UIDs as given above), or {remedy}"),
        )
    };
    let cause = "account files that are read-only, or may be the host's, are not changed".to_owned();
    vec![Finding::new(Kind::Files, severity, format!("{why}: {what}"), cause, fix)]
}

/// Creates the home directory if it is missing; an existing directory is not changed.
fn create_home(root: &Path, user: &User) -> Option<Finding> {
    let (path, name, uid) = (user.home(), &user.name, user.uid);
    let real = under(root, &path);
    let (what, fix) = match fs::metadata(&real) {
        Ok(found) if found.uid() == uid => return None,
        Ok(found) => (
            format!(
                "the home directory {} of {name} belongs to uid {}, but {name} has uid {uid}",
                path.display(),
                found.uid()
            ),
            format!(
                "correct the uid of {name} in [[user]] or in the host's passwd, or run: chown {uid} {}",
                path.display()
            ),
        ),
        Err(_) => match make_home(root, &path, user) {
            Ok(()) => return None,
            Err(error) => (
                format!("cannot create the home directory {} of {name}: {error}", path.display()),
                "create the directory, or set another home for this user (`home` in [[user]], or the host's passwd)"
                    .to_owned(),
            ),
        },
    };
    let cause = format!("jobs of {name} that write to the home directory will fail");
    Some(Finding::warning(Kind::Files, what, cause, fix))
}

/// Creates a home directory. Anyone may own its parent directories: an attacker who swaps in another directory can only make root give away an
/// empty directory that belongs to root, with the files of /etc/skel.
fn make_home(root: &Path, path: &Path, user: &User) -> io::Result<()> {
    let name = path.file_name().and_then(|name| name.to_str()).ok_or(ErrorKind::InvalidInput)?;
    let parent = trusted_path::make_anywhere(root, path.parent().unwrap_or(Path::new("/")))?;
    let (mut home, is_new) = parent.child(name)?;
    if !is_new || !home.names()?.is_empty() {
        return Err(io::Error::other("another process created a directory of that name at the same time"));
    }
    super::skeleton::copy(root, &home, (user.uid, user.gid()))?;
    // The umask may have cleared bits, and a set-group-ID parent directory may have set one.
    home.set_owner_and_mode(Some((user.uid, user.gid())), 0o700, &mut Vec::new()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str =
        "1 0 0:40 / / ro,relatime - overlay overlay rw\n2 1 0:41 /x/hosts /etc/hosts rw - ext4 /dev/vda rw\n";

    fn host_file(mounts: &str) -> Option<&'static str> {
        host_mount(Path::new("/"), &format!("{ROOT}{mounts}"))
    }

    #[test]
    fn account_files_in_whole_tmpfs_belong_to_container() {
        assert_eq!(host_file(""), None);
        assert_eq!(host_file("3 1 0:50 / /etc rw,relatime - tmpfs tmpfs rw,size=16384k\n"), None);
    }

    #[test]
    fn detects_account_files_mounted_from_host() {
        let mounts = [
            ("/etc", "3 1 0:50 /etc /etc rw - tmpfs tmpfs rw\n"),
            ("/etc", "3 1 8:1 / /etc rw - ext4 /dev/sda1 rw\n"),
            (
                "/etc/passwd",
                "3 1 0:50 / /etc rw - tmpfs tmpfs rw\n4 3 8:1 /etc/passwd /etc/passwd ro - ext4 /dev/sda1 rw\n",
            ),
            ("/etc/shadow", "3 1 0:50 / /etc/shadow rw - tmpfs tmpfs rw\n"),
            ("/etc", "3 1 0:50 / /etc rw - tmpfs tmpfs rw\n4 3 8:1 /etc /etc rw - ext4 /dev/sda1 rw\n"),
        ];
        mounts.iter().for_each(|(path, mounts)| assert_eq!(host_file(mounts), Some(*path), "{mounts}"));
    }

    const ALICE: &str = "[[user]]\nname = 'alice'\nuid = 1001\n";

    /// Account files with a `taken` user and group of this ID.
    fn write_account_files(root: &Path, taken: u32) {
        let etc = root.join("etc");
        fs::create_dir(&etc).unwrap();
        let passwd = format!("root:x:0:0:root:/root:/bin/sh\ntaken:x:{taken}:{taken}::/:/bin/sh\n");
        fs::write(etc.join("passwd"), passwd).unwrap();
        fs::write(etc.join("group"), format!("root:x:0:\ntaken:x:{taken}:\n")).unwrap();
        fs::write(etc.join("shadow"), "root:*:19000:0:99999:7:::\n").unwrap();
    }

    fn config(toml: &str) -> Config {
        Config::parse(toml, Path::new("slurminit.toml")).unwrap()
    }

    #[test]
    fn check_refuses_what_installation_would_refuse() {
        let group = "[[group]]\nname = 'lab'\ngid = 1001\n";
        for toml in [ALICE, group] {
            let [free, taken] = [1002, 1001].map(|id| {
                let root = tempfile::tempdir().unwrap();
                write_account_files(root.path(), id);
                root
            });
            check_accounts(&config(toml), free.path()).unwrap();
            assert!(matches!(check_accounts(&config(toml), taken.path()), Err(AccountError::Refused(_))), "{toml}");
            assert!(!fs::read_to_string(free.path().join("etc/passwd")).unwrap().contains("alice"));

            // Files that would not be written are not checked.
            fs::rename(taken.path().join("etc/shadow"), taken.path().join("shadow")).unwrap();
            std::os::unix::fs::symlink("../shadow", taken.path().join("etc/shadow")).unwrap();
            check_accounts(&config(toml), taken.path()).unwrap();

            fs::write(free.path().join("etc/shadow"), b"\xff").unwrap();
            let error = check_accounts(&config(toml), free.path()).unwrap_err();
            assert!(matches!(error, AccountError::Install(InstallError::NotText { .. })), "{error:?}");
            fs::remove_file(free.path().join("etc/shadow")).unwrap();
            fs::remove_file(free.path().join("etc/passwd")).unwrap();
            let error = check_accounts(&config(toml), free.path()).unwrap_err();
            assert!(matches!(error, AccountError::Install(InstallError::Missing { .. })), "{error:?}");
        }
        check_accounts(&config(""), tempfile::tempdir().unwrap().path()).unwrap();
    }

    #[test]
    fn read_only_root_keeps_accounts_and_names_missing_users() {
        use nix::mount::{MsFlags, mount};

        let root = tempfile::tempdir().unwrap();
        crate::private_mount::tmpfs(root.path(), MsFlags::empty(), "");
        write_account_files(root.path(), 1002);
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(Some("none"), root.path(), Some("tmpfs"), flags, None::<&str>).unwrap();
        let findings = install_accounts(&config(ALICE), root.path()).unwrap();
        let what = "/etc is read-only: the existing accounts are used unchanged, and these are missing or different: alice (uid 1001)";
        assert_eq!(findings.iter().map(|finding| finding.what.as_str()).collect::<Vec<_>>(), [what]);
        assert!(findings[0].fix.ends_with("or start the container without --read-only"), "{}", findings[0].fix);
    }
}
