//! `slurminit configure` on many kinds of hosts: root directories with fake tools, listed in `configure/cases.rs`.
//! Each case has a folder in `tests/configure` with the expected report and exit code, files and tool commands.
//! `UPDATE=1 cargo test --test host configure` rewrites these folders; review the diff.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test is not PID 1, so it may wait for the commands it runs")]

mod cases;
mod compose;
pub(crate) mod host;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use host::Host;
use nix::unistd::geteuid;

fn folder() -> PathBuf {
    harness::root().join("tests/configure")
}

/// The results of a run, by file name in the case's folder.
fn outcome(host: &Host) -> BTreeMap<&'static str, String> {
    let output = host.configure();
    let mut report = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    report += &format!("exit code {}\n", output.status.code().unwrap());
    let mut files = BTreeMap::from([("report.txt", report), ("commands.txt", host.calls())]);
    files.extend(host.written("compose.gpus.yaml").map(|text| ("compose.gpus.yaml", text)));
    files.extend(host.written(".env").map(|text| ("env", text)));
    files
}

#[test]
fn each_host_gets_expected_report_and_files() {
    let update = std::env::var_os("UPDATE").is_some();
    let cases = cases::all();
    let mut wrong = String::new();
    for (name, host) in &cases {
        // Only root can create files with these groups; without them the report differs.
        assert!(!host.has_groups || geteuid().is_root(), "the case {name} needs root");
        let (actual, expected) = (outcome(host), folder().join(name));
        if update {
            let _ = fs::remove_dir_all(&expected);
            fs::create_dir(&expected).unwrap();
            for (file, text) in &actual {
                fs::write(expected.join(file), text).unwrap();
            }
        }
        let read_expected = |file: &str| fs::read_to_string(expected.join(file)).unwrap_or_default();
        for file in ["report.txt", "commands.txt", "compose.gpus.yaml", "env"] {
            let (old, new) = (read_expected(file), actual.get(file).cloned().unwrap_or_default());
            if old != new {
                let path = expected.join(file).display().to_string();
                wrong += &similar::TextDiff::from_lines(&old, &new).unified_diff().header(&path, "now").to_string();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}\nIf this change is intended: UPDATE=1 cargo test --test host configure");
    let names: BTreeSet<String> = cases.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert!(names.len() == cases.len() && names.len() >= 50, "two cases share a name, or some are missing");
    let entries = fs::read_dir(folder()).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir());
    let folders: BTreeSet<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert_eq!(folders, names, "folders and cases differ");
}

#[test]
fn print_outputs_only_the_file_and_writes_nothing() {
    let host =
        Host::with_docker(&["nvidia"]).nvidia(1, "NVIDIA H200", "550.127.05").toolkit(true).argument(["--print"]);
    let output = host.configure();
    assert!(output.status.success());
    let written = (host.written("compose.gpus.yaml"), host.written(".env"));
    assert_eq!(written, (None, None));
    let printed = String::from_utf8(output.stdout).unwrap();
    let report = String::from_utf8(output.stderr).unwrap();
    assert!(report.contains("1x NVIDIA H200"), "{report}");
    // configure recognizes the printed file as its own.
    let host = Host::with_docker(&["nvidia"])
        .nvidia(1, "NVIDIA H200", "550.127.05")
        .toolkit(true)
        .project("compose.gpus.yaml", &printed);
    let report = String::from_utf8(host.configure().stdout).unwrap();
    assert!(report.contains("compose.gpus.yaml: unchanged"), "{report}");
}

#[test]
fn second_run_touches_no_file() {
    let host = Host::with_docker(&["nvidia"]).nvidia(1, "NVIDIA H200", "550.127.05").toolkit(true);
    let times = || {
        let modified = |name: &str| fs::metadata(host.path("project").join(name)).unwrap().modified().unwrap();
        (modified("compose.gpus.yaml"), modified(".env"), modified("."))
    };
    assert!(host.configure().status.success());
    let first = times();
    assert!(host.configure().status.success());
    assert_eq!(times(), first);
}

#[test]
fn refuses_ambiguous_input_and_writes_nothing() {
    let two_gpus = || Host::with_docker(&["nvidia"]).nvidia(2, "NVIDIA H200", "550.127.05").toolkit(true);
    for (host, code, message) in [
        (two_gpus().argument(["--gpus", "2"]), 1, "this host has GPUs 0 to 1"),
        (two_gpus().argument(["--gpus", "GPU-9"]), 1, "no such GPU"),
        (two_gpus().argument(["--gpus", "0'"]), 2, "invalid GPU `0'`"),
        (two_gpus().amd(1, 44, 992).argument(["--gpus", "0"]), 1, "--gpu-type nvidia or --gpu-type amd"),
        (Host::with_docker(&[]).amd(1, 44, 992).argument(["--gpus", "GPU-1"]), 1, "selected by number"),
        (two_gpus().argument(["--gpu-type", "voodoo"]), 2, "possible values: nvidia, amd, "),
        (two_gpus().argument(["--dry-run", "--print"]), 2, "cannot be used with"),
    ] {
        let output = host.configure();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(message), "{stderr}");
        assert_eq!((host.written("compose.gpus.yaml"), host.written(".env")), (None, None));
    }
    // The requested GPU does not exist: the files are written, as they may be for another host, but the exit code is 1.
    for arguments in [["--gpu-type", "nvidia"], ["--gpu-type", "amd"], ["--gpus", "0"]] {
        let output = Host::with_docker(&["runc"]).argument(arguments).configure();
        let stdout = String::from_utf8(output.stdout).unwrap();
        let message = match arguments {
            ["--gpus", _] => "--gpus: no GPU can be passed to the container".to_owned(),
            arguments => format!("{}: no such GPU on this host", arguments.join(" ")),
        };
        assert_eq!((output.status.code(), stdout.contains(&message)), (Some(1), true), "{stdout}");
    }
    let host = two_gpus();
    fs::remove_file(host.path("project/compose.yaml")).unwrap();
    let stderr = String::from_utf8(host.configure().stderr).unwrap();
    assert!(stderr.contains("no compose.yaml in"), "{stderr}");
}
