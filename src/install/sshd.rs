//! sshd's files: its host key, its configuration, and the users' public keys.
//!
//! The host key is stored in the state directory, so that it outlives the container, and is never in an image. The users' keys are copied, so that
//! logins trust only keys that were checked: sshd follows links in a directory of keys, and rejects the sticky directories of Kubernetes' secrets.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use super::{InstallError, accounts, atomic, directories, read_login_files};
use config::{AccountName, Config, Paths};
use model::inventory::{Finding, Kind};
use plan::sshd::{SshdInput, sshd_config};
use sys::tool::{self, answer::Answer};
use sys::trusted_path::{self, Dir, is_ours};
use sys::under;

/// The directory to which sshd's unprivileged process changes its root (privilege separation).
const PRIVSEP_DIRECTORY: &str = "/run/sshd";
/// The timeout of `ssh -V` and of ssh-keygen.
const KEYGEN_TIMEOUT: Duration = Duration::from_secs(10);
/// The temporary name of a host key while it is generated.
const NEW_KEY: &str = "new_key";
/// The maximum size of a file of public keys, in bytes.
const MAX_KEYS_BYTES: u64 = 256 * 1024;
/// Variables of the image that are also set in SSH sessions, as with `docker exec`.
const IMAGE_VARIABLES: [&str; 2] = ["LD_LIBRARY_PATH", "PATH"];
/// The IDs of system users on Debian.
const SYSTEM_IDS: [std::ops::RangeInclusive<u32>; 2] = [0..=999, 60_001..=65_535];

/// Writes sshd's files if sshd is configured. Returns findings, and whether the users' keys changed.
///
/// # Errors
/// A file or directory cannot be read or written, or the host key cannot be generated.
pub fn install_sshd(config: &Config, root: &Path) -> Result<(Vec<Finding>, bool), InstallError> {
    if !config.runs_sshd() {
        return Ok((Vec::new(), false));
    }
    if !under(root, Path::new(Paths::SSHD)).exists() {
        let (what, cause) = ("SSH logins are not possible: sshd is not in this image", "[login] sets `port`");
        let fix = "use an image built with --target full, or remove `port` from [login]";
        return Ok((vec![Finding::warning(Kind::Settings, what, cause, fix)], false));
    }
    make_directory(root, Path::new(PRIVSEP_DIRECTORY), 0o755)?;
    let mut findings: Vec<Finding> = host_key(config, root)?.into_iter().collect();
    let keys = make_directory(root, &config.paths.ssh_keys(), 0o755)?;
    findings.extend(close_parents(root, &config.paths.ssh_keys())?);
    let (keys_by_user, finding) = collect_keys(config, root)?;
    findings.extend(finding);
    let changed = write_keys(&keys, &keys_by_user).map_err(|error| InstallError::write(keys.path(), error))?;
    let files = read_login_files(root);
    let variable = |name: &str| Some((name.to_owned(), std::env::var(name).ok()?));
    let mut variables: BTreeMap<String, String> = IMAGE_VARIABLES.into_iter().filter_map(variable).collect();
    variables.extend(files.common().into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())));
    let version = match tool::ask("ssh", &["-V"], KEYGEN_TIMEOUT) {
        Answer::Ended { stderr, .. } => stderr,
        Answer::Silent | Answer::Missing => String::new(),
    };
    let path = config.paths.sshd_config();
    let text = sshd_config(config, &SshdInput { version: &version, variables });
    let ssh = trusted_path::open(root, path.parent().unwrap_or(Path::new("/")))?;
    atomic::replace(&ssh, "sshd_config", text.as_bytes(), 0o644).map_err(|error| InstallError::write(&path, error))?;
    Ok((findings, changed))
}

/// Opens a directory that only root can write to, and creates it if it is missing.
fn make_directory(root: &Path, path: &Path, mode: u32) -> Result<Dir, InstallError> {
    let (mut directory, _) = trusted_path::make(root, path, &mut Vec::new())?;
    directories::settle(&mut directory, directories::ROOT, mode)?;
    Ok(directory)
}

/// Makes the directories above the keys writable only by root: sshd rejects a key if other users can write to such a directory, even if it has the
/// sticky bit, as a Kubernetes volume in memory does.
fn close_parents(root: &Path, keys: &Path) -> Result<Vec<Finding>, InstallError> {
    let mut repaired = Vec::new();
    for parent in keys.ancestors().skip(1) {
        let mut directory = trusted_path::open(root, parent)?;
        directory.restrict_to_root(&mut repaired).map_err(|error| InstallError::take(parent, error))?;
    }
    Ok(repaired.iter().map(directories::finding).collect())
}

/// Creates the host key if it is missing. Replaces one that is empty, is not a regular file, has several hard links, or that others could have
/// read or written.
fn host_key(config: &Config, root: &Path) -> Result<Option<Finding>, InstallError> {
    let path = config.paths.ssh_host_key();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let parent = make_directory(root, path.parent().unwrap_or(Path::new("/")), 0o700)?;
    let why = match parent.metadata_of(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(InstallError::Read { path, error }),
        Ok(key)
            if key.is_file() && is_ours(key.uid()) && key.mode() & 0o077 == 0 && key.nlink() == 1 && key.len() > 0 =>
        {
            return Ok(None);
        }
        Ok(key) => Some(format!("uid {}, mode {:o}, {} bytes", key.uid(), key.mode() & 0o7777, key.len())),
    };
    let fault = |error| InstallError::write(&path, error);
    make_host_key(&parent, &under(root, parent.path()), name).map_err(fault)?;
    Ok(why.map(|why| {
        let what = format!(
            "replaced the host key {}: it was empty, not a regular file or hard-linked, or others could have read or written it ({why})",
            path.display()
        );
        let cause = "anyone with the host key can impersonate this machine to the users' ssh";
        Finding::warning(Kind::Files, what, cause, "tell the users to remove the old key: ssh-keygen -R HOST (with a port other than 22: ssh-keygen -R '[HOST]:PORT')")
    }))
}

fn make_host_key(parent: &Dir, path: &Path, name: &str) -> io::Result<()> {
    let public = format!("{NEW_KEY}.pub");
    for stale in [NEW_KEY, &public] {
        parent.remove(stale)?;
    }
    let file = path.join(NEW_KEY);
    let file = file.to_str().ok_or(ErrorKind::InvalidInput)?;
    match tool::ask("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-C", "", "-f", file], KEYGEN_TIMEOUT) {
        Answer::Ended { succeeded: true, .. } => {}
        answer => return Err(io::Error::other(answer.output_of("ssh-keygen").err().unwrap_or_default())),
    }
    parent.rename(&public, &format!("{name}.pub"))?;
    parent.rename(NEW_KEY, name)?;
    // Synced, because a different key at the next start would make each user's ssh refuse to connect.
    atomic::sync(parent, name)
}

/// The text of authorized_keys by user, and a finding about rejected keys.
fn collect_keys(config: &Config, root: &Path) -> Result<(BTreeMap<String, String>, Option<Finding>), InstallError> {
    let mut keys_by_user: BTreeMap<String, String> = BTreeMap::new();
    for user in &config.users {
        let text = keys_by_user.entry(user.name.to_string()).or_default();
        user.ssh_keys.iter().for_each(|key| *text += &format!("{key}\n"));
    }
    let Some(from) = &config.login.keys else { return Ok((keys_by_user, None)) };
    let passwd = accounts::read(root, false)?.passwd;
    let mut rejected = Vec::new();
    match key_file_names(root, from) {
        Err(why) => {
            let what = format!("the public keys in {} are not used: {why}", from.display());
            let cause = "the directory must exist, and only root may be able to change it";
            let fix = "correct `keys` in [login], or mount the directory read-only, then run `slurminit reload`";
            return Ok((keys_by_user, Some(Finding::warning(Kind::Files, what, cause, fix))));
        }
        Ok(names) => {
            for name in names {
                match read_user_keys(root, from, &name, config, &passwd) {
                    Ok(text) => *keys_by_user.entry(name).or_default() += &text,
                    Err(why) => rejected.push(why),
                }
            }
        }
    }
    let finding = (!rejected.is_empty()).then(|| {
        let what = format!("public keys are not used: {}", rejected.join("; "));
        let cause = "a key file must be named after an ordinary user, must not be too long, and may be writable only by root and this user";
        let fix = format!("chown -R root:root {0}; chmod -R go-w {0}", from.display());
        let fix =
            format!("correct or delete these files (for owner and mode: mount them read-only, or run `{fix}`), then run `slurminit reload`");
        Finding::warning(Kind::Files, what, cause, fix)
    });
    Ok((keys_by_user, finding))
}

/// The sorted names of the files in the directory of keys. Names that begin with a dot are skipped: Kubernetes adds such directories.
fn key_file_names(root: &Path, from: &Path) -> Result<Vec<String>, String> {
    let names = trusted_path::open(root, from)
        .map_err(|error| error.reason())
        .and_then(|directory| directory.names().map_err(|error| format!("{}: {error}", from.display())))?;
    let mut names: Vec<String> = names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    Ok(names)
}

fn read_user_keys(root: &Path, from: &Path, name: &str, config: &Config, passwd: &str) -> Result<String, String> {
    let path = from.join(name);
    let rejected = |why: String| Err(format!("{}: {why}", path.display()));
    if let Err(why) = AccountName::try_from(name.to_owned()) {
        return rejected(why);
    }
    let configured = config.users.iter().find(|user| user.name.as_str() == name).map(|user| user.uid);
    let uid = configured.or_else(|| {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
        line.split(':').nth(2)?.parse().ok()
    });
    if configured.is_none() && uid.is_some_and(|uid| SYSTEM_IDS.iter().any(|ids| ids.contains(&uid))) {
        return rejected("a system user cannot log in".to_owned());
    }
    let file = trusted_path::open_file(root, &path).map_err(|error| error.reason())?;
    let unreadable = |error: io::Error| format!("{}: {error}", path.display());
    if let Some(why) = trusted_path::changeable_by_others(&file, uid).map_err(unreadable)? {
        return rejected(why);
    }
    if file.metadata().map_err(unreadable)?.len() > MAX_KEYS_BYTES {
        return rejected(format!("longer than {MAX_KEYS_BYTES} bytes"));
    }
    let bytes = trusted_path::read_whole(&file).map_err(unreadable)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned() + "\n")
}

/// Writes the files that differ, and removes those of users without keys. Returns whether anything changed.
fn write_keys(directory: &Dir, keys_by_user: &BTreeMap<String, String>) -> io::Result<bool> {
    let mut changed = false;
    let has_keys = |name: &str| keys_by_user.get(name).is_some_and(|text| !text.trim().is_empty());
    for name in directory.names()? {
        if !name.to_str().is_some_and(has_keys) {
            directory.remove(&name)?;
            changed = true;
        }
    }
    for (name, text) in keys_by_user.iter().filter(|(name, _)| has_keys(name)) {
        if !directory.read(name).is_ok_and(|old| old == text.as_bytes()) {
            atomic::replace_secret(directory, name, text.as_bytes(), 0o644, None)?;
            changed = true;
        }
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn writes_only_files_that_differ_and_removes_others() {
        let directory = tempfile::tempdir().unwrap();
        let dir = Dir::open_unchecked(directory.path()).unwrap();
        fs::write(directory.path().join("eve"), "old").unwrap();
        let write = |keys: &[(&str, &str)]| {
            let keys = keys.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
            (write_keys(&dir, &keys).unwrap(), names(directory.path()))
        };
        let both = [("alice", "a\n"), ("bob", "b\n"), ("carol", " \n")];
        assert_eq!(write(&both), (true, vec!["alice".to_owned(), "bob".to_owned()]));
        assert!(!write(&both).0);
        assert!(write(&[("alice", "new\n"), ("bob", "b\n")]).0);
        assert_eq!(fs::read_to_string(directory.path().join("alice")).unwrap(), "new\n");
        assert_eq!(write(&[("bob", "b\n")]), (true, vec!["bob".to_owned()]));
    }

    #[test]
    fn uses_keys_of_users_but_not_of_system_users() {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        };
        file(
            "etc/passwd",
            "munge:x:105:105::/:/bin/sh\ncarol:x:1502:1502::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
        );
        file("etc/group", "");
        for name in ["alice", "carol", "munge", "nobody", ".hidden", "two words", "service"] {
            file(&format!("keys/{name}"), &format!("key of {name}"));
        }
        file("keys/carol", &format!("key of carol{}", "\n".repeat(256 * 1024 - 12)));
        file("keys/long", &"x".repeat(256 * 1024 + 1));
        fs::set_permissions(root.path().join("keys"), fs::Permissions::from_mode(0o755)).unwrap();
        let toml = "[login]\nport = 22\nkeys = '/keys'\n[[user]]\nname = 'alice'\nuid = 1501\n[[user]]\nname = 'service'\nuid = 999\n";
        let config = Config::parse(toml, Path::new("slurminit.toml")).unwrap();
        let (keys, finding) = collect_keys(&config, root.path()).unwrap();
        let used: Vec<(&str, &str)> =
            keys.iter().map(|(name, text)| (name.as_str(), text.trim())).filter(|(_, text)| !text.is_empty()).collect();
        let expected = [("alice", "key of alice"), ("carol", "key of carol"), ("service", "key of service")];
        assert_eq!(used, expected, "the operator may configure a user with any ID");
        let what = finding.unwrap().what;
        for rejected in ["munge: a system user", "nobody: a system user", "two words", "long: longer than"] {
            assert!(what.contains(rejected), "{rejected}: {what}");
        }
        assert!(!what.contains("hidden"), "{what}");
        fs::rename(root.path().join("keys"), root.path().join("other")).unwrap();
        let (keys, finding) = collect_keys(&config, root.path()).unwrap();
        assert!(keys.values().all(String::is_empty), "{keys:?}");
        let finding = finding.unwrap();
        assert!(finding.what.contains("in /keys are not used: "), "{}", finding.what);
        assert!(finding.fix.contains("`keys` in [login]"), "{}", finding.fix);
    }

    #[test]
    fn keeps_host_key_that_only_root_could_read() {
        let root = tempfile::tempdir().unwrap();
        let config = Config::parse("[paths]\nstate = '/state'\n", Path::new("slurminit.toml")).unwrap();
        let path = under(root.path(), &config.paths.ssh_host_key());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "key").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(host_key(&config, root.path()).unwrap(), None);
        assert_eq!(fs::read(&path).unwrap(), b"key");
        // Without ssh-keygen the key cannot be replaced, which is an error.
        for damage in [
            |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o640)),
            |path: &Path| fs::write(path, ""),
        ] {
            fs::write(&path, "key").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            damage(&path).unwrap();
            assert!(!matches!(host_key(&config, root.path()), Ok(None)));
        }
    }

    #[test]
    fn closes_directories_above_keys() {
        let root = tempfile::tempdir().unwrap();
        let run = root.path().join("run");
        fs::create_dir_all(run.join("ssh/keys")).unwrap();
        let keys = Path::new("/run/ssh/keys");
        assert_eq!(close_parents(root.path(), keys).unwrap(), []);
        fs::set_permissions(&run, fs::Permissions::from_mode(0o1777)).unwrap();
        let findings = close_parents(root.path(), keys).unwrap();
        assert!(findings.len() == 1 && findings[0].what.contains("/run was writable"), "{findings:?}");
        assert_eq!(fs::metadata(&run).unwrap().mode() & 0o7777, 0o755);
    }
}
