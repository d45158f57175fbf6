//! `slurminit mariadb`: the directory of the accounting database.

use std::fs;

use super::fake::Fake;

#[test]
fn database_is_copied_from_template_only_if_it_is_missing() {
    let fake = Fake::new();
    let (template, data) = (fake.path("template"), fake.path("data"));
    fs::create_dir(&template).unwrap();
    fs::write(template.join("table"), "new").unwrap();
    let start = || {
        let places = ["--template", template.to_str().unwrap(), "--data", data.to_str().unwrap()];
        fake.run(&[&["mariadb"], &places[..], &["--", "echo", "mariadbd"]].concat())
    };
    assert_eq!(start().stdout, b"mariadbd\n");
    assert_eq!(fs::read(data.join("table")).unwrap(), b"new");
    fs::write(data.join("table"), "rows").unwrap();
    assert_eq!(start().stdout, b"mariadbd\n");
    assert_eq!(fs::read(data.join("table")).unwrap(), b"rows");
    fs::remove_dir_all(&data).unwrap();
    fs::remove_dir_all(&template).unwrap();
    let failed = start();
    assert!(!failed.status.success() && failed.stdout.is_empty(), "{failed:?}");
}
