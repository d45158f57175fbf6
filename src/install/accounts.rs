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

/// Why the accounts could not be created. In that case nothing was written.
#[derive(Debug)]
pub enum AccountError {
    /// A value is already in use by another account.
    Refused(Fault),
    /// A file cannot be read or written.
    Install(InstallError),
}

impl From<InstallError> for AccountError {
    fn from(error: InstallError) -> Self {
        Self::Install(error)
    }
}

/// Creates the accounts of `[[user]]` and `[[group]]`, and removes those that an earlier start created and that are no
/// longer configured. If there are neither, this only reads two small files. Returns messages for the operator.
///
/// # Errors
/// A name or ID belongs to another account, or a file cannot be read or written.
pub fn install_accounts(config: &Config, root: &Path) -> Result<Vec<Finding>, AccountError> {
    let has_accounts = !config.users.is_empty() || !config.groups.is_empty();
    let old = read(root, has_accounts)?;
    if !has_accounts && !old.has_managed_accounts() {
        return Ok(Vec::new());
    }
    if let Some(why) = why_not_writable(root) {
        return Ok(unchanged_accounts_finding(&old, &config.users, &why, "start the container without it"));
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
/// The maximum number of home directories that a start creates for host users. On a slow storage driver each takes milliseconds.
const NEW_HOMES: usize = 1000;

/// Creates the home directories. The host may have thousands of users.
fn create_homes(config: &Config, root: &Path) -> Vec<Finding> {
    let (host_users, configured_users): (Vec<&User>, Vec<&User>) = config.users.iter().partition(|user| user.is_hosts);
    let (missing, existing): (Vec<&User>, Vec<&User>) =
        host_users.into_iter().partition(|user| under(root, &user.home()).symlink_metadata().is_err());
    let (new, postponed) = missing.split_at(missing.len().min(NEW_HOMES));
    let mut findings: Vec<Finding> = existing.iter().chain(new).filter_map(|user| create_home(root, user)).collect();
    let unreported = findings.len().saturating_sub(REPORTED_HOMES) + postponed.len();
    findings.truncate(REPORTED_HOMES);
    if unreported > 0 {
        let what = format!("{unreported} more users of the host have no home directory of their own");
        let fix = "mount the host's home directories at the same path, or run `slurminit reload`, which creates up to 1000 missing ones";
        findings.push(Finding::warning(Kind::Files, what, "their jobs that write there will fail", fix));
    }
    findings.into_iter().chain(configured_users.iter().filter_map(|user| create_home(root, user))).collect()
}

/// Whether [`install_accounts`] would refuse the accounts; changes nothing.
///
/// # Errors
/// As for [`install_accounts`].
pub fn check_accounts(config: &Config, root: &Path) -> Result<(), AccountError> {
    if (config.users.is_empty() && config.groups.is_empty()) || why_not_writable(root).is_some() {
        return Ok(());
    }
    let old = AccountFiles { shadow: read_text(root, Path::new(FILES[2]))?, ..read(root, true)? };
    old.with(&config.users, &config.groups).map(drop).map_err(AccountError::Refused)
}

/// The users of an earlier start whose accounts [`install_accounts`] would remove, by uid and name.
///
/// # Errors
/// A file cannot be read.
pub fn removed_users(config: &Config, root: &Path) -> Result<Vec<(u32, String)>, InstallError> {
    if why_not_writable(root).is_some() {
        return Ok(Vec::new());
    }
    Ok(read(root, false)?.removed_users(&config.users))
}

/// Reads /etc/passwd and /etc/group. /etc/shadow is read only if it will be written.
pub(super) fn read(root: &Path, must_exist: bool) -> Result<AccountFiles, InstallError> {
    let read_file = |path| match read_text(root, path)? {
        None if must_exist => Err(InstallError::Read { path: path.to_owned(), error: ErrorKind::NotFound.into() }),
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

/// The reason why the files must not be written: a mounted file or the target of a link may be the host's.
fn why_not_writable(root: &Path) -> Option<String> {
    // Every container has /proc; without it mounts are unknown.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if let Some(path) = host_mount(root, &mounts) {
        return Some(format!("{path} is mounted"));
    }
    let is_link = |path: &&str| under(root, Path::new(path)).is_symlink();
    FILES.into_iter().find(is_link).map(|path| format!("{path} is a link"))
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
        (Severity::Info, what, "nothing to do: the files contain all users of [[user]]".to_owned())
    } else {
        let names = missing.join(", ");
        (
            Severity::Warning,
            format!("the existing accounts are used unchanged, and these are missing: {names}"),
            format!("add the users to the files with the same IDs, or {remedy}"),
        )
    };
    let cause = "account files that do not belong to the container are not changed".to_owned();
    vec![Finding::new(Kind::Files, severity, format!("{why}: {what}"), cause, fix)]
}

/// Creates the home directory if it is missing; an existing one is left alone.
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
            format!("correct the uid of {name} in slurminit.toml, or: chown {uid} {}", path.display()),
        ),
        Err(_) => match make_home(root, &path, user) {
            Ok(()) => return None,
            Err(error) => (
                format!("cannot create the home directory {} of {name}: {error}", path.display()),
                "create the directory, or set `home` of this user".to_owned(),
            ),
        },
    };
    let cause = format!("jobs of {name} that write there will fail");
    Some(Finding::warning(Kind::Files, what, cause, fix))
}

/// Anyone may own the parent directories. An attacker who swaps in another directory can only make root give away an
/// empty directory of root's, with the files of /etc/skel.
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
}
