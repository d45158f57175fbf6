//! GPU faults in a running cluster: `slurminit agent` with a simulated driver that reads a file.

use serde_json::Value;

use crate::docker::{Container, DEMO, Image, directory, docker};

const FILE: &str = "/etc/fake-nvml.toml";

/// A cluster whose agent samples the GPUs every second.
pub(crate) fn serve(gpus: u32, toml: &str) -> (Container, tempfile::TempDir) {
    let text = format!("[agent]\ninterval = 1\ntimeout = 2\n{toml}");
    let config = directory(&[("slurminit.toml", &text)]);
    let image = Image::new(DEMO).with(["--env", &format!("DEMO_GPUS={gpus}")]);
    let container = image.json_log().mount(config.path(), "/config").serve();
    container.until("grep -q recovery_action.:0 /run/slurminit/gpus.json");
    (container, config)
}

/// Appends to the driver's file atomically.
pub(crate) fn append(container: &Container, text: &str) {
    container.sh(&format!("cp {FILE} /tmp/new && printf '{text}' >>/tmp/new && mv /tmp/new {FILE}"));
}

pub(crate) fn xid(gpu: u32, code: u32) -> String {
    format!("[[xid]]\\ngpu = {gpu}\\ncode = {code}\\n")
}

pub(crate) fn fault(at: &str, gpu: u32, kind: &str) -> String {
    format!("[[fault]]\\nat = \"{at}\"\\ngpu = {gpu}\\nkind = \"{kind}\"\\n")
}

/// Makes the driver recommend a reset of the GPU. Otherwise the agent offers the GPU again 60 s after the XID.
fn demand_reset(container: &Container, gpu: u32) {
    let insert =
        format!("{{ print }} /^uuid/ && ++gpus == {} {{ print \"condition = {{ recovery_action = 1 }}\" }}", gpu + 1);
    container.sh(&format!("awk '{insert}' {FILE} >/tmp/new && mv /tmp/new {FILE}"));
}

/// Removes everything from the first fault on from the driver's file.
pub(crate) fn repair(container: &Container) {
    container.sh(&format!("sed '/^\\[\\[fault/,$d' {FILE} >/tmp/new && mv /tmp/new {FILE}"));
}

/// The agent's last report.
fn report(container: &Container) -> Value {
    serde_json::from_str(&container.sh("cat /run/slurminit/gpus.json")).expect("JSON")
}

/// Waits until the agent has sampled the GPUs this many more times.
pub(crate) fn until_sampled(container: &Container, samples: u32) {
    for _ in 0..samples {
        let before = container.sh("stat -c %y /run/slurminit/gpus.json");
        container.until(&format!("[ \"$(stat -c %y /run/slurminit/gpus.json)\" != \"{before}\" ]"));
    }
}

/// Node state and GRES.
pub(crate) fn node(container: &Container) -> String {
    container.sh("sinfo --noheader --format '%T %G'")
}

/// Starts a step that writes consecutive numbers to `/tmp/NAME` until it is cancelled.
pub(crate) fn count(container: &Container, name: &str) {
    let line = "i=0; while :; do echo $i; i=$((i + 1)); sleep 0.02; done";
    container.sh(&format!(
        "srun --job-name {name} --mem 100 --gres=gpu:1 sh -c '{line}' > /tmp/{name} 2> /tmp/{name}.err &\n\
         timeout 120 sh -c 'until [ -s /tmp/{name} ]; do sleep 0.05; done'"
    ));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn loses_and_regains_one_gpu_without_intervention() {
    let (container, _config) = serve(4, "");
    count(&container, "step");
    append(&container, &fault("handle", 3, "gpu-is-lost"));
    container.until("sinfo --noheader --format %T | grep -q draining");
    let reason = container.sh("sinfo --noheader --format %E");
    assert!(reason.starts_with("slurminit: GPU 3 (/dev/nvidia3): "), "{reason}");
    // The step continues, and no number is missing.
    let before = container.sh("wc -l < /tmp/step").parse::<u64>().unwrap();
    container.until(&format!("[ $(wc -l < /tmp/step) -gt {} ]", before + 100));
    assert!(node(&container).contains("gpu:nvidia:4"), "the GPU count changed while a job has a GPU");
    let status = container.sh("slurminit status");
    assert!(status.contains("GPU 3 (/dev/nvidia3)"), "{status}");
    // The report lists the job that had the GPU when it was lost.
    let report = report(&container);
    let holders = |gpu: usize| report["gpus"][gpu]["jobs"].as_array().map_or(0, Vec::len);
    assert_eq!((0..4).map(holders).sum::<usize>(), 1, "{report:#}");
    container.sh("scancel --name step");
    assert_eq!(container.sh("head -n -1 /tmp/step | awk '$1 != NR - 1 { print NR, $1; exit }'"), "");
    container.until("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:3");
    let devices = container.sh("srun --gres=gpu:3 sh -c 'ls /dev/nvidia? >/dev/null; printenv CUDA_VISIBLE_DEVICES'");
    assert_eq!(devices, "0,1,2");
    repair(&container);
    container.until("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:4");
    assert_eq!(container.sh("srun --gres=gpu:4 printenv CUDA_VISIBLE_DEVICES"), "0,1,2,3");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn hardware_faults_take_gpu_out_and_program_errors_do_not() {
    const DRAINING: [u32; 17] = [46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158];
    let (container, _config) = serve(20, "");
    for program_xid in [13, 31, 43, 45, 63, 109, 999, 94] {
        append(&container, &xid(19, program_xid));
    }
    container.until("grep -q xid.:94 /run/slurminit/gpus.json");
    assert_eq!(node(&container), "idle gpu:nvidia:20");
    for (gpu, code) in (0..).zip(DRAINING) {
        append(&container, &xid(gpu, code));
        let left = 19 - gpu;
        container.until(&format!("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:{left}$"));
        demand_reset(&container, gpu);
    }
    let log = container.log();
    assert!(log.contains("GPU 19 (") && log.contains("XID 31"), "{log}");
    assert!(log.contains("XID 43") && !log.contains("XID 45"), "{log}");
}

/// Faults without an XID: only a sample detects them.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn detects_lost_gpu_hung_driver_and_denied_device() {
    let (container, _config) = serve(2, "");
    let until_idle_with =
        |count: u32| container.until(&format!("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:{count}$"));
    append(&container, &fault("handle", 1, "gpu-is-lost"));
    until_idle_with(1);
    repair(&container);
    until_idle_with(2);
    append(&container, &fault("memory", 1, "hang"));
    until_idle_with(1);
    // The agent does not query the hung GPU again; the other GPU's properties are complete.
    assert!(container.sh("scontrol show node").contains("cc9.0"), "{}", container.log());
    // The other GPU is still sampled.
    until_sampled(&container, 1);
    append(&container, "[[fault]]\\nat = \"count\"\\nkind = \"unknown\"\\n");
    // The drain may already be over, because without jobs the agent leaves the GPU out at once. Slurm keeps the reason.
    container.until("scontrol show node | grep -q \"Reason=slurminit: .*can no longer open the device file\"");
    container.until("grep -q device-denied /run/slurminit/gpus.json");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn keeps_administrators_drain_across_agent_restart() {
    let (container, _config) = serve(2, "");
    container.sh("scontrol update nodename=localhost state=drain reason=fan");
    append(&container, &xid(0, 79));
    container.until("sinfo --noheader --format %G | grep -q gpu:nvidia:1$");
    assert_eq!(container.sh("sinfo --noheader --format '%T %E'"), "drained fan");
    container.sh("scontrol update nodename=localhost state=resume");
    for victim in ["agent", "look"] {
        let last_sample = container.sh("stat -c %Y%z /run/slurminit/gpus.json");
        container.sh(&format!("pkill -KILL -f \"^[^ ]*slurminit {victim}\""));
        container.until(&format!("[ \"$(stat -c %Y%z /run/slurminit/gpus.json)\" != \"{last_sample}\" ]"));
        container.until("pgrep -f \"^[^ ]*slurminit look\"");
        container.until("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:1$");
    }
    // An explicit restart of the agent checks all GPUs again.
    container.sh("slurminit restart agent");
    container.until("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:2");
    // A restart of the container also finds GPUs that a reload left out.
    append(&container, &xid(0, 79));
    container.until("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:1");
    docker(["restart", "--time", "20", &container.name]).ok();
    container.wait_until_healthy();
    assert_eq!(node(&container), "idle gpu:nvidia:2");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn monitors_gpu_added_by_reload() {
    let (container, _config) = serve(1, "");
    container.sh("mknod -m 666 /dev/nvidia1 c 1 3");
    append(&container, "[[gpu]]\\nname = \"Simulated NVIDIA H200\"\\n");
    container.sh("slurminit reload");
    assert!(node(&container).ends_with("gpu:nvidia:2"));
    container.until("grep -q offered.:.1. /run/slurminit/gpus.json");
    append(&container, &xid(1, 79));
    container.until("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:1$");
    // A manual reload does not bring back a GPU that was left out.
    container.sh("slurminit reload");
    assert_eq!(node(&container), "idle gpu:nvidia:1");
}

/// A command that hangs or fails does not delay other receivers.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn notifies_commands_and_webhooks_as_unprivileged_user() {
    let notify = "[[notify]]\ncommand = ['sh', '-c', 'cat >>/tmp/told; id -u >>/tmp/told']\nper_hour = 2\n\
                  [[notify]]\ncommand = ['sleep', '600']\nat_least = 'drain'\ntimeout = 1\n\
                  [[notify]]\ncommand = ['/no/such']\nurl = 'http://127.0.0.1:9099/s3cret'\nper_hour = 1\n";
    let (container, _config) = serve(4, notify);
    container.sh("install -m 666 /dev/null /tmp/told");
    container.sh(&format!("perl -MIO::Socket::INET -e '{SERVER}' >/tmp/server 2>&1 &"));
    container.until("grep -q listens /tmp/server");
    append(&container, &xid(0, 31));
    container.until("grep -q 643 /tmp/told");
    let received = container.sh("cat /tmp/told");
    assert!(
        received.starts_with("{\"node\":\"localhost\",\"at\":") && received.contains("\"kind\":{\"xid\":31}"),
        "{received}"
    );
    for gpu in 1..4 {
        append(&container, &xid(gpu, 79));
        container.until(&format!("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:{}$", 4 - gpu));
        demand_reset(&container, gpu);
    }
    container.until("[ $(grep -c node /tmp/told) = 2 ]");
    let log = container.log();
    let failed = container.records("notification-failed");
    for receiver in ["sleep", "/no/such"] {
        assert!(failed.iter().any(|record| record["fields"]["receiver"] == receiver), "{receiver}: {log}");
    }
    let posted = container.sh("cat /tmp/server");
    assert!(posted.contains("POST /s3cret HTTP/1.1") && posted.contains("\"text\":\"GPU 0"), "{posted}");
    assert!(!log.contains("s3cret") && !log.contains("127.0.0.1:9099"), "{log}");
}

/// A web server that prints one request.
const SERVER: &str = "$| = 1; $s = IO::Socket::INET->new(Listen => 1, LocalAddr => \"127.0.0.1:9099\") or die; print \"listens\\n\"; \
    $c = $s->accept; while (<$c>) { print; $n = $1 if /content-length: (\\d+)/i; last if /^\\r$/ } read($c, $b, $n); print $b; \
    print $c \"HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\n\\r\\n\"";

/// Attackers inside the container: a user, and the driver vendor's library.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn watcher_has_no_rights_and_users_cannot_interfere() {
    let (container, _config) = serve(2, "[[user]]\nname = 'eve'\nuid = 1501\n");
    let status = container.sh("cat /proc/$(pgrep -f \"^[^ ]*slurminit look\")/status");
    for right in ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Uid:\t643"] {
        assert!(status.contains(right), "{right}: {status}");
    }
    assert!(!container.sh("cat /proc/$(pgrep -f \"^[^ ]*slurminit agent\")/maps").contains("nvidia-ml"));
    for attack in [
        "echo {} > /run/slurminit/gpus.json",
        "mv /run/slurminit/gpus.json /run/slurminit/x",
        "echo [] > /run/slurminit/gpus-out.json",
        "cat /run/slurminit/gpus-out.json",
        "pkill -KILL -f \"^[^ ]*slurminit look\"",
        "pkill -KILL -f \"^[^ ]*slurminit agent\"",
    ] {
        let outcome = docker(["exec", "--user", "eve", &container.name, "sh", "-c", attack]);
        assert_ne!(outcome.code, 0, "{attack}");
    }
    // A library that prints, returns nonsense or crashes stops nothing, and nonsense does not change the set of GPUs.
    append(
        &container,
        "[[fault]]\\nat = \"uuid\"\\ngpu = 1\\nkind = \"noise\"\\n[[fault]]\\nat = \"clocks\"\\nkind = \"nonsense\"\\n",
    );
    until_sampled(&container, 2);
    assert_eq!(node(&container), "idle gpu:nvidia:2");
    append(&container, &fault("memory", 0, "crash"));
    container.until("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:1");
    assert_eq!(
        container.sh("slurminit status --json | grep -A8 '\"name\": \"agent\"' | grep restarts").trim(),
        "\"restarts\": 0,"
    );
}
