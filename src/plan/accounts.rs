//! Users' accounts as lines of /etc/passwd, /etc/group and /etc/shadow.
//!
//! Lines added by an earlier start or reload of the same container are recognized by a mark and replaced, so that accounts
//! removed from `[[user]]` disappear. The other accounts are kept; only their memberships can change. A new account is
//! rejected if another entry uses its name or ID with other values.

mod environment;
mod host;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use config::{AccountName, Fault, Group, Step, User};

pub use environment::LoginFiles;
pub use host::{HostAccounts, HostFiles, RejectedEntry, list_rejected};

/// The mark in the comment field of a user that slurminit added.
const USER_MARK: &str = "made by slurminit";
/// The mark of a user that was copied from the host.
const HOSTS_USER_MARK: &str = "made by slurminit from the host's passwd";
/// The mark in the password field of a group that slurminit added, because groups have no comment field. No password
/// hash begins with `!`.
const GROUP_MARK: &str = "!slurminit";
/// The mark of a group that was copied from the host.
const HOSTS_GROUP_MARK: &str = "!slurminit-host";
/// The default shell of new accounts. Every image based on Debian contains it.
const SHELL: &str = "/bin/bash";

/// The text of /etc/passwd, /etc/group and /etc/shadow. Some images have no /etc/shadow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the file of that name")]
pub struct AccountFiles {
    pub passwd: String,
    pub group: String,
    pub shadow: Option<String>,
}

impl AccountFiles {
    /// Whether the files contain users or groups that an earlier start or reload added.
    pub fn has_managed_accounts(&self) -> bool {
        self.passwd.lines().any(is_our_user) || self.group.lines().any(is_our_group)
    }

    /// Removes the users and groups that an earlier start or reload added. Also removes memberships and passwords that the
    /// image contains for names in `wanted` without an account, because a new account must not inherit them.
    fn without_managed(&self, wanted: &[User]) -> Self {
        let (ours, others): (Vec<&str>, Vec<&str>) = self.passwd.lines().partition(|line| is_our_user(line));
        let others: BTreeSet<&str> = others.into_iter().map(name).collect();
        let unknown = wanted.iter().map(|user| user.name.as_str()).filter(|name| !others.contains(name));
        let ours: BTreeSet<&str> = ours.into_iter().map(name).chain(unknown).collect();
        let group_line = |line: &str| match line.rsplit_once(':') {
            Some((rest, members)) if members.split(',').any(|member| ours.contains(member)) => {
                let kept: Vec<&str> = members.split(',').filter(|member| !ours.contains(member)).collect();
                format!("{rest}:{}", kept.join(","))
            }
            _ => line.to_owned(),
        };
        Self {
            passwd: lines(self.passwd.lines().filter(|line| !is_our_user(line))),
            group: lines(self.group.lines().filter(|line| !is_our_group(line)).map(group_line)),
            shadow: self.shadow.as_ref().map(|text| lines(text.lines().filter(|line| !ours.contains(name(line))))),
        }
    }

    /// Adds these users and groups.
    ///
    /// # Errors
    /// The first value that conflicts with an existing user or group, or that names a missing group.
    pub fn with(&self, users: &[User], groups: &[Group]) -> Result<Self, Fault> {
        let base = self.without_managed(users);
        let (rows, mut group) = (Rows::of(&base.passwd), base.groups());
        for (index, wanted) in groups.iter().enumerate() {
            group
                .add(&wanted.name, wanted.gid, wanted.is_hosts)
                .map_err(|(key, what)| Fault::new(vec!["group".into(), index.into(), key.into()], what))?;
        }
        let (mut passwd, mut shadow) = (base.passwd.clone(), base.shadow.clone());
        for (index, user) in users.iter().enumerate() {
            let fault = |rest: Vec<Step>, what| {
                Fault::new([vec!["user".into(), index.into()], rest].into_iter().flatten().collect(), what)
            };
            if !rows.has(user).map_err(|(key, what)| fault(vec![key.into()], what))? {
                let User { name, uid, .. } = user;
                // For a user of the host, the host's files may contain no valid group with this ID. The ID then has no name.
                if !user.is_hosts && group.name_of(user.gid()).is_none() {
                    group.add(name, user.gid(), false).map_err(|(_, what)| {
                        let key = if user.gid.is_some() { "gid" } else { "name" };
                        fault(vec![key.into()], format!("{what}; add a [[group]] with another name and the user's GID"))
                    })?;
                }
                let (gid, home) = (user.gid(), user.home());
                let mark = if user.is_hosts { HOSTS_USER_MARK } else { USER_MARK };
                let shell = user.shell.as_deref().unwrap_or(Path::new(SHELL)).display();
                passwd += &format!("{name}:x:{uid}:{gid}:{mark}:{}:{shell}\n", home.display());
                if let Some(shadow) = &mut shadow {
                    // The `*` matches no password, and the password never expires.
                    *shadow += &format!("{name}:*::0:99999:7:::\n");
                }
            }
            for (place, wanted) in user.groups.iter().enumerate() {
                group.join(wanted, &user.name).map_err(|what| fault(vec!["groups".into(), place.into()], what))?;
            }
        }
        Ok(Self { passwd, group: lines(group.lines.iter().map(|line| line.join(":"))), shadow })
    }

    /// The UID and name of each user that an earlier start or reload added and whose UID no user in `users` has.
    pub fn removed_users(&self, users: &[User]) -> Vec<(u32, String)> {
        let wanted: BTreeSet<u32> = users.iter().map(|user| user.uid).collect();
        let ours = self.passwd.lines().filter(|line| is_our_user(line));
        let entry = |line: &str| Some((line.split(':').nth(2)?.parse().ok()?, name(line).to_owned()));
        ours.filter_map(entry).filter(|(uid, _)| !wanted.contains(uid)).collect()
    }

    /// The users in `users` whose account is missing or different in these files.
    pub fn missing_users<'a>(&self, users: &'a [User]) -> Vec<&'a User> {
        let rows = Rows::of(&self.passwd);
        users.iter().filter(|user| !rows.has(user).unwrap_or(false)).collect()
    }

    fn groups(&self) -> GroupLines {
        let mut groups = GroupLines::default();
        self.group.lines().for_each(|line| groups.push(line.split(':').map(str::to_owned).collect()));
        groups
    }
}

/// The users of /etc/passwd, by name and by ID. If a name or ID occurs twice, the first line applies, as in the C library.
struct Rows<'a> {
    names: BTreeMap<&'a str, Vec<&'a str>>,
    uids: BTreeMap<&'a str, &'a str>,
}

impl<'a> Rows<'a> {
    fn of(passwd: &'a str) -> Self {
        let (mut names, mut uids) = (BTreeMap::new(), BTreeMap::new());
        for row in passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).filter(|row| row.len() == 7) {
            uids.entry(row[2]).or_insert(row[0]);
            names.entry(row[0]).or_insert(row);
        }
        Self { names, uids }
    }

    /// Whether the account exists. If its name or UID exists with other values, returns the configuration key and the conflict.
    fn has(&self, user: &User) -> Result<bool, (&'static str, String)> {
        let (uid, gid) = (user.uid.to_string(), user.gid().to_string());
        if let Some(row) = self.names.get(user.name.as_str()) {
            // `key` locates the error: the GID is the UID if the user has no `gid`.
            let is = |key, what: &str, value: &str| {
                Err((
                    key,
                    format!("the image already has a user `{}` with {what} {}", user.name, value.escape_default()),
                ))
            };
            return match (&row[..], &user.home) {
                (row, _) if row[2] != uid => is("uid", "uid", row[2]),
                (row, _) if row[3] != gid => is(if user.gid.is_some() { "gid" } else { "uid" }, "gid", row[3]),
                (row, Some(home)) if home.to_str() != Some(row[5]) => is("home", "home", row[5]),
                _ => Ok(true),
            };
        }
        match self.uids.get(uid.as_str()) {
            Some(name) => {
                Err(("uid", format!("UID {uid} is already used by user `{}` of the image", name.escape_default())))
            }
            None => Ok(false),
        }
    }
}

/// /etc/group, line by line, with the first line of each name and ID.
#[derive(Default)]
struct GroupLines {
    /// The fields of each line: name, password, ID, members.
    lines: Vec<Vec<String>>,
    names: BTreeMap<String, usize>,
    gids: BTreeMap<String, usize>,
    /// The line and name of each member, as a set, because a group of the host may have thousands of members.
    members: BTreeSet<(usize, String)>,
}

impl GroupLines {
    fn push(&mut self, line: Vec<String>) {
        let place = self.lines.len();
        self.names.entry(line[0].clone()).or_insert(place);
        if let Some(gid) = line.get(2) {
            self.gids.entry(gid.clone()).or_insert(place);
        }
        let members = line.get(3).map(String::as_str).unwrap_or_default().split(',');
        self.members.extend(members.map(|member| (place, member.to_owned())));
        self.lines.push(line);
    }

    fn name_of(&self, gid: u32) -> Option<&str> {
        self.gids.get(&gid.to_string()).map(|place| self.lines[*place][0].as_str())
    }

    /// Adds a group, unless it exists with the same ID.
    fn add(&mut self, name: &AccountName, gid: u32, is_hosts: bool) -> Result<(), (&'static str, String)> {
        if let Some(place) = self.names.get(name.as_str()) {
            let own = self.lines[*place].get(2).map_or("none", String::as_str);
            let what = || format!("the group `{name}` already exists with GID {}", own.escape_default());
            return if own == gid.to_string() { Ok(()) } else { Err(("gid", what())) };
        }
        if let Some(other) = self.name_of(gid) {
            return Err((
                "name",
                format!("GID {gid} already belongs to the group `{}`; use that name", other.escape_default()),
            ));
        }
        let mark = if is_hosts { HOSTS_GROUP_MARK } else { GROUP_MARK };
        self.push([name.as_str(), mark, &gid.to_string(), ""].map(str::to_owned).to_vec());
        Ok(())
    }

    /// Makes `user` a member of `group`.
    fn join(&mut self, group: &AccountName, user: &AccountName) -> Result<(), String> {
        let place = self.names.get(group.as_str()).copied();
        let line = place.and_then(|place| Some((place, self.lines.get_mut(place)?)));
        let Some((place, members)) =
            line.filter(|(_, line)| line.len() == 4).and_then(|(place, line)| Some((place, line.last_mut()?)))
        else {
            return Err(format!("unknown group `{group}`: neither in the image nor a [[group]]"));
        };
        if self.members.insert((place, user.to_string())) {
            if !members.is_empty() {
                members.push(',');
            }
            members.push_str(user.as_str());
        }
        Ok(())
    }
}

fn name(line: &str) -> &str {
    line.split(':').next().unwrap_or_default()
}

fn is_our_user(line: &str) -> bool {
    matches!(line.split(':').nth(4), Some(USER_MARK | HOSTS_USER_MARK))
}

fn is_our_group(line: &str) -> bool {
    matches!(line.split(':').nth(1), Some(GROUP_MARK | HOSTS_GROUP_MARK))
}

fn lines(lines: impl Iterator<Item = impl AsRef<str>>) -> String {
    lines.fold(String::new(), |text, line| text + line.as_ref() + "\n")
}

#[cfg(test)]
mod tests;
