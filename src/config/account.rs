//! User accounts created at a start or reload, so that jobs run under the host's user IDs.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, de};

use super::error::Fault;
use super::login::PublicKey;
use model::value;

/// `[[group]]`: a group of users.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The group's name.
    pub name: AccountName,
    /// The group ID on the host.
    #[serde(deserialize_with = "id")]
    pub gid: u32,
    /// Whether the group comes from the host's files (`[users] from`).
    #[serde(skip)]
    pub is_hosts: bool,
}

/// `[[user]]`: a person who runs jobs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// The login name.
    pub name: AccountName,
    /// The user ID on the host.
    #[serde(deserialize_with = "id")]
    pub uid: u32,
    /// The ID of the primary group; `None` means the same number as the user ID.
    #[serde(default, deserialize_with = "optional_id")]
    pub gid: Option<u32>,
    /// Supplementary groups, from `[[group]]` or from the image.
    #[serde(default)]
    pub groups: Vec<AccountName>,
    /// The home directory, created if missing; `None` means `/home/NAME`.
    #[serde(default, deserialize_with = "optional_home")]
    pub home: Option<PathBuf>,
    /// The account in the accounting database to which the user's jobs are charged by default.
    #[serde(default)]
    pub account: Option<AccountName>,
    /// The public keys for SSH.
    #[serde(default)]
    pub ssh_keys: Vec<PublicKey>,
    /// The login shell; `None` means /bin/bash.
    #[serde(skip)]
    pub shell: Option<PathBuf>,
    /// Whether the user comes from the host's files (`[users] from`).
    #[serde(skip)]
    pub is_hosts: bool,
}

impl User {
    /// The ID of the primary group.
    pub fn gid(&self) -> u32 {
        self.gid.unwrap_or(self.uid)
    }

    /// The home directory.
    pub fn home(&self) -> PathBuf {
        self.home.clone().unwrap_or_else(|| PathBuf::from(format!("/home/{}", self.name)))
    }
}

/// The name of a user, a group, or an account or QOS in the accounting database: at most 32 letters, digits, `_`, `-` and `.`, beginning with a
/// letter or `_`. It cannot break a field of /etc/passwd, or be mistaken for an option or a number on a command line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct AccountName(String);

model::text_type!(
    AccountName,
    "`{}` is not a valid name: expected a letter or `_`, then letters, digits, `_`, `-` and `.`, at most 32 characters",
    |text| {
        let has_valid_start = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        has_valid_start && text.len() <= 32 && text.chars().all(is_plain)
    }
);

/// Reads a user or group ID: not root's, and not one of the two values that mean "no ID".
fn id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let id = i64::deserialize(deserializer)?;
    match u32::try_from(id) {
        Ok(id) if ![0, u32::from(u16::MAX), u32::MAX].contains(&id) => Ok(id),
        _ => Err(de::Error::custom(format_args!(
            "expected a number from 1 to {}, got {id}; 0 is root, and 65535 and 4294967295 mean \"no ID\" to the kernel",
            u32::MAX - 1
        ))),
    }
}

fn optional_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    id(deserializer).map(Some)
}

fn optional_home<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    let text = String::deserialize(deserializer)?;
    match value::absolute_path(&text) {
        Some(path) => Ok(Some(path)),
        None => Err(de::Error::custom(format_args!(
            "`{}` is not a home directory: expected an absolute path without `..`, `:` or control characters",
            text.escape_default()
        ))),
    }
}

/// Checks that names and IDs are unique.
pub(super) fn check_accounts(users: &[User], groups: &[Group]) -> Result<(), Fault> {
    check_unique("user", "name", users.iter().map(|user| &user.name))?;
    check_unique("user", "uid", users.iter().map(|user| user.uid))?;
    check_unique("group", "name", groups.iter().map(|group| &group.name))?;
    check_unique("group", "gid", groups.iter().map(|group| group.gid))
}

/// Checks that no two entries of `[[table]]` have the same value of this key.
pub(super) fn check_unique<T: Ord + fmt::Display>(
    table: &'static str,
    key: &'static str,
    values: impl Iterator<Item = T>,
) -> Result<(), Fault> {
    let mut seen = BTreeSet::new();
    for (index, value) in values.enumerate() {
        if seen.contains(&value) {
            let what = format!("duplicate {key} {value} in [[{table}]]");
            return Err(Fault::new(vec![table.into(), index.into(), key.into()], what));
        }
        seen.insert(value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::Config;

    #[test]
    fn rejects_invalid_or_duplicate_users_and_groups() {
        let refusals = [
            "[[user]]\nname = \"alice:x:0:0\"\nuid = 1000",
            "[[user]]\nname = \"alice\\nroot2\"\nuid = 1000",
            "[[user]]\nname = \"-u\"\nuid = 1000",
            "[[user]]\nname = \"1000\"\nuid = 1000",
            "[[user]]\nname = \"\"\nuid = 1000",
            "[[user]]\nname = \"a23456789012345678901234567890123\"\nuid = 1000",
            "[[user]]\nname = \"alice\"",
            "[[user]]\nname = \"alice\"\nuid = 0",
            "[[user]]\nname = \"alice\"\nuid = 65535",
            "[[user]]\nname = \"alice\"\nuid = 4294967295",
            "[[user]]\nname = \"alice\"\nuid = -1",
            "[[user]]\nname = \"alice\"\nuid = 1000\ngid = 0",
            "[[user]]\nname = \"alice\"\nuid = 1000\ngroups = [\"a,b\"]",
            "[[user]]\nname = \"alice\"\nuid = 1000\nhome = \"alice\"",
            "[[user]]\nname = \"alice\"\nuid = 1000\nhome = \"/home/../etc\"",
            "[[user]]\nname = \"alice\"\nuid = 1000\nhome = \"/home/a:/bin/sh\"",
            "[[user]]\nname = \"alice\"\nuid = 1000\nhome = \"/home/a\\nb\"",
            "[[group]]\nname = \"lab\"\ngid = \"2000\"",
            "[[user]]\nname = \"a\"\nuid = 1\n[[user]]\nname = \"a\"\nuid = 2",
            "[[user]]\nname = \"a\"\nuid = 1\n[[user]]\nname = \"b\"\nuid = 1",
            "[[group]]\nname = \"a\"\ngid = 1\n[[group]]\nname = \"a\"\ngid = 2",
            "[[group]]\nname = \"a\"\ngid = 1\n[[group]]\nname = \"b\"\ngid = 1",
        ]
        .map(|text| Config::parse(text, Path::new("slurminit.toml")).unwrap_err().to_string());
        insta::assert_snapshot!(refusals.join("\n"));
    }
}
