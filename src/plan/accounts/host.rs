//! The ordinary users and groups of the host, from its passwd and group files.
//!
//! The files are untrusted text. An entry that is invalid, or that conflicts with the image, with `[[user]]` or `[[group]]`, or with an earlier
//! entry, is left out with a reason, so that no entry makes a start fail. System users and groups are never copied, because their names and IDs mean
//! something else in the image.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::{AccountFiles, GROUP_MARK, HOSTS_USER_MARK, lines, name};
use config::{AccountName, Config, Group, HostUsers, User};
use model::value;

/// `nobody` and the two values that mean no ID.
const NO_IDS: [u32; 3] = [65_534, 65_535, u32::MAX];
/// The only system group that can be the primary group of ordinary users (SUSE and others), with Debian's ID.
const USERS_GROUP: (&str, u32) = ("users", 100);
/// The field with the ID, in both files.
const ID_FIELD: usize = 2;
/// The maximum length of a reason, in characters.
const MAX_REASON_LENGTH: usize = 160;
/// The maximum number of rejected entries in a message.
const MAX_LISTED: usize = 8;
/// Top-level directories of the image in which no home is created, except in [`VAR_HOME`].
const SYSTEM_DIRECTORIES: [&str; 13] =
    ["bin", "boot", "dev", "etc", "lib", "lib64", "proc", "root", "run", "sbin", "sys", "usr", "var"];
/// The directory of homes on hosts with a read-only root file system.
const VAR_HOME: &str = "/var/home";
/// File names of the host's shells for accounts that must not log in.
const NO_LOGIN_SHELLS: [&str; 2] = ["nologin", "false"];
/// The shell that replaces such a shell if its path is missing from the image.
const NO_LOGIN_SHELL: &str = "/usr/sbin/nologin";

/// The texts of the host's files.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "each is the file of that name")]
pub struct HostFiles {
    pub passwd: String,
    pub group: String,
}

/// The maximum number of rejected entries that are recorded: the files can be long. Further ones are not counted.
const MAX_REASONS: usize = 1000;

/// The accounts from the host's files.
#[derive(Debug, Default)]
pub struct HostAccounts {
    /// The users, none of which conflicts with the image or the configuration.
    pub users: Vec<User>,
    /// The groups, none of which conflicts with the image or the configuration.
    pub groups: Vec<Group>,
    /// The first `MAX_REASONS` entries that were left out.
    pub rejected: Vec<RejectedEntry>,
}

/// An entry that was left out.
#[derive(Debug)]
pub struct RejectedEntry {
    /// `passwd` or `group`.
    pub file: &'static str,
    /// The line number, counted from 1.
    pub line: usize,
    /// The reason.
    pub why: String,
}

impl fmt::Display for RejectedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.why)
    }
}

fn reject(rejected: &mut Vec<RejectedEntry>, file: &'static str, line: usize, why: &str) {
    if rejected.len() < MAX_REASONS {
        rejected.push(RejectedEntry { file, line, why: why.chars().take(MAX_REASON_LENGTH).collect() });
    }
}

/// Lists the first rejected entries for a message. `from` is the directory of their files.
pub fn list_rejected(rejected: &[RejectedEntry], from: &Path) -> String {
    let shown = rejected.iter().take(MAX_LISTED).map(|entry| format!("{}/{entry}", from.display()));
    let more = rejected.len().saturating_sub(MAX_LISTED);
    let more = (more > 0).then(|| format!("and {more} more"));
    shown.chain(more).collect::<Vec<_>>().join("; ")
}

/// Names and IDs that are already in use.
#[derive(Debug, Default)]
struct Taken {
    names: BTreeSet<String>,
    ids: BTreeSet<u32>,
    pairs: BTreeSet<(String, u32)>,
}

impl Taken {
    fn add(&mut self, name: &str, id: u32) {
        self.names.insert(name.to_owned());
        self.ids.insert(id);
        self.pairs.insert((name.to_owned(), id));
    }

    /// Checks whether the name and ID are in use; `None` if exactly this pair exists. `key` is the ID's name in the error.
    ///
    /// # Errors
    /// The name exists with another ID, or the ID with another name.
    fn check(&self, name: &str, id: u32, key: &str) -> Result<Option<()>, String> {
        if self.pairs.contains(&(name.to_owned(), id)) {
            return Ok(None);
        }
        if self.names.contains(name) {
            return Err(format!("the name `{name}` already exists with another {key}"));
        }
        if self.ids.contains(&id) {
            return Err(format!("{key} {id} of `{name}` is already used by another name"));
        }
        Ok(Some(()))
    }
}

impl HostFiles {
    /// The ordinary users and groups. `image` contains the container's own files; `is_program` returns whether a path is a
    /// program in the container.
    pub fn accounts(&self, config: &Config, image: &AccountFiles, is_program: &dyn Fn(&Path) -> bool) -> HostAccounts {
        let settings = &config.host_users;
        let image = image.without_managed(&[]);
        let mut rejected = Vec::new();
        let (groups, gids) = self.groups(config, &image, &mut rejected);
        let mut taken = Taken::default();
        entries(&image.passwd).for_each(|(name, uid)| taken.add(name, uid));
        config.users.iter().for_each(|user| taken.add(user.name.as_str(), user.uid));
        let mut users: Vec<User> = Vec::new();
        for (line, text) in numbered(&self.passwd) {
            let user = ordinary(text, 7, settings).and_then(|fields| {
                let Some(fields) = fields else { return Ok(None) };
                let free = taken.check(fields.name.as_str(), fields.id, "UID")?;
                free.map(|()| user(&fields, settings, &gids, is_program)).transpose()
            });
            match user {
                Ok(Some(user)) => {
                    taken.add(user.name.as_str(), user.uid);
                    users.push(user);
                }
                Ok(None) => {}
                Err(why) => reject(&mut rejected, "passwd", line, &why),
            }
        }
        join_groups(&groups, &mut users);
        HostAccounts { users, groups: groups.into_iter().map(|(group, _)| group).collect(), rejected }
    }

    /// The ordinary groups with their members, and the IDs that a user may have as the primary group.
    fn groups(
        &self,
        config: &Config,
        image: &AccountFiles,
        rejected: &mut Vec<RejectedEntry>,
    ) -> (Vec<(Group, String)>, PrimaryGroups) {
        let mut taken = Taken::default();
        entries(&image.group).for_each(|(name, gid)| taken.add(name, gid));
        config.groups.iter().for_each(|group| taken.add(group.name.as_str(), group.gid));
        // Each configured user gets a group of their own, unless a group has the user's GID.
        config.users.iter().for_each(|user| taken.add(user.name.as_str(), user.gid()));
        let mut gids = PrimaryGroups { ids: config.host_users.ids(), refused: taken.ids.clone() };
        gids.refused.extend(NO_IDS);
        let has_users_group = taken.pairs.contains(&(USERS_GROUP.0.to_owned(), USERS_GROUP.1));
        let (mut groups, mut known) = (Vec::<(Group, String)>::new(), BTreeSet::new());
        for (line, text) in numbered(&self.group) {
            if has_users_group && text.starts_with("users:") && text.split(':').nth(2) == Some("100") {
                gids.refused.remove(&USERS_GROUP.1);
                continue;
            }
            let group = ordinary(text, 4, &config.host_users).and_then(|fields| {
                let Some(fields) = fields else { return Ok(None) };
                let free = taken.check(fields.name.as_str(), fields.id, "GID")?;
                if free.is_none() {
                    gids.refused.remove(&fields.id);
                }
                let group = Group { name: fields.name, gid: fields.id, is_hosts: true };
                Ok(Some((group, fields.fields[3].to_owned())))
            });
            match group {
                Ok(Some((group, members))) => {
                    taken.add(group.name.as_str(), group.gid);
                    if known.insert(group.gid) {
                        groups.push((group, members));
                    }
                }
                Ok(None) => {}
                Err(why) => reject(rejected, "group", line, &why),
            }
        }
        (groups, gids)
    }
}

/// Adds each user to the groups that list the user as a member.
fn join_groups(groups: &[(Group, String)], users: &mut [User]) {
    let index: BTreeMap<String, usize> =
        users.iter().enumerate().map(|(index, user)| (user.name.to_string(), index)).collect();
    for (group, members) in groups {
        for member in members.split(',').filter_map(|member| index.get(member.trim())) {
            let user = &mut users[*member];
            if user.gid() != group.gid && !user.groups.contains(&group.name) {
                user.groups.push(group.name.clone());
            }
        }
    }
}

/// The IDs that a user of the host may have as the primary group.
struct PrimaryGroups {
    ids: RangeInclusive<u32>,
    /// IDs that mean no group, or another group in the image or the configuration.
    refused: BTreeSet<u32>,
}

impl PrimaryGroups {
    fn allow(&self, gid: u32) -> bool {
        (self.ids.contains(&gid) || gid == USERS_GROUP.1) && !self.refused.contains(&gid)
    }
}

/// The fields of a valid entry with an ordinary ID.
struct Fields<'a> {
    name: AccountName,
    id: u32,
    fields: Vec<&'a str>,
}

/// Splits an entry with `count` fields. `None` if the ID is outside the configured range or in [`NO_IDS`], whatever the other fields contain.
fn ordinary<'a>(text: &'a str, count: usize, settings: &HostUsers) -> Result<Option<Fields<'a>>, String> {
    let fields: Vec<&str> = text.split(':').collect();
    if fields.len() != count {
        return Err(format!("expected {count} fields, got {}", fields.len()));
    }
    let id = fields[ID_FIELD];
    let number = number(id).ok_or_else(|| format!("`{}` is not an ID", id.escape_default()))?;
    if !settings.ids().contains(&number) || NO_IDS.contains(&number) {
        return Ok(None);
    }
    let name = AccountName::try_from(fields[0].to_owned())?;
    Ok(Some(Fields { name, id: number, fields }))
}

/// Accepts only digits, because `str::parse` would also accept a sign.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn user(
    fields: &Fields<'_>,
    settings: &HostUsers,
    gids: &PrimaryGroups,
    is_program: &dyn Fn(&Path) -> bool,
) -> Result<User, String> {
    let Fields { name, id, fields } = fields;
    let gid = number(fields[3]).ok_or_else(|| format!("`{}` is not an ID", fields[3].escape_default()))?;
    if !gids.allow(gid) {
        return Err(format!(
            "the primary GID {gid} of `{name}` is not in the range of ordinary groups, or belongs to another group in the container"
        ));
    }
    let home = value::absolute_path(fields[5]).filter(|home| is_home(home));
    let home = home.ok_or_else(|| {
        format!(
            "`{}`, the home of `{name}`, is not an absolute path outside of system directories",
            fields[5].escape_default()
        )
    })?;
    let shell = shell(fields[6], is_program);
    Ok(User {
        name: name.clone(),
        uid: *id,
        gid: Some(gid),
        groups: Vec::new(),
        home: Some(home),
        account: settings.account.clone(),
        ssh_keys: Vec::new(),
        shell: Some(shell),
        is_hosts: true,
    })
}

/// Whether a home directory may be created at this path, in which invalid UTF-8 has become U+FFFD.
fn is_home(path: &Path) -> bool {
    let mut names = path.components().skip(1).map(|name| name.as_os_str().to_str().unwrap_or_default());
    let is_system = names.next().is_none_or(|first| SYSTEM_DIRECTORIES.contains(&first));
    let is_text = path.to_str().is_some_and(|text| !text.contains('\u{fffd}'));
    is_text && (!is_system || path.starts_with(VAR_HOME))
}

/// The user's shell on the host, if the image contains it; otherwise another shell of the image. An account that
/// must not log in on the host must not log in here either.
fn shell(text: &str, is_program: &dyn Fn(&Path) -> bool) -> PathBuf {
    let own = value::absolute_path(text).filter(|path| !text.contains('\u{fffd}') && is_program(path));
    let is_no_login = Path::new(text).file_name().is_some_and(|file| NO_LOGIN_SHELLS.iter().any(|name| file == *name));
    own.unwrap_or_else(|| match is_no_login {
        true => NO_LOGIN_SHELL.into(),
        false => ["/bin/bash", "/bin/sh"]
            .map(PathBuf::from)
            .into_iter()
            .find(|path| is_program(path))
            .unwrap_or("/bin/sh".into()),
    })
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
}

/// Names and IDs in the image's own files.
fn entries(text: &str) -> impl Iterator<Item = (&str, u32)> {
    text.lines().filter_map(|line| Some((name(line), line.split(':').nth(ID_FIELD)?.parse().ok()?)))
}

impl AccountFiles {
    /// The users and groups that an earlier start or reload copied from the host, without those in the configuration.
    pub fn previous_host_accounts(&self, config: &Config) -> HostAccounts {
        let has_field = |line: &str, field, value| line.split(':').nth(field) == Some(value);
        // A user may be in the image's own groups, which have no mark.
        let ours = HostFiles {
            passwd: lines(self.passwd.lines().filter(|line| has_field(line, 4, HOSTS_USER_MARK))),
            group: lines(self.group.lines().filter(|line| !has_field(line, 1, GROUP_MARK))),
        };
        // The shells were checked when the accounts were created.
        HostAccounts { rejected: Vec::new(), ..ours.accounts(config, self, &|_| true) }
    }
}

#[cfg(test)]
mod tests;
