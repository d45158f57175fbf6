//! `slurminit doctor` in the image with the real daemons: each test causes a fault and compares the answer with the
//! record in `tests/doctor/answers`. `UPDATE=1` writes the record.

use serde_json::Value;

use crate::answer::{Answer, Report, difference};
use crate::docker::{Container, DEMO, Image, PLAIN, Volume, directory};

const MARK: &str = "# USER_CUSTOMIZED=true\n";

pub(crate) fn report(container: &Container, arguments: &str) -> Report {
    // doctor exits with the code of the worst verdict.
    let text = container.sh(&format!("slurminit doctor --json {arguments} || true"));
    serde_json::from_str(&text).expect("the report is JSON")
}

#[track_caller]
pub(crate) fn record(case: &str, answer: &Answer) {
    let difference = difference(case, answer).unwrap_or_default();
    assert!(difference.is_empty(), "{difference}\nTo accept the new answer: UPDATE=1 docker/test --only image");
}

/// The answer with N in place of each number, for numbers that depend on the machine.
pub(crate) fn with_n_for_numbers(answer: Answer) -> Answer {
    Answer { seen: without_numbers(&answer.seen), fix: answer.fix.as_deref().map(without_numbers), ..answer }
}

fn without_numbers(text: &str) -> String {
    let mut short = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' if short.ends_with('N') => {}
            '0'..='9' => short.push('N'),
            c => short.push(c),
        }
    }
    short
}

#[track_caller]
fn state_is(state: &str) -> String {
    format!("sinfo --noheader --format=%T 2>/dev/null | grep -q {state}")
}

/// An image whose container keeps running after slurminit gives up on a daemon.
fn hold_on_give_up(image: &str) -> Image {
    Image::new(image).with(["--env", "SLURMINIT_ON_GIVE_UP=hold"])
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn healthy_cluster_has_no_fault() {
    for image in [PLAIN, DEMO] {
        let container = Image::new(image).serve();
        // A reconfiguration replaces the daemon processes and changes their command lines.
        for before in ["true", "scontrol reconfigure && slurminit health --wait 30"] {
            container.sh(before);
            let outcome = container.exec(&["slurminit", "doctor", "--brief"]);
            assert_eq!((outcome.code, outcome.stdout.lines().count()), (0, 3), "{image}, {before}: {outcome:?}");
        }
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_gpu_in_image_without_gpu_support() {
    let container = Image::new(PLAIN).with(["--device", "/dev/null:/dev/nvidia0"]).serve();
    record("image-built-without-gpu", &report(&container, "").of("gpu-type"));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_missing_and_invalid_gres() {
    let assert_refused = |container: &Container, reason: &str| {
        let refused = container.exec(&["srun", "--gres=gpu:1", "true"]);
        assert!(refused.stderr.contains(reason), "{refused:?}");
    };
    let without_gpu = Image::new(PLAIN).serve();
    assert_refused(&without_gpu, "Requested node configuration is not available");
    record("image-no-gres", &report(&without_gpu, "").of("gres"));
    let container = with_own_slurm_conf("idle", |text| {
        let text = with_value(text, "Gres", "");
        text.lines()
            .filter(|line| !line.starts_with("GresTypes="))
            .map(|line| line.replace("Gres= ", "") + "\n")
            .collect()
    });
    assert_refused(&container, "Invalid generic resource (gres) specification");
    record("image-invalid-gres", &report(&container, "").of("gres"));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_missing_nvml_library() {
    let image = Image::new(PLAIN).with(["--device", "/dev/null:/dev/nvidia0"]).with(["--env", "GPU_TYPE=nvidia"]);
    record("image-library-missing", &report(&image.serve(), "").of("nvml-library"));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_driver_change_under_running_cluster() {
    let container = Image::new(DEMO).serve();
    for (kind, case, entry) in [
        ("unknown", "image-unknown-error", "device-rules"),
        ("lib-rm-version-mismatch", "image-library-of-another-release", "nvml-versions"),
    ] {
        container.sh(&format!(
            "printf '[[gpu]]\\n[[gpu]]\\n[[fault]]\\nat = \"init\"\\nkind = \"{kind}\"\\n' > /etc/fake-nvml.toml"
        ));
        record(case, &report(&container, "").of(entry));
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_device_file_that_cannot_be_opened() {
    let container = Image::new(DEMO).serve();
    container.sh("rm /dev/nvidia0 && touch /dev/nvidia0");
    let report = report(&container, "");
    record("image-device-does-not-open", &report.of("device-rules"));
    assert_eq!(report.of("stale-files").verdict, "warn", "gres.conf still lists the GPU");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_stale_and_manual_drains() {
    let container = Image::new(DEMO).serve();
    let drain = |reason: &str| {
        container.sh(&format!("scontrol update nodename=localhost state=drain reason=\"{reason}\""));
        container.until(&state_is("drained"));
    };
    let lower = "gres/gpu count reported lower than configured (0 < 1)";
    let as_slurmctld = "setpriv --reuid=slurm --regid=slurm --clear-groups";
    container.sh(&format!("{as_slurmctld} scontrol update nodename=localhost state=drain reason=\"{lower}\""));
    container.until(&state_is("drained"));
    record("image-stale-drain", &report(&container, "").of("drain"));
    // An administrator sets the same text as the reason.
    container.sh("scontrol update nodename=localhost state=resume");
    // slurmctld counts the node as not responding until slurmd has answered again.
    container.until("sinfo --noheader --format=%T | grep -qx idle");
    drain(lower);
    let answer = report(&container, "").of("drain");
    assert!(answer.cause.as_deref().is_some_and(|cause| cause.contains("an administrator")), "{answer:?}");
    drain("fan replaced");
    let answer = report(&container, "").of("drain");
    record("image-drained-by-administrator", &answer);
    drain("$(printf 'fan\\033[31m broken\\007')");
    let text = container.sh("slurminit doctor || true");
    assert!(text.contains("broken") && !text.contains(['\u{1b}', '\u{7}']), "{text:?}");
    // The suggested fix works.
    container.sh(answer.fix.as_deref().unwrap_or("false"));
    container.until(&state_is("idle"));
    assert_eq!(report(&container, "").of("drain").verdict, "ok");
}

/// A container with a user's slurm.conf that is a changed copy of the generated one.
fn with_own_slurm_conf(state: &str, change: impl Fn(&str) -> String) -> Container {
    let image = || Image::new(DEMO).with(["--hostname", "node1"]);
    let generated = image().run(&["cat", "/etc/slurm/slurm.conf"]).ok();
    let directory = directory(&[("slurm.conf", &format!("{MARK}{}", change(&generated)))]);
    let container = image().json_log().mount(&directory.path().join("slurm.conf"), "/config/slurm.conf").start();
    container.until(&state_is(state));
    container
}

/// The text with the value of each `key=` replaced.
fn with_value(text: &str, key: &str, value: &str) -> String {
    let word =
        |word: &str| if word.starts_with(&format!("{key}=")) { format!("{key}={value}") } else { word.to_owned() };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ") + "\n";
    text.lines().map(line).collect()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_more_gpus_in_slurm_conf_than_present() {
    let container = with_own_slurm_conf("inval", |text| with_value(text, "Gres", "gpu:nvidia:4"));
    record("image-gres-lower", &report(&container, "").of("gres"));
    assert_eq!(container.records("gres").len(), 1, "the start must log it once: {}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_more_memory_in_slurm_conf_than_present() {
    let container = with_own_slurm_conf("inval", |text| with_value(text, "RealMemory", "99999999"));
    record("image-real-memory", &with_n_for_numbers(report(&container, "").of("real-memory")));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_munge_key_from_image() {
    let script =
        "head -c 128 /dev/urandom > /etc/munge/munge.key; touch -d 2020-01-01 /etc/munge/munge.key; exec slurminit run";
    let container = Image::new(PLAIN).with(["--entrypoint", "sh"]).json_log().command(["-c", script]).serve();
    record("image-shared-key", &report(&container, "").of("munge-key"));
    assert_eq!(container.records("munge-key").len(), 1, "{}", container.log());
    let (own, volume) = (Image::new(PLAIN).serve(), Volume::new("key"));
    assert_eq!(report(&own, "").of("munge-key").verdict, "ok");
    own.sh("test -z \"$(find /etc/munge/munge.key -not -newer /.dockerenv)\"");
    drop(Image::new(PLAIN).volume(&volume, "/etc/munge").serve());
    let second = Image::new(PLAIN).volume(&volume, "/etc/munge").serve();
    assert_eq!(report(&second, "").of("munge-key").verdict, "ok", "a key on a volume may be older than the container");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_foreign_munge_key_and_clock_skew() {
    let (here, there) = (Image::new(PLAIN).serve(), Image::new(PLAIN).serve());
    let read = |credential: &str| {
        let text = here.sh(&format!("printf %s '{credential}' | slurminit doctor --json --credential - || true"));
        let report: Report = serde_json::from_str(&text).unwrap();
        report.of("clock")
    };
    record("image-another-key", &read(&there.sh("munge --no-input")));
    assert_eq!(read(&here.sh("munge --no-input")).verdict, "ok");
    here.sh("munge --no-input --ttl=1 > /tmp/old");
    here.until("unmunge --input=/tmp/old 2>&1 | grep -q Expired");
    record("image-clock-skew", &with_n_for_numbers(read(&here.sh("cat /tmp/old"))));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_port_owned_by_another_process() {
    let first = Image::new(PLAIN).serve();
    assert_eq!(report(&first, "").of("ports").verdict, "ok");
    let second = hold_on_give_up(PLAIN).json_log().with(["--network", &format!("container:{}", first.name)]).start();
    second.until("slurminit status 2>/dev/null | grep -q \"given up\"");
    record("image-port-taken", &report(&second, "").of("ports"));
    let taken = second.records("ports");
    let names_port = |record: &Value| record["fields"]["what"].as_str().is_some_and(|what| what.contains("6817"));
    assert_eq!(taken.iter().filter(|record| names_port(record)).count(), 1, "{}", second.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_saved_state_of_other_cluster_name() {
    let state = Volume::new("state");
    let image = |name: &str| {
        hold_on_give_up(PLAIN)
            .volume(&state, "/var/lib/slurm")
            .with(["--hostname", "node1"])
            .with(["--env", &format!("CLUSTER_NAME={name}")])
    };
    let first = image("lab").serve();
    assert_eq!(first.stop(), 0, "{}", first.log());
    let second = image("clinic").start();
    assert_eq!(second.exit_code(), 78, "{}", second.log());
    let inspector = image("clinic").with(["--entrypoint", "sleep"]).command(["infinity"]).start();
    record("image-state-of-another-cluster", &report(&inspector, "").of("saved-state"));
    // The suggested fix works: set cluster_name = "lab".
    assert_eq!(report(&image("lab").serve(), "").of("saved-state").verdict, "ok");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_nearly_full_disk() {
    let container = Image::new(PLAIN).json_log().with(["--tmpfs", "/var/lib/slurm:size=8m"]).serve();
    record("image-disk-full", &with_n_for_numbers(report(&container, "").of("disk")));
    assert_eq!(container.records("disk").len(), 1, "{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_docker_default_shared_memory() {
    let container = Image::new(DEMO).serve();
    record("image-shared-memory", &report(&container, "").of("shared-memory"));
    let container = Image::new(DEMO).with(["--shm-size", "1g"]).with(["--ulimit", "memlock=65536"]).serve();
    let report = report(&container, "");
    assert_eq!(report.of("shared-memory").verdict, "ok", "{report:?}");
    assert_eq!(report.of("locked-memory").seen, "locked-memory limit: 64 KiB");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_container_without_network() {
    // slurminit adds its name to a file that it can write.
    let files = [("hosts", "127.0.0.1 localhost\n"), ("nsswitch.conf", "hosts: files dns\n")];
    let directory = crate::docker::directory(&files);
    let mount = |name: &str| format!("--volume={}:/etc/{name}:ro", directory.path().join(name).display());
    let [hosts, sources] = files.map(|(name, _)| mount(name));
    let container = hold_on_give_up(PLAIN).with(["--network", "none", &hosts, &sources]).start();
    container.until("test -e /run/slurminit/status.json");
    record("image-no-address", &report(&container, "").of("address"));
}
