//! Verbs that execute another program, and `slurminit render`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use super::fake::Fake;
use model::exit_code;

fn own_user() -> nix::unistd::User {
    nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap()
}

#[test]
fn program_of_user_has_login_variables_unless_they_are_set() {
    let user = own_user();
    let print = ["--", "sh", "-c", "echo $HOME $LOGNAME $SHELL $USER $A"];
    let run = |name: &str, arguments: &[&str]| {
        let mut command = Fake::new().command(&[&["as-user", name], arguments].concat());
        command.env("SHELL", "/bin/own").env("A", "b").output().unwrap()
    };
    let output = run(&user.name, &print);
    let expected = format!("{} {} /bin/own {} b\n", user.dir.display(), user.name, user.name);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
    for (program, code) in [("/no/such", exit_code::CMD_NOT_FOUND), ("/etc/passwd", exit_code::CMD_NOT_EXECUTABLE)] {
        let output = run(&user.name, &["--", program]);
        assert_eq!(output.status.code(), Some(code.into()), "{output:?}");
    }
    let missing = run("no-such-user", &print);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no such user: `no-such-user`"), "{missing:?}");
}

#[test]
fn only_root_runs_program_as_another_user() {
    let output = Fake::new().run(&["as-user", "nobody", "--", "id", "-u"]);
    match nix::unistd::geteuid().as_raw() {
        0 | 65534 => assert_eq!(String::from_utf8_lossy(&output.stdout), "65534\n", "{output:?}"),
        _ => assert!(!output.status.success(), "{output:?}"),
    }
}

#[test]
fn links_of_slurms_names_lead_to_slurms_commands() {
    let fake = Fake::new();
    fake.configure("[[user]]\nname = \"alice\"\nuid = 1501");
    let open = fake.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    // Root's job writes to a file that users could replace with a link.
    for (name, warns) in [("sbatch", nix::unistd::geteuid().is_root()), ("srun", false)] {
        let program = Path::new("/usr/bin").join(name);
        if program.exists() {
            return;
        }
        let mut command = fake.command(&["--chdir", open.to_str().unwrap()]);
        let output = command.arg0(format!("/usr/local/bin/{name}")).output().unwrap();
        assert_eq!(output.status.code(), Some(exit_code::CMD_NOT_FOUND.into()), "{output:?}");
        let log = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines.len(), 1 + usize::from(warns), "{log}");
        assert!(!warns || lines[0].contains(&format!("where root's job writes, in {}; ", open.display())), "{log}");
        let missing = format!("slurminit: {}: No such file or directory (os error 2)\n", program.display());
        assert!(log.ends_with(&missing), "{log}");
    }
}

#[test]
fn render_shows_differences_from_installed_files() {
    let fake = Fake::new();
    let (root, inventory) = (fake.path("root"), harness::root().join("tests/render/inventory.json"));
    let etc = root.join(fake.path("etc").strip_prefix("/").unwrap());
    fs::create_dir_all(&etc).unwrap();
    let fixed = ["render", "--root", root.to_str().unwrap(), "--inventory", inventory.to_str().unwrap()];
    let render = |option: &str| fake.succeed(&[&fixed[..], &[option]].concat());
    let json: serde_json::Value = serde_json::from_str(&render("--json")).unwrap();
    assert!(json["decisions"][0]["why"].is_string());
    for file in json["files"].as_array().unwrap() {
        let (path, text) = (file["path"].as_str().unwrap(), file["text"].as_str().unwrap());
        assert!(Path::new(path).starts_with(fake.path("etc")), "{path}");
        fs::write(etc.join(Path::new(path).file_name().unwrap()), text).unwrap();
    }
    assert_eq!(render("--diff"), "");
    let installed = fs::read_to_string(etc.join("slurm.conf")).unwrap();
    fs::write(etc.join("slurm.conf"), installed + "Old=1\n").unwrap();
    fs::remove_file(etc.join("gres.conf")).unwrap();
    let difference = render("--diff");
    let path = |name: &str| fake.path("etc").join(name).display().to_string();
    let header = |name: &str| format!("--- {} (installed)\n+++ {} (next start)\n", path(name), path(name));
    assert!(difference.contains(&header("slurm.conf")) && difference.contains("\n-Old=1\n"), "{difference}");
    assert!(difference.contains(&(header("gres.conf") + "@@ -0,0 +1,")), "{difference}");
    fs::create_dir(etc.join("gres.conf")).unwrap();
    let failed = fake.run(&[&fixed[..], &["--diff"]].concat());
    let why = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success() && why.contains(&path("gres.conf")), "{why}");
}

#[test]
fn configuration_is_shown_with_origin_of_each_value() {
    let fake = Fake::new();
    let mut command = fake.command(&["config", "show", "--json"]);
    let output = command.env("SLURMINIT_ROLE", "compute").output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let setting = |key: &str| {
        let all = json["settings"].as_array().unwrap();
        let found = all.iter().find(|setting| setting["key"] == key).unwrap();
        [&found["value"], &found["origin"], &found["variable"]].map(|value| value.as_str().unwrap_or("-").to_owned())
    };
    assert_eq!(setting("role"), ["compute", "variable", "SLURMINIT_ROLE"]);
    assert_eq!(setting("paths.run"), [fake.path("run").to_str().unwrap(), "file", "-"]);
    assert_eq!(setting("gpu_type"), ["-", "default", "-"]);
    assert!(fake.succeed(&["config", "show"]).lines().any(|line| line.starts_with("role = \"all\"")));
    let file = fake.path("slurminit.toml");
    let valid = format!("{}: valid\n", file.display());
    assert_eq!(fake.succeed(&["config", "check", file.to_str().unwrap()]), valid);
    fake.configure("role = 5");
    for arguments in [&["config", "check", file.to_str().unwrap()][..], &["config", "show"], &["environments"]] {
        assert!(!fake.run(arguments).status.success());
    }
}

#[test]
fn image_prints_its_own_help_and_version() {
    let fake = Fake::new();
    let version = fake.succeed(&["--version"]);
    assert!(version.starts_with("slurminit ") && version.lines().count() == 1, "{version}");
    assert_eq!(fake.succeed(&["run", "--", "--version"]), version);
    let help = fake.succeed(&["run", "--", "--help"]);
    assert!(help.starts_with(&version) && help.contains("docker run"), "{help}");
    assert!(fake.succeed(&["submit", "--help"]).contains("Examples:\n  slurminit submit "));
    let refused = fake.run(&["run", "--", "--gpus"]);
    assert_eq!(refused.status.code(), Some(exit_code::CMD_NOT_FOUND.into()), "{refused:?}");
}

#[test]
fn verbs_fail_without_what_they_need() {
    let fake = Fake::new();
    for arguments in [
        &["mail", "--relay", "127.0.0.1:1", "-s", "ended", "alice@lab"][..],
        // An address of another machine (RFC 5737).
        &["metrics", "--listen", "192.0.2.1:9", "--run", "/no/such"],
        &["associations"],
        &["nodes"],
        &["sbatch-args", "-", "--partition", "a b"],
        &["image", "import", "tools", "/no/such"],
    ] {
        let output = fake.run(arguments);
        assert!(!output.status.success() && !output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
    let output = Command::new(harness::slurminit().with_file_name("slurminit-init")).output().unwrap();
    assert_eq!(output.status.code(), Some(exit_code::FAILURE.into()), "{output:?}");
    // Of the ports below 1024, only root's programs could have this one.
    assert!(fake.succeed(&["free-port", "--port", "1", "--unit", "slurmd"]).is_empty());
}
