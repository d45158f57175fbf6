//! Changes to passwd, group and shadow.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use config::Config;

fn image() -> AccountFiles {
    AccountFiles {
        passwd: "root:x:0:0:root:/root:/bin/bash\nmunge:x:640:640::/nonexistent:/usr/sbin/nologin\n\
                 app:x:1000:1000:,,,:/srv/app:/bin/sh\n"
            .to_owned(),
        group: "root:x:0:\nvideo:x:44:app\nmunge:x:640:\napp:x:1000:\n".to_owned(),
        shadow: Some("root:*:19000:0:99999:7:::\napp:!:19000::::::".to_owned()),
    }
}

const ACCOUNTS: &str = r#"
[[group]]
name = "lab"
gid = 2000
[[user]]
name = "alice"
uid = 1001
groups = ["lab", "video"]
[[user]]
name = "b.ob"
uid = 1002
gid = 2000
home = "/data/bob"
groups = ["video"]
"#;

fn config(toml: &str) -> Config {
    Config::parse(toml, Path::new("/config/slurminit.toml")).unwrap()
}

fn with(files: &AccountFiles, toml: &str) -> AccountFiles {
    let config = config(toml);
    files.with(&config.users, &config.groups).unwrap()
}

fn refusal(toml: &str) -> String {
    let config = config(toml);
    let fault = image().with(&config.users, &config.groups).unwrap_err();
    fault.at(toml, Path::new("/config/slurminit.toml")).to_string()
}

#[test]
fn adds_lines_for_configured_accounts() {
    let updated = with(&image(), ACCOUNTS);
    insta::assert_snapshot!(format!("{}--\n{}--\n{}", updated.passwd, updated.group, updated.shadow.unwrap()));
}

#[test]
fn second_start_is_idempotent_and_removal_restores_image() {
    let updated = with(&image(), ACCOUNTS);
    assert!(updated.has_managed_accounts() && !image().has_managed_accounts());
    assert_eq!(with(&updated, ACCOUNTS), updated);
    let changed = ACCOUNTS.replace("1001", "3001").replace(", \"video\"", "");
    assert_eq!(with(&updated, &changed), with(&image(), &changed));
    let mut plain = image();
    plain.shadow = plain.shadow.map(|text| text + "\n");
    assert_eq!(with(&updated, ""), plain);
}

#[test]
fn accepts_identical_account_of_image() {
    let files = with(&image(), "[[user]]\nname = \"app\"\nuid = 1000\nhome = \"/srv/app\"\ngroups = [\"munge\"]");
    assert_eq!(files.passwd, image().passwd);
    assert!(files.group.contains("munge:x:640:app\n"), "{}", files.group);
    assert_eq!(files.missing_users(&config("[[user]]\nname = \"app\"\nuid = 1000").users), [] as [&User; 0]);
    assert_eq!(files.missing_users(&config("[[user]]\nname = \"app\"\nuid = 7").users).len(), 1);
    assert_eq!(files.missing_users(&config(ACCOUNTS).users).len(), 2);
}

#[test]
fn adds_no_shadow_file() {
    let bare = AccountFiles { shadow: None, ..image() };
    assert_eq!(with(&bare, ACCOUNTS).shadow, None);
}

#[test]
fn reports_line_of_rejected_value() {
    let refusals = [
        "[[user]]\nname = \"munge\"\nuid = 1001",
        "[[user]]\nname = \"alice\"\nuid = 640",
        "[[user]]\nname = \"app\"\nuid = 1000\ngid = 44",
        "[[user]]\nname = \"app\"\nuid = 1000\nhome = \"/home/app\"",
        "[[user]]\nname = \"video\"\nuid = 1001",
        "[[user]]\nname = \"alice\"\nuid = 1001\ngroups = [\"video\", \"lab\"]",
        "[[user]]\nname = \"alice\"\nuid = 1001\n[[group]]\nname = \"video\"\ngid = 993",
        "[[group]]\nname = \"staff\"\ngid = 44",
        "[[group]]\nname = \"bob\"\ngid = 2000\n[[user]]\nname = \"bob\"\nuid = 1001\ngid = 1001",
    ]
    .map(refusal);
    insta::assert_snapshot!(refusals.join("\n"));
}

#[test]
fn drops_memberships_and_passwords_of_missing_accounts() {
    let mut stale = image();
    stale.group = stale.group.replace("video:x:44:app", "video:x:44:app,alice");
    stale.shadow = stale.shadow.map(|text| text + "\nalice:$6$known:19000:0:99999:7:::");
    let updated = with(&stale, "[[user]]\nname = \"alice\"\nuid = 1001");
    assert!(updated.group.contains("video:x:44:app\n"), "{}", updated.group);
    assert!(!updated.shadow.unwrap().contains("$6$known"));
}

proptest! {
    /// Any image files: no panic, a second start changes nothing, and other lines are kept.
    #[test]
    fn keeps_other_lines_of_any_image_files(
        passwd in "([a-c]{1,2}(:[a-c3-5:, !]{0,6}){0,7}\n){0,5}",
        group in "((alice|[a-c]{1,2})(:[a-c3-5, ]{0,4}){0,2}(:(alice|bob|[a-c]),?){0,2}\n){0,5}",
        shadow in proptest::option::of("((alice|[a-c]):[*!]:\n){0,3}"),
    ) {
        let files = AccountFiles { passwd, group, shadow };
        // The generated files contain none of the configuration's IDs, and none of its names except a group alice.
        let toml = ACCOUNTS.replace("\"video\"", "").replace("b.ob", "bob");
        let config = config(&toml.replace("alice\"\nuid", "alice\"\ngid = 3000\nuid"));
        let updated = files.with(&config.users, &config.groups);
        prop_assert!(updated.is_ok() || files.group.lines().any(|line| line.starts_with("alice")), "{:?}", updated);
        let Ok(updated) = updated else { return Ok(()) };
        prop_assert_eq!(updated.with(&config.users, &config.groups).unwrap(), updated.clone());
        prop_assert!(updated.passwd.starts_with(&files.passwd));
        prop_assert_eq!(updated.missing_users(&config.users).len(), 0);
        let others = |text: &str| text.lines().map(|line| line.split(':').next().unwrap().to_owned()).collect::<Vec<_>>();
        prop_assert_eq!(&others(&updated.group)[..others(&files.group).len()], &others(&files.group)[..]);
    }
}
