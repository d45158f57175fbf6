//! Container accounts from the host's files.

use std::path::Path;

use proptest::prelude::*;

use super::*;

fn image() -> AccountFiles {
    AccountFiles {
        passwd: "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/sh\nslurm:x:64030:64030::/:/bin/sh\n\
                 app:x:1000:1000:,,,:/srv/app:/bin/sh\n"
            .to_owned(),
        group: "root:x:0:\nvideo:x:44:app\nusers:x:100:\nslurm:x:64030:\napp:x:1000:\n".to_owned(),
        shadow: Some("root:*:19000:0:99999:7:::\n".to_owned()),
    }
}

fn config(toml: &str) -> Config {
    Config::parse(toml, Path::new("slurminit.toml")).unwrap()
}

fn accounts(passwd: &str, group: &str, toml: &str) -> HostAccounts {
    let files = HostFiles { passwd: passwd.to_owned(), group: group.to_owned() };
    let programs = ["/bin/bash", "/bin/sh", "/usr/sbin/nologin"].map(Path::new);
    files.accounts(&config(toml), &image(), &|path| programs.contains(&path))
}

/// Names of the accepted users, and line numbers of the rejected lines.
fn accepted(passwd: &str, group: &str, toml: &str) -> (Vec<String>, Vec<usize>) {
    let accounts = accounts(passwd, group, toml);
    let rejected = accounts.rejected.iter().filter(|entry| entry.file == "passwd").map(|entry| entry.line);
    (accounts.users.iter().map(|user| user.name.to_string()).collect(), rejected.collect())
}

/// The container's files with these host accounts.
fn installed(before: &AccountFiles, accounts: HostAccounts, toml: &str) -> AccountFiles {
    let mut config = config(toml);
    config.groups.extend(accounts.groups);
    config.users.extend(accounts.users);
    before.with(&config.users, &config.groups).unwrap()
}

const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
    daemon:x:1:1::/usr/sbin:/usr/sbin/nologin\n\
    alice:$6$secret:1001:1001:Al\u{fffd}ce:/home/alice:/usr/bin/fish\n\
    bob:x:1002:100:Bob:/srv/bob:/bin/sh\n\
    robot:x:1003:1003::/srv/robot:/sbin/nologin\n";
const GROUP: &str =
    "root:x:0:\nvideo:x:39:alice\nusers:x:100:\nalice:x:1001:\nrobot:x:1003:\nlab:x:2000:alice,bob,carol\n";

#[test]
fn copies_ordinary_users_without_passwords() {
    let accounts = accounts(PASSWD, GROUP, "");
    assert!(accounts.rejected.is_empty(), "{:?}", accounts.rejected);
    let files = installed(&image(), accounts, "");
    let passwd = files.passwd.strip_prefix(&image().passwd).unwrap();
    let expected = format!(
        "alice:x:1001:1001:{HOSTS_USER_MARK}:/home/alice:/bin/bash\n\
         bob:x:1002:100:{HOSTS_USER_MARK}:/srv/bob:/bin/sh\n\
         robot:x:1003:1003:{HOSTS_USER_MARK}:/srv/robot:/usr/sbin/nologin\n"
    );
    assert_eq!(passwd, expected);
    let group = files.group.strip_prefix(&image().group).unwrap();
    assert_eq!(group, "alice:!slurminit-host:1001:\nrobot:!slurminit-host:1003:\nlab:!slurminit-host:2000:alice,bob\n");
    assert!(!format!("{files:?}").contains("$6$secret"));
    assert!(files.shadow.unwrap().contains("\nalice:*::"));
}

#[test]
fn never_accepts_root_or_system_ids() {
    let passwd = "toor:x:0:0::/home/toor:/bin/sh\nsys:x:999:1001::/home/sys:/bin/sh\nn:x:65534:1001::/home/n:/bin/sh\n\
                  m:x:4294967295:1001::/home/m:/bin/sh\nbig:x:60001:1001::/home/big:/bin/sh\n";
    assert_eq!(accepted(passwd, GROUP, ""), (vec![], vec![]));
    let (names, rejected) = accepted(passwd, GROUP, "[users]\nmax_id = 4000000000");
    assert_eq!((names, rejected), (vec!["big".to_owned()], vec![]));
    // The ID of an image daemon, below a raised limit.
    let slurm = "eve:x:64030:1001::/home/eve:/bin/sh\nslurm:x:1005:1001::/home/s:/bin/sh\n";
    assert_eq!(accepted(slurm, GROUP, "[users]\nmax_id = 100000"), (vec![], vec![1, 2]));
}

#[test]
fn rejects_invalid_lines_with_line_number() {
    let lines = [
        "short:x:1001",
        "long:x:1001:1001::/home/long:/bin/sh:extra",
        "al ice:x:1001:1001::/home/a:/bin/sh",
        "-u:x:1001:1001::/home/a:/bin/sh",
        "../x:x:1001:1001::/home/a:/bin/sh",
        "a\u{fffd}:x:1001:1001::/home/a:/bin/sh",
        "a23456789012345678901234567890123:x:1001:1001::/home/a:/bin/sh",
        "plus:x:+1001:1001::/home/a:/bin/sh",
        "minus:x:-1:1001::/home/a:/bin/sh",
        "huge:x:18446744073709552617:1001::/home/a:/bin/sh",
        "roots:x:1001:0::/home/a:/bin/sh",
        "shadows:x:1001:42::/home/a:/bin/sh",
        "slurms:x:1001:64030::/home/a:/bin/sh",
        "apps:x:1001:1000::/home/a:/bin/sh",
        "home:x:1001:1001::home/a:/bin/sh",
        "dots:x:1001:1001::/home/../etc:/bin/sh",
        "etc:x:1001:1001::/etc/slurm/x:/bin/sh",
        "top:x:1001:1001::/:/bin/sh",
        "none:x:1001:1001:::/bin/sh",
        "bytes:x:1001:1001::/home/\u{fffd}:/bin/sh",
        "+::::::",
        "+@staff",
        "app:x:1001:1001::/home/a:/bin/sh",
        "eve:x:1000:1001::/home/a:/bin/sh",
    ];
    let (names, rejected) = accepted(&lines.join("\n"), GROUP, "");
    assert_eq!(names, [] as [&str; 0]);
    assert_eq!(rejected, (1..=lines.len()).collect::<Vec<_>>());
    let group = "bad name:x:1500:\nshort:x\nvideo:x:1600:alice\nlab:x:1000:alice\nok:x:1700:alice\nok:x:1800:\n";
    let accounts = accounts(PASSWD, group, "");
    assert_eq!(accounts.groups.iter().map(|group| group.gid).collect::<Vec<_>>(), [1700]);
    let lines: Vec<_> =
        accounts.rejected.iter().filter(|entry| entry.file == "group").map(|entry| entry.line).collect();
    assert_eq!(lines, [1, 2, 3, 4, 6]);
}

#[test]
fn rejects_duplicate_names_and_ids() {
    let passwd = "a:x:1001:1001::/home/a:/bin/sh\na:x:1002:1001::/home/a:/bin/sh\nb:x:1001:1001::/home/b:/bin/sh\n";
    assert_eq!(accepted(passwd, GROUP, ""), (vec!["a".to_owned()], vec![2, 3]));
}

#[test]
fn configured_user_overrides_host_user() {
    let toml = "[[user]]\nname = \"alice\"\nuid = 1001\nhome = \"/data/alice\"\n[[user]]\nname = \"eve\"\nuid = 1002";
    assert_eq!(accepted(PASSWD, GROUP, toml), (vec!["robot".to_owned()], vec![4]));
    let files = installed(&image(), accounts(PASSWD, GROUP, toml), toml);
    assert!(files.passwd.contains("\nalice:x:1001:1001:made by slurminit:/data/alice:/bin/bash\n"), "{}", files.passwd);
    // The user's own group would get the GID of a host group.
    let toml = "[[user]]\nname = \"zoe\"\nuid = 2000";
    let accounts = accounts(PASSWD, GROUP, toml);
    assert_eq!(accounts.rejected.iter().map(|entry| (entry.file, entry.line)).collect::<Vec<_>>(), [("group", 6)]);
    assert!(installed(&image(), accounts, toml).group.contains("\nzoe:!slurminit:2000:\n"));
}

#[test]
fn identical_image_user_is_neither_added_nor_rejected() {
    let passwd = "app:x:1000:1000::/home/app:/bin/bash\n";
    assert_eq!(accepted(passwd, "app:x:1000:\n", ""), (vec![], vec![]));
}

#[test]
fn restores_host_accounts_of_previous_start() {
    // The group `app` is the image's own: the primary group of `guest`, with `alice` as a member.
    let passwd = format!("{PASSWD}guest:x:1004:1000::/srv/guest:/bin/sh\n");
    let first = installed(&image(), accounts(&passwd, &format!("{GROUP}app:x:1000:alice\n"), ""), "");
    assert!(first.passwd.contains("\nguest:x:1004:1000:"), "{}", first.passwd);
    let kept = first.previous_host_accounts(&config(""));
    assert_eq!(installed(&first, kept, ""), first);
    // Without the setting, host accounts are removed.
    assert_eq!(first.with(&[], &[]).unwrap(), image());
}

#[test]
fn limits_message_about_many_rejected_lines() {
    let passwd = format!("{}:x:1001:1001::/:\n", "x".repeat(10_000)).repeat(100) + &"x\n".repeat(100_000);
    let rejected = accounts(&passwd, "", "").rejected;
    let text = list_rejected(&rejected, Path::new("/host/etc"));
    assert!(text.len() < 4096 && text.contains("/host/etc/passwd:1: ") && text.ends_with("and 992 more"), "{text}");
    assert!(rejected.iter().all(|entry| entry.why.len() < 1000));
}

proptest! {
    /// Any host files: the result is valid, keeps the image's lines, and has no new system account.
    #[test]
    fn any_host_files_can_be_installed(
        passwd in "([a-d]{1,2}:x:(0|100[0-3]|64030|9):(100[0-3]|100|0|44):[a-z:\u{fffd}]{0,3}:/(home|etc)/[a-c]:(/bin/sh)?\n|[a-z:]{0,9}\n){0,8}",
        group in "((users|video|[a-d]{1,2}):x:(100|100[0-3]|44|0):([a-d],?){0,3}\n|[a-z:]{0,9}\n){0,8}",
        toml in "(\\[\\[user\\]\\]\nname = \"a\"\nuid = 100[12]\n)?",
    ) {
        let accounts = accounts(&passwd, &group, &toml);
        let mut config = config(&toml);
        config.groups.extend(accounts.groups);
        config.users.extend(accounts.users);
        let files = image().with(&config.users, &config.groups);
        prop_assert!(files.is_ok(), "{:?}", files);
        let files = files.unwrap();
        prop_assert!(files.passwd.starts_with(&image().passwd));
        let new = &files.passwd[image().passwd.len()..];
        prop_assert!(new.lines().all(|line| line.split(':').nth(2).unwrap().parse::<u32>().unwrap() >= 1000));
        prop_assert_eq!(files.with(&config.users, &config.groups).unwrap(), files.clone());
        for line in image().group.lines().filter(|line| !line.starts_with("app:")) {
            prop_assert!(files.group.lines().any(|own| own == line), "{} in {}", line, files.group);
        }
    }
}

#[test]
fn handles_twenty_thousand_users() {
    let numbers = 1..=20_000;
    let passwd: String = numbers.clone().map(|n| format!("u{n}:x:{}:100::/home/u{n}:/bin/sh\n", 2000 + n)).collect();
    let members: Vec<String> = numbers.clone().map(|n| format!("u{n}")).collect();
    let groups: String = numbers.map(|n| format!("g{n}:x:{}:\n", 2000 + n)).collect();
    let group = format!("users:x:100:\nall:x:59000:{}\n{groups}", members.join(","));
    let files = installed(&image(), accounts(&passwd, &group, ""), "");
    let again = files.previous_host_accounts(&config(""));
    assert_eq!((again.users.len(), again.groups.len()), (20_000, 20_002));
    assert_eq!(files.removed_users(&again.users), []);
    assert_eq!(files.missing_users(&again.users), [] as [&User; 0]);
}
