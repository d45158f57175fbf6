//! The start of a container that joins by a token: checks the token, and installs its settings.

use std::net::ToSocketAddrs as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::Config;
use config::token::{DIRECTORY, TOKEN_FILE, Token, TokenContents};
use install::{InstallError, KeySource, MungeKey};
use model::exit_code;
use model::message;
use plan::Refusal;
use sys::report;
use sys::trusted_path;

/// Timeout of `slurmd -V`, in an image that does not record its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);
/// The clock difference that munge tolerates, in seconds.
const MAX_CLOCK_DIFFERENCE: u64 = 300;

/// A token that passed [`check`].
#[derive(Debug)]
pub(super) struct Joining(Token);

/// The token that PID 1 saved, if any; an error if it cannot be used here. Also makes the controller's name resolvable.
pub(super) fn check(config: &Config, root: &Path) -> Result<Option<Joining>, Refusal> {
    let Some(token) = saved_token(root)? else { return Ok(None) };
    let own = probe::slurm::detect(root, VERSION_TIMEOUT).version;
    if let Some(own) = own.map(|version| version.to_string()).filter(|own| *own != token.contents.slurm) {
        return Err(other_version(&own, &token.contents.slurm));
    }
    let (own, operators) = install::munge_keys(config, root)?;
    if own.as_ref().is_some_and(|key| *key != token.key) {
        return Err(other_key(&config.paths.munge_key));
    }
    match operators {
        Some((key, KeySource::Variable)) if key != token.key => return Err(other_key_in_variable()),
        Some((key, _)) if key != token.key => return Err(other_key(&config.paths.munge_secret)),
        _ => {}
    }
    // A container that joined before has the key, and may return at any time, even with an expired token.
    if own.is_none() {
        check_time(&token.contents, now())?;
    }
    // The controller's name in the configuration was validated when it was parsed. The name in the token's contents was not.
    if let Some(controller) = &config.slurm.controller {
        name_controller(controller.as_str(), &token.contents, root, config.slurm.controller_port);
    }
    Ok(Some(Joining(token)))
}

impl Joining {
    /// Installs the key, and deletes the token.
    pub(super) fn install(&self, config: &Config, root: &Path) -> Result<MungeKey, InstallError> {
        let key = install::install_token_key(config, root, &self.0.key)?;
        let removed = trusted_path::open(root, Path::new(DIRECTORY)).map_err(std::io::Error::from);
        if let Err(error) = removed.and_then(|directory| directory.remove(TOKEN_FILE)) {
            report::warn(message!(
                "token-not-deleted",
                "cannot delete the token {file} (readable only by root): {error}",
                file = format!("{DIRECTORY}/{TOKEN_FILE}"),
                error
            ));
        }
        Ok(key)
    }
}

fn saved_token(root: &Path) -> Result<Option<Token>, Refusal> {
    let path = Path::new(DIRECTORY).join(TOKEN_FILE);
    let fix = "create a new one: run `slurminit join-command` in the controller's container";
    let unreadable = |why: String| Refusal::new(exit_code::CONFIG, "cannot read the token", why, fix);
    let file = match trusted_path::open_file(root, &path) {
        Ok(file) => file,
        Err(untrusted) if untrusted.is_missing() => return Ok(None),
        // PID 1 saves its token where no other user can write. A file of another user must not prevent the start.
        Err(untrusted) if !matches!(untrusted, trusted_path::UntrustedPath::Io { .. }) => {
            report::warn(message!(
                "token-ignored",
                "ignoring the token in {directory}: {reason}",
                directory = DIRECTORY,
                reason = untrusted.reason()
            ));
            return Ok(None);
        }
        Err(untrusted) => return Err(unreadable(untrusted.to_string())),
    };
    let bytes = trusted_path::read_whole(&file).map_err(|error| unreadable(error.to_string()))?;
    let token = Token::decode(&String::from_utf8_lossy(&bytes)).map_err(|error| unreadable(error.to_string()))?;
    Ok(Some(token))
}

fn other_version(own_version: &str, controllers: &str) -> Refusal {
    Refusal::new(
        exit_code::CONFIG,
        format!("this container has Slurm {own_version}, but the controller has Slurm {controllers}"),
        "the images differ, and their versions of slurm.conf may be incompatible",
        "use the controller's image here: docker save on its host, docker load on this one, or build both from one version",
    )
}

/// The causes of a key that differs from the token's.
const OTHER_KEY: &str =
    "the key belongs to another cluster, or the controller has a new key; slurminit does not overwrite existing keys";

fn other_key_in_variable() -> Refusal {
    Refusal::new(
        exit_code::CONFIG,
        "the munge key in SLURMINIT_MUNGE_KEY differs from the token's key",
        OTHER_KEY,
        "remove that variable; or use a token of the cluster that the key belongs to",
    )
}

fn other_key(path: &Path) -> Refusal {
    let path = path.display();
    Refusal::new(
        exit_code::CONFIG,
        format!("the munge key {path} differs from the token's key"),
        OTHER_KEY,
        "remove that file, or its volume or secret; or use a token of the cluster that the key belongs to",
    )
}

/// Fails if the token has expired, or if this clock is more than [`MAX_CLOCK_DIFFERENCE`] behind the controller's.
fn check_time(contents: &TokenContents, now: u64) -> Result<(), Refusal> {
    let clocks = "set this machine's clock (chrony, timedatectl set-ntp true)";
    if contents.issued > now.saturating_add(MAX_CLOCK_DIFFERENCE) {
        let behind = span(contents.issued - now);
        return Err(Refusal::new(
            exit_code::CONFIG,
            format!("the token was created {behind} in the future, according to this machine's clock"),
            "this clock is behind the controller's, and munge accepts a clock difference of at most five minutes",
            clocks,
        ));
    }
    if now > contents.expires {
        let (age, life) = (span(now - contents.expires), span(contents.expires.saturating_sub(contents.issued)));
        return Err(Refusal::new(
            exit_code::CONFIG,
            format!("the token expired {age} ago, according to this machine's clock (it was valid for {life})"),
            "a new node needs a token that has not expired",
            format!(
                "create a new one: run `slurminit join-command` in the controller's container; if this one is new, {clocks}"
            ),
        ));
    }
    Ok(())
}

/// A duration for a message, such as `90 s`, `5 min` or `3 days`.
fn span(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Lets this container resolve the controller's name.
fn name_controller(controller: &str, contents: &TokenContents, root: &Path, port: u16) {
    let TokenContents { address, pinned, .. } = contents;
    if !pinned && (controller, port).to_socket_addrs().is_ok_and(|mut found| found.next().is_some()) {
        return;
    }
    match install::install_address(root, controller, &address.to_string()) {
        Ok(true) => report::info(message!(
            "controller-name-added",
            "added controller {controller} to /etc/hosts with the address from the token ({address})",
            controller,
            address
        )),
        Ok(false) => {}
        Err(error) => report::warn(message!(
            "controller-name-not-added",
            "cannot add the controller's name to /etc/hosts ({error}); start with --add-host {controller}:{address}",
            error,
            controller,
            address
        )),
    }
}

#[expect(clippy::disallowed_methods, reason = "a token expires by the wall clock")]
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    fn contents(issued: u64, expires: u64) -> TokenContents {
        TokenContents {
            controller: "head".to_owned(),
            address: [10, 0, 0, 1].into(),
            pinned: true,
            slurm: "24.11".to_owned(),
            issued,
            expires,
            settings: String::new(),
        }
    }

    #[test]
    fn token_is_valid_within_lifetime_and_clock_tolerance() {
        let contents = contents(100_000, 103_600);
        for good in [99_700, 100_000, 103_600] {
            assert!(check_time(&contents, good).is_ok(), "{good}");
        }
        let error_at = |now| check_time(&contents, now).unwrap_err().finding.to_string();
        assert!(
            error_at(90_000).contains("created 2 h in the future")
                && error_at(90_000).contains("behind the controller's")
        );
        assert!(
            error_at(104_000).contains("expired 6 min ago") && error_at(104_000).contains("valid for 60 min"),
            "{}",
            error_at(104_000)
        );
    }

    /// A root directory with Slurm 24.11 and a saved token, and the token's munge key.
    fn root_with_token(change: impl Fn(&mut TokenContents)) -> (tempfile::TempDir, Vec<u8>) {
        let root = tempfile::tempdir().unwrap();
        let mut contents = contents(now() - 1000, now() + 1000);
        change(&mut contents);
        let token = Token { contents, key: vec![7; 64] };
        for (path, text) in [
            ("usr/share/slurminit/slurm-version", "slurm 24.11.5\n"),
            ("etc/hosts", "127.0.0.1 localhost\n"),
            ("run/slurminit.join/token", &token.encode()),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).and_then(|()| fs::write(path, text)).unwrap();
        }
        (root, token.key)
    }

    fn config(controller: &str) -> Config {
        let toml =
            format!("role = 'compute'\n[slurm]\ncontroller = '{controller}'\n[daemon.munged]\nuser = 'nobody'\n");
        Config::parse(&toml, Path::new("slurminit.toml")).unwrap()
    }

    #[test]
    fn valid_token_installs_key_and_is_removed() {
        let (root, key) = root_with_token(|_| {});
        let config = config("head");
        let joining = check(&config, root.path()).unwrap().unwrap();
        assert_eq!(joining.install(&config, root.path()).unwrap().source, install::KeySource::Token);
        let installed = root.path().join(config.paths.munge_key.strip_prefix("/").unwrap());
        assert_eq!(fs::read(installed).unwrap(), key);
        assert!(!root.path().join("run/slurminit.join/token").exists());
        assert!(check(&config, root.path()).unwrap().is_none(), "no token");
    }

    #[test]
    fn controller_gets_address_of_token_if_pinned_or_unresolvable() {
        let added = "10.0.0.1\tlocalhost\n127.0.0.1 localhost\n";
        for (pinned, expected) in [(true, added), (false, "127.0.0.1 localhost\n")] {
            let (root, _) = root_with_token(|contents| contents.pinned = pinned);
            assert!(check(&config("localhost"), root.path()).unwrap().is_some());
            assert_eq!(fs::read_to_string(root.path().join("etc/hosts")).unwrap(), expected);
        }
    }

    #[test]
    fn rejects_token_of_other_release_cluster_or_time() {
        let refusal = |root: &tempfile::TempDir| {
            check(&config("head"), root.path()).map(|_| ()).map_err(|refusal| refusal.finding.what)
        };
        let (root, _) = root_with_token(|contents| contents.slurm = "25.05".to_owned());
        let other_release = "this container has Slurm 24.11, but the controller has Slurm 25.05";
        assert_eq!(refusal(&root), Err(other_release.to_owned()));
        let (root, key) = root_with_token(|contents| contents.expires = contents.issued + 1);
        assert!(refusal(&root).unwrap_err().starts_with("the token expired "));
        // A container that joined before.
        let paths = config("head").paths;
        let munge_key = root.path().join(paths.munge_key.strip_prefix("/").unwrap());
        fs::create_dir_all(munge_key.parent().unwrap()).unwrap();
        fs::write(&munge_key, key).unwrap();
        assert_eq!(refusal(&root), Ok(()));
        fs::write(&munge_key, [8; 64]).unwrap();
        let other_key = format!("the munge key {} differs from the token's key", paths.munge_key.display());
        assert_eq!(refusal(&root), Err(other_key));
        let (root, _) = root_with_token(|_| {});
        let given = root.path().join(config::given::DIRECTORY.trim_start_matches('/')).join(config::given::KEY_FILE);
        fs::create_dir_all(given.parent().unwrap()).and_then(|()| fs::write(&given, [8; 64])).unwrap();
        assert!(refusal(&root).unwrap_err().contains("SLURMINIT_MUNGE_KEY"));
    }

    #[test]
    fn token_that_others_could_have_planted_is_ignored() {
        let (root, _) = root_with_token(|_| {});
        let token = root.path().join("run/slurminit.join/token");
        let check = || check(&config("head"), root.path());
        fs::set_permissions(token.parent().unwrap(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(check().unwrap().is_none());
        fs::set_permissions(token.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(&token, "sj1-x").unwrap();
        assert_eq!(check().unwrap_err().finding.what, "cannot read the token");
    }
}
