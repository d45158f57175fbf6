//! The three files before and after.

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

const PEOPLE: &str = r#"
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
fn people_get_their_lines() {
    let made = with(&image(), PEOPLE);
    insta::assert_snapshot!(format!("{}--\n{}--\n{}", made.passwd, made.group, made.shadow.unwrap()));
}

#[test]
fn second_start_changes_nothing_and_one_without_people_brings_image_s_back() {
    let made = with(&image(), PEOPLE);
    assert!(made.has_ours() && !image().has_ours());
    assert_eq!(with(&made, PEOPLE), made);
    let changed = PEOPLE.replace("1001", "3001").replace(", \"video\"", "");
    assert_eq!(with(&made, &changed), with(&image(), &changed));
    let mut plain = image();
    plain.shadow = plain.shadow.map(|text| text + "\n");
    assert_eq!(with(&made, ""), plain);
}

#[test]
fn accepts_identical_account_of_image() {
    let taken = with(&image(), "[[user]]\nname = \"app\"\nuid = 1000\nhome = \"/srv/app\"\ngroups = [\"munge\"]");
    assert_eq!(taken.passwd, image().passwd);
    assert!(taken.group.contains("munge:x:640:app\n"), "{}", taken.group);
    assert_eq!(taken.lacks(&config("[[user]]\nname = \"app\"\nuid = 1000").users), [] as [&User; 0]);
    assert_eq!(taken.lacks(&config("[[user]]\nname = \"app\"\nuid = 7").users).len(), 1);
    assert_eq!(taken.lacks(&config(PEOPLE).users).len(), 2);
}

#[test]
fn image_without_shadow_gets_none() {
    let bare = AccountFiles { shadow: None, ..image() };
    assert_eq!(with(&bare, PEOPLE).shadow, None);
}

#[test]
fn refuses_foreign_values_with_line() {
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
    let made = with(&stale, "[[user]]\nname = \"alice\"\nuid = 1001");
    assert!(made.group.contains("video:x:44:app\n"), "{}", made.group);
    assert!(!made.shadow.unwrap().contains("$6$known"));
}

proptest! {
    /// Whatever an image's files contain: nothing panics, a second start changes nothing, and other lines stay.
    #[test]
    fn leaves_other_files_unchanged(
        passwd in "([a-c]{1,2}(:[a-c0-2:, !]{0,6}){0,7}\n){0,5}",
        group in "((alice|[a-c]{1,2})(:[a-c0-2, ]{0,4}){0,2}(:(alice|bob|[a-c]),?){0,2}\n){0,5}",
        shadow in proptest::option::of("((alice|[a-c]):[*!]:\n){0,3}"),
    ) {
        let files = AccountFiles { passwd, group, shadow };
        // Neither names nor IDs of these can collide in such files.
        let config = config(&PEOPLE.replace("\"video\"", "").replace("b.ob", "bob").replace("alice\"\nuid", "alice\"\ngid = 3000\nuid"));
        let made = files.with(&config.users, &config.groups);
        prop_assert!(made.is_ok() || files.group.lines().any(|line| line.starts_with("alice")), "{:?}", made);
        let Ok(made) = made else { return Ok(()) };
        prop_assert_eq!(made.with(&config.users, &config.groups).unwrap(), made.clone());
        prop_assert!(made.passwd.starts_with(&files.passwd));
        prop_assert_eq!(made.lacks(&config.users).len(), 0);
        let others = |text: &str| text.lines().map(|line| line.split(':').next().unwrap().to_owned()).collect::<Vec<_>>();
        prop_assert_eq!(&others(&made.group)[..others(&files.group).len()], &others(&files.group)[..]);
    }
}
