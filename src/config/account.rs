//! People: the accounts that are made at the start, so that jobs run under the user ids of the host.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, de};

use super::error::Fault;

/// `[[group]]`: a group of people.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Its name.
    pub name: AccountName,
    /// Its number on the host.
    #[serde(deserialize_with = "id")]
    pub gid: u32,
}

/// `[[user]]`: somebody who runs jobs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// The name to submit as.
    pub name: AccountName,
    /// Their number on the host.
    #[serde(deserialize_with = "id")]
    pub uid: u32,
    /// The number of their own group; `None` is that of the user.
    #[serde(default, deserialize_with = "optional_id")]
    pub gid: Option<u32>,
    /// Other groups: of `[[group]]`, or of the image.
    #[serde(default)]
    pub groups: Vec<AccountName>,
    /// Made where it is missing; `None` is `/home/NAME`.
    #[serde(default, deserialize_with = "optional_home")]
    pub home: Option<PathBuf>,
}

impl User {
    /// The number of their own group.
    pub fn gid(&self) -> u32 {
        self.gid.unwrap_or(self.uid)
    }

    /// Their home directory.
    pub fn home(&self) -> PathBuf {
        self.home.clone().unwrap_or_else(|| PathBuf::from(format!("/home/{}", self.name)))
    }
}

/// The name of a user or group: letters, digits, `_`, `-` and `.`, beginning with a letter or `_`, at most 32. Nothing else
/// can stand in a field of /etc/passwd, or be told from an option or a number on a command line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct AccountName(String);

impl AccountName {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AccountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for AccountName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if starts && text.len() <= 32 && text.chars().all(is_plain) {
            Ok(Self(text))
        } else {
            Err(format!(
                "`{}` is not a name: want a letter or `_`, then letters, digits, `_`, `-` and `.`, at most 32",
                text.escape_default()
            ))
        }
    }
}

/// Reads a user's or group's number: not root's, and none of the two that stand for "no id".
fn id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let id = i64::deserialize(deserializer)?;
    match u32::try_from(id) {
        Ok(id) if ![0, u32::from(u16::MAX), u32::MAX].contains(&id) => Ok(id),
        _ => Err(de::Error::custom(format_args!(
            "want a number from 1 to {}, not {id}; 0 is root, and 65535 stands for no id",
            u32::MAX - 1
        ))),
    }
}

fn optional_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    id(deserializer).map(Some)
}

fn optional_home<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let is_whole = text.starts_with('/') && !text.split('/').any(|part| part == "..");
    if is_whole && !text.chars().any(|c| c == ':' || c.is_control()) {
        Ok(Some(PathBuf::from(text)))
    } else {
        Err(de::Error::custom(format_args!(
            "`{}` is not a home directory: want a path from /, without `..`, `:` and control characters",
            text.escape_default()
        )))
    }
}

/// What holds between them: a name and a number belong to one.
pub(super) fn check_accounts(users: &[User], groups: &[Group]) -> Result<(), Fault> {
    let twice = |table: &'static str, key: &'static str, index: usize, value: &dyn fmt::Display| {
        let what = format!("an earlier [[{table}]] has the {key} {value} already");
        Fault::new(vec![table.into(), index.into(), key.into()], what)
    };
    let (mut names, mut ids) = (BTreeSet::new(), BTreeSet::new());
    for (index, user) in users.iter().enumerate() {
        if !names.insert(&user.name) {
            return Err(twice("user", "name", index, &user.name));
        }
        if !ids.insert(user.uid) {
            return Err(twice("user", "uid", index, &user.uid));
        }
    }
    let (mut names, mut ids) = (BTreeSet::new(), BTreeSet::new());
    for (index, group) in groups.iter().enumerate() {
        if !names.insert(&group.name) {
            return Err(twice("group", "name", index, &group.name));
        }
        if !ids.insert(group.gid) {
            return Err(twice("group", "gid", index, &group.gid));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    #[test]
    fn a_name_number_or_home_cannot_leave_its_field() {
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
