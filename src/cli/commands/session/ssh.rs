//! Logins with SSH in a session's job: the client's configuration, and what ssh runs as ProxyCommand.
//!
//! The server is an sshd for one connection, on the standard streams of a step. No port is open. sshd runs as the user, so it can do nothing that the
//! user's job cannot. Only the user can start the step, so the keys add no protection: sshd merely requires them.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use super::client;
use super::job::{Request, Session, StepOptions, directory};
use crate::commands::Configuration;
use sys::tool;
use sys::tool::answer::Answer;

/// The script that runs the server in the step.
const SERVER: &str = include_str!("server.sh");
/// The timeout of ssh-keygen.
const KEYGEN_TIMEOUT: Duration = Duration::from_secs(20);
/// The default name of the session.
const NAME: &str = "ssh";

#[derive(Debug, clap::Args)]
pub(super) struct Config {
    /// The login container as this user reaches it with ssh: alice@cluster.example:2222
    #[arg(long, value_name = "USER@HOST[:PORT]")]
    login: String,
    /// The host name in `~/.ssh/config`: `ssh HOST` connects to the job
    #[arg(long, value_name = "HOST", default_value = "gpu")]
    host: String,
    #[command(flatten)]
    proxy: Proxy,
}

#[derive(Debug, clap::Args)]
pub(super) struct Proxy {
    #[command(flatten)]
    request: Request,
    /// The session's name: connections of one name share one job
    #[arg(long, value_name = "NAME", default_value = NAME)]
    name: String,
    /// How long the job continues after its last connection, in minutes
    #[arg(long, value_name = "MINUTES", default_value = "10")]
    keep: u64,
}

impl Config {
    /// The lines for `~/.ssh/config`.
    pub(super) fn text(&self) -> anyhow::Result<String> {
        let (user, address) = self.login.split_once('@').context("--login must have the form USER@HOST[:PORT]")?;
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => (host, format!(" -p {port}")),
            _ => (address, String::new()),
        };
        let mut options = self.proxy.request.options();
        options.extend([format!("--name={}", self.proxy.name), format!("--keep={}", self.proxy.keep)]);
        // ssh passes the ProxyCommand to the client's shell, and the shell of the login container parses the remote part again.
        let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_=.,:/@+".contains(c));
        for text in options.iter().chain([&self.login, &self.host]) {
            anyhow::ensure!(
                is_plain(text),
                "{text:?} may contain only ASCII letters, digits and - _ = . , : / @ +, because shells interpret other characters"
            );
        }
        Ok(format!(
            "Host {}\n    User {user}\n    HostKeyAlias slurminit-{}-{user}\n    StrictHostKeyChecking accept-new\n    ServerAliveInterval 15\n    \
             ProxyCommand ssh{port} {user}@{host} slurminit session proxy {}\n",
            self.host,
            self.host,
            options.join(" ")
        ))
    }
}

impl Proxy {
    /// Becomes srun, whose standard streams are connected to the server.
    pub(super) fn run(&self, configuration: &Configuration) -> anyhow::Result<()> {
        let Self { request, name, keep } = self;
        let keys = authorized_keys(configuration)?;
        let host_key = host_key()?;
        let mut session = Session::find_or_submit(name, request, Duration::from_secs(keep.saturating_mul(60)))?;
        session.wait_until_running()?;
        let mut step = session.step(&StepOptions { image: request.container.as_deref(), is_unbuffered: true });
        // Slurm stores the environment of a batch job, but not that of a step.
        step.env("SLURMINIT_SSH_HOST_KEY", host_key).env("SLURMINIT_SSH_KEYS", keys);
        let _client = client::attach(&mut step, session.node_address()?, true)?;
        Err(step.args(["sh", "-c", SERVER]).exec()).context("cannot execute srun")
    }
}

/// The public keys that may log in: those of slurminit.toml, and the user's own.
fn authorized_keys(configuration: &Configuration) -> anyhow::Result<String> {
    let config = configuration.load()?;
    let user =
        nix::unistd::User::from_uid(nix::unistd::getuid())?.context("the current user ID has no entry in passwd")?;
    let files = [config.paths.ssh_keys().join(&user.name), user.dir.join(".ssh/authorized_keys")];
    let mut text = String::new();
    for file in files {
        match fs::read_to_string(&file) {
            Ok(keys) => text += &(keys + "\n"),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
        }
    }
    let fix = "add `ssh_keys` to the [[user]] in slurminit.toml, or a key to ~/.ssh/authorized_keys";
    anyhow::ensure!(text.contains(|c: char| c.is_ascii_alphanumeric()), "{} has no public key: {fix}", user.name);
    Ok(text)
}

/// The user's private host key, created if missing. It is the same for all jobs of the user.
fn host_key() -> anyhow::Result<String> {
    let path = directory()?.join("ssh_host_ed25519_key");
    if !path.exists() {
        make_key(&path)?;
    }
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Creates the key. If several connections do that at the same time, the first link wins.
fn make_key(path: &Path) -> anyhow::Result<()> {
    let new = PathBuf::from(format!("{}.{}", path.display(), std::process::id()));
    let file = new.to_str().context("the path of the home directory is not UTF-8")?;
    match tool::ask("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-C", "", "-f", file], KEYGEN_TIMEOUT) {
        Answer::Ended { succeeded: true, .. } => {}
        answer => anyhow::bail!("{}", answer.output_of("ssh-keygen").err().unwrap_or_default()),
    }
    let linked = fs::hard_link(&new, path);
    let _ = fs::remove_file(&new);
    let _ = fs::remove_file(format!("{file}.pub"));
    match linked {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("cannot create {}", path.display()))
        }
        _ => Ok(()),
    }
}
