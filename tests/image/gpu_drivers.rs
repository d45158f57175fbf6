//! Slow GPU initialization, GPU repair by the host, and fault reports while slurmctld hangs.

use std::time::{Duration, Instant};

use fake_nvml::profile::{self, Profile};

use crate::docker::{DEMO, Image, directory};
use crate::gpu_faults::{append, node, repair, serve, xid};

/// Counts the open file descriptors of GPU 1 in the container.
const HOLDERS: &str = "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c \"/dev/nvidia1$\"";

/// Eight GPUs that take 3 s each: the start waits for all of them and logs the GPUs that it waits for.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn start_waits_for_eight_slowly_initializing_gpus() {
    let list = "[[gpu]]\ninit_ms = 3000\n".repeat(8);
    let files = directory(&[("machine.toml", &list), ("slurminit.toml", "[gpu]\ntype_name = 'model'\n")]);
    let image = Image::new(DEMO).json_log().with(["--env", "DEMO_GPUS=8"]);
    let image = image.mount(&files.path().join("machine.toml"), "/etc/fake-nvml.toml");
    let image = image.mount(&files.path().join("slurminit.toml"), "/config/slurminit.toml");
    let container = image.start();
    container.until("sinfo --noheader --format %T,%G 2>/dev/null | grep -q idle,gpu:nvidia_h200:8");
    let log = container.log();
    assert!(container.records("gpus-not-awaited").is_empty(), "{log}");
    let awaited = |source: &str, gpu: &str| {
        let records = container.records("gpus-initializing");
        let from_source = |record: &&serde_json::Value| record["source"] == source;
        let names_gpu =
            |record: &serde_json::Value| record["fields"]["gpu"].as_str().is_some_and(|name| name.contains(gpu));
        records.iter().filter(from_source).any(names_gpu)
    };
    assert!(awaited("prepare", "GPU 7"), "{log}");
    // The agent's first sample takes equally long, which is not a fault.
    container.until("grep -q recovery_action.:0 /run/slurminit/gpus.json");
    assert_eq!(node(&container), "idle gpu:nvidia_h200:8");
    assert!(awaited("agent", "GPU"), "{}", container.log());
}

/// Two of four GPUs exceed the detection timeout: jobs can run on the others, and the agent adds the two automatically.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn agent_adds_gpus_that_initialize_after_start() {
    let slow = "[[gpu]]\n[[gpu]]\n[[gpu]]\ninit_ms = 4000\n[[gpu]]\n";
    let config = "[gpu]\ndetect_timeout = 2\n[agent]\ninterval = 1\n";
    let files = directory(&[("machine.toml", slow), ("slurminit.toml", config)]);
    let image = Image::new(DEMO).json_log().with(["--env", "DEMO_GPUS=4"]);
    let image = image.mount(&files.path().join("slurminit.toml"), "/config/slurminit.toml");
    let list = files.path().join("machine.toml");
    let container = image.with(["--volume", &format!("{}:/etc/fake-nvml.toml", list.display())]).serve();
    let records = container.records("gpus-not-awaited");
    let gpus = records.iter().find_map(|record| record["fields"]["gpus"].as_str()).unwrap_or_default();
    assert!(!gpus.contains("GPU 1") && gpus.contains("GPU 2") && gpus.contains("GPU 3"), "{}", container.log());
    // From now on the driver keeps them initialized because the agent has them open.
    container.until("grep -q recovery_action.:0 /run/slurminit/gpus.json");
    std::fs::write(list, "[[gpu]]\n".repeat(4)).unwrap();
    container.until("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:4");
    container.sh("timeout 60 srun --gres=gpu:4 true");
}

/// Prints the results of a reset and of a MIG mode change of GPU 1 by the host: 0, or the NVML error code.
const HOSTS_TOOL: &str = "/hosts-tool gpu_drivers::hosts_tool --ignored --nocapture | grep -o \"reset.*\"";
/// The expected output if the GPU is in use: `NVML_ERROR_IN_USE` is 19.
const IN_USE: &str = "reset 19, MIG 19";

/// awk program that prints the second list with the UUIDs of the first.
const KEEP_UUIDS: &str =
    "FNR == NR { if (/^uuid/) uuid[n++] = $0; next } { print } $0 == \"[[gpu]]\" { print uuid[m++] }";

/// A test run as a tool of the host, inside the container.
#[test]
#[ignore = "the next test runs it in a container"]
fn hosts_tool() {
    if std::path::Path::new("/etc/fake-nvml.toml").exists() {
        let (reset, mig) = fake_nvml::repair::by_host(1);
        println!("reset {reset}, MIG {mig}");
    }
}

/// The driver refuses to reset a GPU that a process has open.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn releases_gpu_to_host_and_takes_it_back() {
    for branch in ["R535", "R580"] {
        let matches = |profile: &Profile| (profile.branch.name, profile.card.name) == (branch, "H100");
        check_release_and_return(&Profile::all().find(matches).expect("a profile"));
    }
}

fn check_release_and_return(profile: &Profile) {
    let config =
        directory(&[("slurminit.toml", "[agent]\ninterval = 1\ntimeout = 2\n"), ("machine.toml", &profile.machine(2))]);
    let library = profile::without(std::fs::read(harness::fake_nvml()).expect("the library"), profile.branch.missing);
    std::fs::write(config.path().join("library"), library).expect("a copy");
    // SYS_PTRACE allows listing the open files of another user's process.
    let image = Image::new(DEMO).with(["--env", "DEMO_GPUS=2", "--cap-add", "SYS_PTRACE"]);
    let image = image.mount(&config.path().join("slurminit.toml"), "/config/slurminit.toml");
    let image = image.mount(&std::env::current_exe().expect("this program"), "/hosts-tool");
    let image = image.mount(&config.path().join("library"), "/usr/lib/libnvidia-ml.so.1");
    let container = image.mount(&config.path().join("machine.toml"), "/profile").serve();
    let branch = profile.branch.name;
    // The GPUs keep their UUIDs.
    container
        .sh(&format!("awk '{KEEP_UUIDS}' /etc/fake-nvml.toml /profile >/tmp/new && mv /tmp/new /etc/fake-nvml.toml"));
    container.sh("slurminit reload");
    container.until("sinfo --noheader --format %T,%f | grep -q idle,.*h100 && grep -q H100 /run/slurminit/gpus.json");
    let holders = |container: &crate::docker::Container| container.sh(&format!("{HOLDERS} || true"));
    container.until(&format!("[ \"$({HOLDERS})\" != 0 ]"));
    assert_eq!(container.sh(HOSTS_TOOL), IN_USE, "{branch}: the watcher has it open");
    // The release waits for the end of a job that uses the GPU.
    container.sh("srun --job-name step --gres=gpu:2 sleep 600 >/dev/null 2>&1 & timeout 60 sh -c 'until squeue -h -n step -t R | grep -q .; do sleep 0.1; done'");
    container.sh("slurminit gpu release 1 >/tmp/release 2>&1 &");
    container.until("sinfo --noheader --format %T | grep -q drain");
    assert!(!container.sh("cat /tmp/release").contains("is released"));
    container.sh("scancel --name step");
    container.until("grep -q \"GPU 1 (/dev/nvidia1), 0000:11:00.0, .* is released\" /tmp/release");
    container.until("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:1");
    assert_eq!(holders(&container), "0", "{}", container.sh("cat /tmp/release"));
    assert_eq!(container.sh(HOSTS_TOOL), "reset 0, MIG 0", "{branch}");
    assert!(container.sh("cat /tmp/release").contains("--gpu-reset -i 0000:11:00.0"));
    container.sh("timeout 60 srun --gres=gpu:1 true");
    let returned = container.sh("slurminit gpu return 1");
    assert!(returned.contains("GPU 1 (/dev/nvidia1) responds"), "{returned}");
    container.until("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:2");
    container.until(&format!("[ \"$({HOLDERS})\" != 0 ]"));
    assert_eq!(container.sh(HOSTS_TOOL), IN_USE, "{branch}: the watcher has it open again");
    // A faulty GPU is closed as well, and `gpu return` fails while the fault persists.
    append(&container, &crate::gpu_faults::fault("memory", 1, "gpu-is-lost"));
    container.until("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:1");
    container.until(&format!("[ \"$({HOLDERS})\" = 0 ]"));
    container.sh("slurminit gpu release 1");
    let refused = container.exec(&["slurminit", "gpu", "return", "1"]);
    assert!(refused.code != 0 && refused.stderr.contains("still has a fault"), "{refused:?}");
    repair(&container);
    container.sh("slurminit gpu release 1 && slurminit gpu return 1");
    container.until("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:2");
    // Without a GPU to watch, no process loads NVIDIA's library, because the library may open GPUs by itself.
    let has_library = "grep -l libnvidia-ml.so /proc/[0-9]*/maps 2>/dev/null";
    container.until(has_library);
    container.sh("slurminit gpu release /dev/nvidia0");
    container.until("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:1");
    // Slurm's only GPU is the driver's second GPU. All commands show the driver's number.
    let rows = container.sh("slurminit status; slurminit nodes");
    let is_row = |line: &&str| line.contains(" nvidia1 ");
    assert!(rows.lines().filter(is_row).count() == 2 && !rows.contains(" nvidia0 "), "{rows}");
    assert!(rows.lines().filter(is_row).all(|line| line.contains(" 1 nvidia1 ")), "{rows}");
    container.sh("slurminit gpu release 0000:11:00.0");
    container.until(&format!("! {has_library}"));
    container.sh("slurminit gpu return 0 && slurminit gpu return 1");
    container.until(&format!("{has_library} && sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:2"));
    let unknown = container.exec(&["slurminit", "gpu", "release", "7"]);
    assert!(unknown.code != 0 && unknown.stderr.contains("GPUs: GPU 0 (/dev/nvidia0)"), "{unknown:?}");
}

/// Neither the log nor a webhook waits for Slurm.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_fault_within_seconds_while_slurmctld_is_stopped() {
    let notify = "[[notify]]\ncommand = ['sh', '-c', 'date +%s%N >>/tmp/told; cat >>/tmp/told']\n\
                  [supervise]\nprobe_interval = 0\n";
    let (container, _config) = serve(2, notify);
    container.sh("install -m 666 /dev/null /tmp/told");
    container.sh("kill -STOP $(pidof slurmctld)");
    // At the second fault the agent is already waiting for slurmctld.
    for (gpu, code, lines) in [(1, 79, 2), (0, 31, 4)] {
        let change = "date +%s%N && mv /tmp/new /etc/fake-nvml.toml";
        let line = format!("cp /etc/fake-nvml.toml /tmp/new && printf '{}' >>/tmp/new && {change}", xid(gpu, code));
        let begin = container.sh(&line).parse::<u64>().unwrap();
        container.until(&format!("[ $(wc -l < /tmp/told) -ge {lines} ]"));
        let reported = container.sh(&format!("sed -n {}p /tmp/told", lines - 1)).parse::<u64>().unwrap();
        let took = Duration::from_nanos(reported.saturating_sub(begin));
        // A report that waits for slurmctld takes at least 10 s.
        assert!(took < Duration::from_secs(5), "XID {code}: {took:?}: {}", container.log());
        container.until_said(&format!("XID {code}"));
    }
    container.sh("kill -CONT $(pidof slurmctld)");
    let begin = Instant::now();
    container.until("scontrol show node | grep -q \"Reason=slurminit: GPU 1\"");
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    container.until("sinfo --noheader --format %T,%G | grep -q idle,gpu:nvidia:1");
}
