//! The three files before and after.

use std::path::Path;

use super::*;
use crate::config::Config;

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
fn a_second_start_changes_nothing_and_one_without_people_brings_the_image_s_back() {
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
fn what_the_image_has_with_the_same_values_is_taken() {
    let taken = with(&image(), "[[user]]\nname = \"app\"\nuid = 1000\nhome = \"/srv/app\"\ngroups = [\"munge\"]");
    assert_eq!(taken.passwd, image().passwd);
    assert!(taken.group.contains("munge:x:640:app\n"), "{}", taken.group);
    assert_eq!(taken.lacks(&config("[[user]]\nname = \"app\"\nuid = 1000").users), [] as [&User; 0]);
    assert_eq!(taken.lacks(&config("[[user]]\nname = \"app\"\nuid = 7").users).len(), 1);
    assert_eq!(taken.lacks(&config(PEOPLE).users).len(), 2);
}

#[test]
fn an_image_without_shadow_gets_none() {
    let bare = AccountFiles { shadow: None, ..image() };
    assert_eq!(with(&bare, PEOPLE).shadow, None);
}

#[test]
fn what_is_somebody_else_s_is_refused_with_its_line() {
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
