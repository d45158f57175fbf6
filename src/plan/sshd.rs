//! sshd's configuration: only public keys; no passwords, no root login.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::HEADER;
use config::Config;

/// The first OpenSSH release that can limit the unauthenticated connections of each address.
const WITH_SOURCE_LIMIT: (u32, u32) = (8, 5);
/// The first OpenSSH release with penalties for addresses, which are disabled here. Behind a proxy or NAT (rootless Docker, a node port of
/// Kubernetes, an office) clients share an address, and a single idle connection every 20 s would lock all of them out.
const WITH_PENALTIES: (u32, u32) = (9, 8);

/// The time in which a client must log in, in seconds. There are no passwords to type.
const LOGIN_GRACE_SECONDS: u32 = 30;
/// The maximum number of connections from one address (IPv6: /64 network) that have not logged in yet. sshd needs two processes for each.
pub const MAX_PENDING_PER_SOURCE: u32 = 40;
/// The limits for connections that have not logged in yet, from all addresses together: from the first number on, sshd refuses some new
/// connections, and from the second on, all. From OpenSSH 8.5 on, a single address cannot reach the first limit.
const MAX_PENDING: (u32, u32) = (60, 100);

/// The input of [`sshd_config`] that does not come from slurminit's configuration.
#[derive(Debug, Default)]
pub struct SshdInput<'a> {
    /// The first line of `ssh -V`, such as `OpenSSH_10.0p2 Debian-7, OpenSSL 3.5.1`.
    pub version: &'a str,
    /// The environment variables of login sessions.
    pub variables: BTreeMap<String, String>,
}

/// The text of sshd_config. sshd's default file in /etc/ssh is not used.
pub fn sshd_config(config: &Config, input: &SshdInput<'_>) -> String {
    let path = |path: PathBuf| path.display().to_string();
    let port = config.login.port.map_or(0, std::num::NonZeroU16::get);
    let mut lines = vec![
        HEADER.to_owned(),
        format!("Port {port}"),
        format!("HostKey {}", quoted(&path(config.paths.ssh_host_key()))),
        "AuthenticationMethods publickey".to_owned(),
        "PasswordAuthentication no".to_owned(),
        "KbdInteractiveAuthentication no".to_owned(),
        "PermitEmptyPasswords no".to_owned(),
        "PermitRootLogin no".to_owned(),
        "PermitUserEnvironment no".to_owned(),
        // sshd ignores a key file if other users can write to it or to a directory above it.
        "StrictModes yes".to_owned(),
        // %u: the user's name.
        format!("AuthorizedKeysFile {} .ssh/authorized_keys", quoted(&format!("{}/%u", path(config.paths.ssh_keys())))),
        // PAM's session modules need rights that a container does not have, and no account has a password.
        "UsePAM no".to_owned(),
        "UseDNS no".to_owned(),
        "X11Forwarding no".to_owned(),
        "PermitTunnel no".to_owned(),
        "PrintMotd no".to_owned(),
        "PrintLastLog no".to_owned(),
        "PidFile none".to_owned(),
        "Subsystem sftp internal-sftp".to_owned(),
        format!("LoginGraceTime {LOGIN_GRACE_SECONDS}"),
        format!("MaxStartups {}:30:{}", MAX_PENDING.0, MAX_PENDING.1),
    ];
    let has = |since: (u32, u32)| version(input.version).is_none_or(|version| version >= since);
    if has(WITH_SOURCE_LIMIT) {
        lines.push(format!("PerSourceMaxStartups {MAX_PENDING_PER_SOURCE}"));
        // A client usually has a whole /64 network of IPv6 addresses.
        lines.push("PerSourceNetBlockSize 32:64".to_owned());
    }
    if has(WITH_PENALTIES) {
        lines.push("PerSourcePenalties no".to_owned());
    }
    let variables: Vec<String> = input.variables.iter().filter_map(|(name, value)| variable(name, value)).collect();
    if !variables.is_empty() {
        // sshd uses only the first SetEnv line.
        lines.push(format!("SetEnv {}", variables.join(" ")));
    }
    lines.join("\n") + "\n"
}

fn variable(name: &str, value: &str) -> Option<String> {
    let is_plain = !format!("{name}{value}").chars().any(char::is_control);
    is_plain.then(|| quoted(&format!("{name}={value}")))
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The version in the output of `ssh -V`: (9, 2) for `OpenSSH_9.2p1 Debian-2, ...`.
fn version(text: &str) -> Option<(u32, u32)> {
    let number = text.split_once("OpenSSH_")?.1;
    let (major, rest) = number.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(version: &str, variables: &[(&str, &str)]) -> String {
        let config = Config::parse("[login]\nport = 22", std::path::Path::new("x")).unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        sshd_config(&config, &SshdInput { version, variables })
    }

    #[test]
    fn allows_only_public_keys() {
        insta::assert_snapshot!(text(
            "OpenSSH_10.0p2 Debian-7, OpenSSL 3.5.1",
            &[("PATH", "/opt/a b:/bin"), ("X", "\"\\")]
        ));
    }

    #[test]
    fn omits_options_that_release_lacks() {
        let has = |option: &str, version: &str| text(version, &[]).contains(option);
        for (option, with, without) in [
            (
                "PerSourcePenalties",
                &["OpenSSH_9.8p1, x", "OpenSSH_10.0p2, x"][..],
                &["OpenSSH_9.2p1 Debian-2+deb12u3", "OpenSSH_9.6p1 Ubuntu-3"][..],
            ),
            (
                "PerSourceMaxStartups",
                &["OpenSSH_8.5p1, x", "OpenSSH_9.2p1 Debian-2+deb12u3", ""],
                &["OpenSSH_8.4p1 Debian-5"],
            ),
        ] {
            assert!(with.iter().all(|version| has(option, version)), "{option}");
            assert!(!without.iter().any(|version| has(option, version)), "{option}");
        }
    }

    #[test]
    fn variable_value_cannot_add_line() {
        let text = text("", &[("A", "x\nPermitRootLogin yes"), ("B", "\" PermitRootLogin yes")]);
        assert_eq!(text.lines().filter(|line| line.starts_with("PermitRootLogin")).count(), 1, "{text}");
        assert!(text.contains(r#"SetEnv "B=\" PermitRootLogin yes""#), "{text}");
    }
}
