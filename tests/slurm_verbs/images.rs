//! `slurminit image`: import, list, show and remove.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::fake::Fake;

/// A container with the image `tools`.
fn with_image() -> Fake {
    let fake = Fake::new();
    fs::create_dir_all(fake.path("source/bin")).unwrap();
    fs::write(fake.path("source/bin/tool"), "x").unwrap();
    nix::unistd::mkfifo(&fake.path("source/fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let source = fake.path("source").display().to_string();
    let imported = fake.succeed(&["image", "import", "tools", &source]);
    assert!(
        imported.contains("imported tools: ") && imported.contains("(1 device node or FIFO left out)"),
        "{imported}"
    );
    fake
}

#[test]
fn imported_directory_is_listed_and_shown() {
    let fake = with_image();
    assert_eq!(fs::read(fake.path("images/tools/rootfs/bin/tool")).unwrap(), b"x");
    let list = fake.succeed(&["image", "list"]);
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "SIZE", "BY", "FROM"]);
    assert_eq!((rows.len(), rows[1][..3].join(" ")), (2, "tools 1 MiB".to_owned()));
    let shown = fake.succeed(&["image", "show", "tools"]);
    assert!(shown.starts_with("name            tools\n") && !shown.contains("digest"), "{shown}");
    let directory = format!("\ndirectory       {}\n", fake.path("images/tools").display());
    assert!(shown.contains(&directory), "{shown}");
    let json: serde_json::Value = serde_json::from_str(&fake.succeed(&["image", "list", "--json"])).unwrap();
    assert_eq!((&json["shape"], &json["images"][0]["name"]), (&1.into(), &"tools".into()));
}

#[test]
fn existing_image_is_replaced_only_on_request() {
    let fake = with_image();
    let source = fake.path("source").display().to_string();
    fs::write(fake.path("source/bin/new"), "y").unwrap();
    let files = || {
        let json: serde_json::Value =
            serde_json::from_str(&fake.succeed(&["image", "show", "tools", "--json"])).unwrap();
        json["files"].as_u64().unwrap()
    };
    let before = files();
    assert!(!fake.run(&["image", "import", "tools", &source]).status.success());
    assert_eq!(files(), before);
    fake.succeed(&["image", "import", "--replace", "tools", &source]);
    assert_eq!(files(), before + 1);
}

#[test]
fn removed_image_is_gone() {
    let fake = with_image();
    let removed = fake.succeed(&["image", "remove", "tools"]);
    assert_eq!(removed, format!("removed tools from {}\n", fake.path("images").display()));
    assert!(!fake.path("images/tools").exists());
    for verb in ["remove", "show"] {
        assert!(!fake.run(&["image", verb, "tools"]).status.success());
    }
    assert!(fake.succeed(&["image", "list"]).starts_with("no images; "));
}

#[test]
fn archive_is_imported_from_standard_input() {
    let fake = with_image();
    let archive = fake.path("archive.tar");
    let tar = Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(fake.path("source/bin")).arg("tool").status();
    assert!(tar.unwrap().success());
    for (name, from) in [("piped", &[][..]), ("dash", &["-"]), ("file", &["/dev/stdin"])] {
        let mut import = fake.command(&[&["image", "import", name], from].concat());
        let output = import.stdin(File::open(&archive).unwrap()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(fs::read(fake.path("images").join(name).join("rootfs/tool")).unwrap(), b"x");
    }
}

#[test]
fn invalid_configuration_hides_images_from_root_only() {
    let fake = Fake::new();
    fake.configure("role = 5");
    let output = fake.run(&["image", "list"]);
    assert_eq!(output.status.success(), !nix::unistd::geteuid().is_root(), "{output:?}");
}

#[test]
fn user_has_own_images_beside_those_of_all() {
    let fake = Fake::new();
    let output = fake.command(&["image", "show", "tools"]).env("HOME", fake.path("home")).output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    let shared = format!("{}; `slurminit image list`", fake.path("images").display());
    assert!(why.contains(&shared), "{why}");
    assert_eq!(why.contains(" or "), !nix::unistd::geteuid().is_root(), "{why}");
}

#[test]
fn image_that_others_could_have_changed_is_not_listed_but_can_be_removed() {
    let fake = with_image();
    fs::set_permissions(fake.path("images/tools"), fs::Permissions::from_mode(0o777)).unwrap();
    let list = fake.run(&["image", "list"]);
    assert_eq!(String::from_utf8_lossy(&list.stdout), "no usable images; see the warnings\n");
    assert!(String::from_utf8_lossy(&list.stderr).starts_with("slurminit: warning: "), "{list:?}");
    let removed = fake.succeed(&["image", "remove", "tools", "--json"]);
    let removed: serde_json::Value = serde_json::from_str(&removed).unwrap();
    assert_eq!((&removed["name"], &removed["files"]), (&"tools".into(), &0.into()));
    assert!(!fake.path("images/tools").exists());
}
