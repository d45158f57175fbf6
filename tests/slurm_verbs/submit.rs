//! `slurminit submit`: a job for each target.

use std::fs;

use super::fake::{Fake, columns};

/// A cluster whose node `c1` has two GPUs of different types, the first of which is in use.
fn cluster() -> Fake {
    let nodes = r#"{"nodes": [{"name": "c1", "state": ["MIXED"], "gres": "gpu:a:1,gpu:b:1", "gres_used": "gpu:a:1(IDX:0),gpu:b:0(IDX:N/A)",
        "partitions": ["main"]}]}"#;
    let jobs = r#"{"jobs": [{"job_id": 7, "user_name": "bob", "job_state": ["RUNNING"], "nodes": "c1", "gres_detail": ["gpu:a:1(IDX:0)"],
        "job_resources": {"nodes": {"allocation": [{"name": "c1"}]}}}]}"#;
    Fake::new()
        .config("MaxNodeCount = 10")
        .reply("scontrol --details --json show node", &[nodes])
        .reply("squeue *--json*", &[jobs])
}

fn submit(fake: &Fake, arguments: &str) -> (Option<i32>, String, String) {
    let output = fake.run(&[&["submit"], &arguments.split(' ').collect::<Vec<_>>()[..]].concat());
    let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), stdout, stderr)
}

#[test]
fn submits_command_to_each_target() {
    let fake = cluster().reply("sbatch *", &["70\n", "71;lab\n"]);
    let options = "--target c1::0 --target c1 --cores 2 --memory 4G --output o-%j --sbatch=--time=10 -- /opt/train a";
    let (code, stdout, log) = submit(&fake, options);
    assert_eq!((code, stdout.as_str()), (Some(0), "70\n71\n"), "{log}");
    let lines: Vec<&str> = log.lines().collect();
    assert!(
        lines[0].starts_with("job 70: c1 with GPU 0") && lines[0].ends_with("; waits for GPU 0 (job 7 of bob)"),
        "{log}"
    );
    assert!(lines[1].ends_with(", output o-71"), "{log}");
    let fixed =
        "--parsable --job-name=train --cpus-per-task=2 --mem=4G --time=10 --nodelist=c1 --nodes=1 --output=o-%j";
    let wrap = "--wrap=exec '/opt/train' 'a'";
    assert_eq!(fake.calls("sbatch "), [format!("{fixed} --gres=gpu:a:1 {wrap}"), format!("{fixed} {wrap}")]);
    assert_eq!(fake.calls("squeue *--jobs="), [""; 0]);
}

#[test]
fn nothing_is_submitted_if_a_target_is_impossible() {
    let fake = cluster();
    let (code, stdout, log) = submit(&fake, "--target c1 --target c1::7 -- true");
    assert!(code == Some(1) && stdout.is_empty() && log.contains("c1 has no GPU 7"), "{log}");
    assert_eq!(fake.calls("sbatch"), [""; 0]);
    let fake = cluster().fail("sbatch *", "Invalid partition");
    let (code, _, log) = submit(&fake, "--target c1 -- true");
    assert!(code == Some(1) && log.contains("c1: submission failed (jobs submitted before: none)"), "{log}");
    assert!(log.contains("sbatch: Invalid partition"), "{log}");
}

#[test]
fn submit_waits_for_jobs_and_fails_with_them() {
    let state = |state: &str, code: &str| columns(&[("70", 24), (state, 24), (code, 16)]);
    for (ended, code) in [(state("COMPLETED", "0:0"), 0), (state("FAILED", "3:0"), 1)] {
        // One answer without the job is not its end.
        let states = ["", &state("RUNNING", "0:0"), &ended];
        let fake = cluster().reply("sbatch *", &["70\n"]).reply("squeue *--jobs=70*", &states);
        let (exit, _, log) = submit(&fake, "--target c1 --wait -- true");
        assert_eq!(exit, Some(code), "{log}");
        assert_eq!(fake.calls("squeue --noheader --jobs=70 ").len(), 3, "{:?}", fake.calls("squeue"));
    }
}

#[test]
fn arguments_of_sbatch_come_from_file_or_standard_input() {
    let fake = Fake::new();
    let file = fake.path("method.json");
    let method = format!(r#"{{"resources": {{"cpus": 2}}, "note": "{}"}}"#, "x".repeat(100_000));
    fs::write(&file, method).unwrap();
    let line = fake.succeed(&["sbatch-args", "--offline", file.to_str().unwrap()]);
    assert!(line.contains("--cpus-per-task=2"), "{line}");
    let mut command = fake.command(&["sbatch-args", "--offline", "-"]);
    let output = command.stdin(fs::File::open(&file).unwrap()).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), line);
    fs::write(&file, " ".repeat((1 << 20) + 1)).unwrap();
    let output = fake.run(&["sbatch-args", "--offline", file.to_str().unwrap()]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "--refused-by-slurminit\n");
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("longer than 1 MiB"));
}
