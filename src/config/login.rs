//! Logins with SSH.

use std::num::NonZeroU16;
use std::path::PathBuf;

use serde::Deserialize;

use model::value;

/// The settings of the table `[login]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Login {
    /// sshd's TCP port; `None` means that no sshd runs.
    pub port: Option<NonZeroU16>,
    /// A directory of files with public keys; each file is named after its user.
    #[serde(deserialize_with = "value::optional_path")]
    pub keys: Option<PathBuf>,
}

/// A public key as in authorized_keys, without options: type, base64, and optionally a comment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct PublicKey(String);

/// The prefixes of the key types (sshd(8), `AUTHORIZED_KEYS FILE FORMAT`).
const TYPES: [&str; 4] = ["ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp", "sk-"];

model::text_type!(PublicKey);

impl TryFrom<String> for PublicKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let mut words = text.split(' ');
        let has_type = words.next().is_some_and(|word| TYPES.iter().any(|start| word.starts_with(start)));
        let is_base64 = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '='));
        let has_key = words.next().is_some_and(|word| word.len() > 16 && is_base64(word));
        match has_type && has_key && !text.chars().any(char::is_control) {
            true => Ok(Self(text)),
            false => {
                Err("not a public key: expected a line of a file such as ~/.ssh/id_ed25519.pub, without options"
                    .to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Config;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcHyF0Yc0rBqJVnVq0S5bV2cJxqQf1c0n1VQ0yq8h9K";

    fn parse_user_with_key(key: &str) -> Result<Config, String> {
        let text = format!("[[user]]\nname = 'alice'\nuid = 1000\nssh_keys = [{key:?}]");
        Config::parse(&text, Path::new("slurminit.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn public_key_is_one_line_without_options() {
        for key in
            [KEY.to_owned(), format!("{KEY} alice@laptop"), KEY.replace("ssh-ed25519", "sk-ssh-ed25519@openssh.com")]
        {
            assert_eq!(parse_user_with_key(&key).unwrap().users[0].ssh_keys[0].as_str(), key);
        }
        for key in [
            "",
            "ssh-ed25519",
            "ssh-ed25519 x",
            "AAAAC3NzaC1lZDI1NTE5AAAAIHcHyF0Yc0rBqJVnVq0S5bV2cJxqQf1c0n1VQ0yq8h9K",
            &format!("{KEY}\n{KEY}"),
            &format!("command=\"id\" {KEY}"),
            &format!("environment=\"LD_PRELOAD=/x\" {KEY}"),
            "-----BEGIN OPENSSH PRIVATE KEY-----",
        ] {
            assert!(parse_user_with_key(key).is_err(), "{key}");
        }
    }
}
