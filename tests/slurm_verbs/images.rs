//! `slurminit image`: import, list, show and remove.

use std::fs;

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
        imported.contains("imported tools: ") && imported.contains("(a device node or FIFO left out)"),
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
