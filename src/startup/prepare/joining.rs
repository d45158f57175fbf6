//! The start of a container that joins by a token: checks the token, and installs its settings.

use std::net::ToSocketAddrs as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::Config;
use config::token::{DIRECTORY, TOKEN_FILE, Token, TokenContents};
use install::{InstallError, MungeKey};
use model::exit_code;
use model::message;
use plan::Refusal;
use sys::report;
use sys::trusted_path;

/// Timeout of `slurmd -V`, in an image that does not record its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);
/// The clock difference that munge tolerates.
const MAX_CLOCK_DIFFERENCE: u64 = 300;

/// A valid token.
#[derive(Debug)]
pub(super) struct Joining(Token);

/// The token that PID 1 saved, if any; an error if it cannot be used here.
pub(super) fn check(config: &Config, root: &Path) -> Result<Option<Joining>, Refusal> {
    let Some(token) = saved_token(root)? else { return Ok(None) };
    let own = probe::slurm::detect(root, VERSION_TIMEOUT).version;
    if let Some(own) = own.map(|version| version.to_string()).filter(|own| *own != token.contents.slurm) {
        return Err(other_version(&own, &token.contents.slurm));
    }
    let [own, mounted] = install::munge_keys(config, root)?;
    for (path, key) in [(&config.paths.munge_key, &own), (&config.paths.munge_secret, &mounted)] {
        if key.as_ref().is_some_and(|key| *key != token.key) {
            return Err(other_key(path));
        }
    }
    // A container that joined before has the key, and may return at any time.
    if own.is_none() {
        check_time(&token.contents, now())?;
    }
    // Of the token's settings, only the controller's name is known to be safe. All other text of the token is
    // untrusted.
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
                "ignoring the files in {directory}: {reason}",
                directory = DIRECTORY,
                reason = untrusted
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

fn other_key(path: &Path) -> Refusal {
    let path = path.display();
    Refusal::new(
        exit_code::CONFIG,
        format!("the munge key {path} differs from the token's key"),
        "the key belongs to another cluster, or the controller has a new key; slurminit does not overwrite existing keys",
        "remove that file, or its volume or secret; or use a token of the cluster that the key belongs to",
    )
}

/// Fails if the token has expired, or if this clock is behind the controller's.
fn check_time(contents: &TokenContents, now: u64) -> Result<(), Refusal> {
    let clocks = "set this machine's clock (chrony, timedatectl set-ntp true)";
    if contents.issued > now.saturating_add(MAX_CLOCK_DIFFERENCE) {
        let behind = span(contents.issued - now);
        return Err(Refusal::new(
            exit_code::CONFIG,
            format!("the token was made {behind} from now, by this machine's clock"),
            "this clock is behind the controller's, and munge accepts a clock difference of at most five minutes",
            clocks,
        ));
    }
    if now > contents.expires {
        let (age, life) = (span(now - contents.expires), span(contents.expires.saturating_sub(contents.issued)));
        return Err(Refusal::new(
            exit_code::CONFIG,
            format!("the token expired {age} ago, by this machine's clock (it was made for {life})"),
            "a new node needs a token that has not expired",
            format!(
                "create a new one: run `slurminit join-command` in the controller's container; if this one is new, {clocks}"
            ),
        ));
    }
    Ok(())
}

/// A duration in its largest unit.
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

    #[test]
    fn token_is_valid_within_lifetime_and_clock_tolerance() {
        let contents = TokenContents {
            controller: "head".to_owned(),
            address: [10, 0, 0, 1].into(),
            pinned: true,
            slurm: "24.11".to_owned(),
            issued: 100_000,
            expires: 103_600,
            settings: String::new(),
        };
        for good in [99_700, 100_000, 103_600] {
            assert!(check_time(&contents, good).is_ok(), "{good}");
        }
        let error_at = |now| check_time(&contents, now).unwrap_err().finding.to_string();
        assert!(error_at(90_000).contains("made 2 h from now") && error_at(90_000).contains("behind the controller's"));
        assert!(
            error_at(104_000).contains("expired 6 min ago") && error_at(104_000).contains("made for 60 min"),
            "{}",
            error_at(104_000)
        );
    }
}
