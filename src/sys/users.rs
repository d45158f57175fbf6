//! Users and groups from /etc/passwd and /etc/group. `slurminit as-user` looks up the users of a directory service.
//!
//! PID 1 does not use NSS: a directory service that does not answer would block PID 1.

use std::path::Path;

use crate::trusted_path;

/// A user in /etc/passwd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// The user ID.
    pub uid: u32,
    /// The ID of the primary group.
    pub gid: u32,
    /// `gid`, and the IDs of the groups in /etc/group that list the user as a member.
    pub groups: Vec<u32>,
    /// The home directory.
    pub home: String,
    /// The login shell.
    pub shell: String,
}

/// The variables that describe the user, which a process of another user must not inherit.
pub const VARIABLES: [&str; 4] = ["HOME", "LOGNAME", "SHELL", "USER"];

impl User {
    /// The values of [`VARIABLES`].
    pub fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let values: [&str; 4] = [&self.home, &self.name, &self.shell, &self.name];
        VARIABLES.into_iter().zip(values)
    }
}

/// The user of this name, if NSS has no source other than /etc/passwd and /etc/group.
pub fn find_if_nss_is_local(name: &str) -> Option<User> {
    local(name).filter(|_| is_nss_local())
}

/// Whether NSS has no source of users and groups other than /etc/passwd and /etc/group. The source `systemd` is disregarded.
pub fn is_nss_local() -> bool {
    read("/etc/nsswitch.conf").lines().all(is_local_source)
}

/// The name of the first account in the text of /etc/passwd whose user can run commands: neither root nor a system account
/// (login.defs(5)). `ubuntu`, the default account of Ubuntu's images, is skipped.
pub fn first_ordinary(passwd: &str) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let &[name, _, uid, _, _, _, shell] = fields.as_slice() else { return None };
        let is_ordinary = uid.parse().is_ok_and(|uid: u32| (1000..=60_000).contains(&uid)) && name != "ubuntu";
        (is_ordinary && !shell.ends_with("/nologin") && !shell.ends_with("/false")).then_some(name)
    })
}

/// The user of this name in /etc/passwd and /etc/group, which are sufficient for the user of a Slurm daemon.
pub fn local(name: &str) -> Option<User> {
    parse(name, &read("/etc/passwd"), &read("/etc/group"))
}

fn read(file: &str) -> String {
    let bytes = trusted_path::read(Path::new(file)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Parses `name:password:uid:gid:comment:home:shell`, and `name:password:gid:member,member` (passwd(5), group(5)).
fn parse(name: &str, passwd: &str, group: &str) -> Option<User> {
    let mut users = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let user = users.find(|fields| fields.len() == 7 && fields[0] == name)?;
    let (uid, gid) = (user[2].parse().ok()?, user[3].parse().ok()?);
    let gid_if_member = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let is_member = fields.len() == 4 && fields[3].split(',').any(|member| member.trim() == name);
        fields.get(2).filter(|_| is_member)?.parse().ok().filter(|other| *other != gid)
    };
    let groups = std::iter::once(gid).chain(group.lines().filter_map(gid_if_member)).collect();
    let text = |at: usize| user[at].to_owned();
    Some(User { name: text(0), uid, gid, groups, home: text(5), shell: text(6) })
}

/// Whether a line of nsswitch.conf(5) names no source of users and groups other than `files`, `compat` and `systemd`.
fn is_local_source(line: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default();
    let Some((database, sources)) = line.split_once(':') else { return true };
    let is_about_users = ["passwd", "group", "initgroups"].contains(&database.trim());
    let is_local = |source: &str| ["files", "compat", "systemd"].contains(&source) || source.starts_with('[');
    !is_about_users || sources.split_ascii_whitespace().all(is_local)
}

/// The name, if known, and the ID for a message: `nobody (uid 65534)`. Uses NSS.
pub fn display_name(uid: u32) -> String {
    match nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)) {
        Ok(Some(user)) => format!("{} (uid {uid})", crate::proc::printable(&user.name)),
        _ => format!("uid {uid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_has_primary_and_supplementary_groups() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nbroken\nalice:x:1000:100:A:/home/alice:/bin/sh\n+::::::\n";
        let group = "root:x:0:\nusers:x:100:alice\nvideo:x:44:bob,alice\nalice:x:7:\nbad:x:y:alice\n";
        let alice = parse("alice", passwd, group).unwrap();
        assert_eq!((alice.uid, alice.gid, alice.groups.as_slice()), (1000, 100, &[100, 44][..]));
        let variables: Vec<_> = alice.variables().collect();
        assert_eq!(variables, [("HOME", "/home/alice"), ("LOGNAME", "alice"), ("SHELL", "/bin/sh"), ("USER", "alice")]);
        assert_eq!(parse("root", passwd, group).unwrap().groups, [0]);
        for unknown in ["bob", "", "broken", "+"] {
            assert_eq!(parse(unknown, passwd, group), None, "{unknown}");
        }
    }

    #[test]
    fn user_of_the_files_is_used_only_if_nss_has_no_other_source() {
        let root = local("root").filter(|_| is_nss_local());
        assert_eq!(find_if_nss_is_local("root"), root);
        assert_eq!(find_if_nss_is_local("no-such-user"), None);
    }

    #[test]
    fn detects_non_local_source_of_users_or_groups() {
        for line in [
            "passwd: files systemd",
            "group:  compat",
            "hosts: files dns",
            "# passwd: ldap",
            "",
            "group: files [NOTFOUND=return]",
        ] {
            assert!(is_local_source(line), "{line}");
        }
        for line in ["passwd: files sss", "group: ldap files # local", "initgroups: winbind"] {
            assert!(!is_local_source(line), "{line}");
        }
    }
}
