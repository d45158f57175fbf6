//! Container faults: name of the record, entry that detects the fault, container with the fault.

use faults::fault::{FaultKind, Policy};
use faults::report::{GpuReport, OpenFault, Report};
use faults::sample::Identity;
use machine::{LastExit, StopReason, UnitSnapshot, UnitState};

use super::container::{Container, credential};

type Case = (&'static str, &'static str, Container);

pub(crate) fn all() -> Vec<Case> {
    [gpus(), settings(), workload(), start(), node()].into_iter().flatten().collect()
}

pub(crate) fn healthy() -> Container {
    Container::healthy()
}

/// A container with one GPU; `description` adds keys to its table.
pub(crate) fn gpu(description: &str) -> Container {
    healthy().machine(&format!(
        "driver = \"550.127.05\"\ncuda = \"12.4\"\n[[gpu]]\nnuma = 0\npersistence = true\n{description}\n"
    ))
}

/// A container without NVML, device files and GRES.
pub(crate) fn without_gpu() -> Container {
    healthy().without_library().without("dev/nvidia0").answer("sinfo", "node", "(null)|idle|none\n")
}

pub(crate) fn limits(locked: &str, stack: &str) -> Container {
    let line = |name: &str, soft: &str| format!("{name:<26}{soft:<21}{soft:<21}bytes\n");
    let text = line("Max stack size", stack) + &line("Max locked memory", locked);
    healthy().file(
        "proc/self/limits",
        &format!("Limit                     Soft Limit           Hard Limit           Units\n{text}"),
    )
}

fn settings() -> Vec<Case> {
    let required = || healthy().variable("NVIDIA_REQUIRE_CUDA", "cuda>=13.0 brand=tesla,driver>=535,driver<536");
    vec![
        ("requirement-not-checked", "nvidia-require", required()),
        ("requirement-disabled", "nvidia-require", required().variable("NVIDIA_DISABLE_REQUIRE", "true")),
        ("mig-variables", "nvidia-variables", healthy().variable("NVIDIA_MIG_CONFIG_DEVICES", "all")),
        (
            "unknown-capability",
            "nvidia-variables",
            healthy().variable("NVIDIA_DRIVER_CAPABILITIES", "gpu,compute,utility"),
        ),
        ("virtual-gpu", "virtual-gpu", gpu("name = \"GRID A100-40C\"")),
        ("virtual-gpu-without-cuda", "virtual-gpu", gpu("name = \"NVIDIA A40-1B\"")),
        ("share-by-variable", "gpu-share", healthy().variable("CUDA_DEVICE_MEMORY_LIMIT_0", "4g")),
        ("share-by-library", "gpu-share", healthy().file("etc/ld.so.preload", "/usr/local/vgpu/libvgpu.so\n")),
        ("little-locked-memory", "locked-memory", limits("65536", "8388608").device("dev/infiniband/uverbs0")),
        (
            "no-runtime-for-images",
            "container-images",
            healthy().failure("images", 1, "unshare: EPERM").failure("proot", 1, "/usr/bin/proot is missing"),
        ),
        ("peer-memory-denied", "peer-memory", healthy().file("proc/sys/kernel/yama/ptrace_scope", "1\n")),
        ("exposed-join-token", "exposed-secrets", healthy().file("run/slurminit.given/SLURMINIT_JOIN", "")),
        (
            "links-not-protected",
            "link-protection",
            healthy()
                .file("proc/sys/fs/protected_symlinks", "0\n")
                .file("etc/passwd", "alice:x:1001:1001::/home/alice:/bin/bash\n"),
        ),
        ("small-stack", "stack-limit", limits("unlimited", "1048576")),
    ]
}

fn gpus() -> Vec<Case> {
    vec![
        ("no-gpu", "no-gpu", without_gpu()),
        ("no-gpu-counted", "no-gpu", healthy().without("dev/nvidia0")),
        ("no-gpu-in-kubernetes", "no-gpu", without_gpu().variable("KUBERNETES_SERVICE_HOST", "10.0.0.1")),
        ("built-without-gpu", "gpu-type", healthy().variable("GPU_TYPE", "none")),
        ("built-for-amd", "gpu-type", healthy().variable("GPU_TYPE", "amd")),
        ("library-missing", "nvml-library", healthy().without_library()),
        ("library-of-another-release", "nvml-versions", healthy().fault("init", "lib-rm-version-mismatch")),
        ("unknown-error", "device-rules", healthy().fault("init", "unknown")),
        ("device-does-not-open", "device-rules", healthy().without("dev/nvidia0").file("dev/nvidia0", "")),
        ("gpu-is-lost", "driver-answers", healthy().fault("uuid", "gpu-is-lost")),
        ("driver-hangs", "driver-answers", healthy().fault("init", "hang")),
        ("driver-crashes", "driver-answers", healthy().fault("count", "crash")),
        ("gpu-fell-off-the-bus", "driver-answers", healthy().device("dev/nvidia1")),
        ("kfd-without-gpu", "amd-devices", healthy().device("dev/kfd")),
        ("one-gpu-denied", "left-out", healthy().machine("[[gpu]]\n[[gpu]]\ndenied = true\n")),
        ("mig-without-instance", "mig", gpu("mig = \"enabled\"")),
        (
            "without-compute-capability",
            "cuda-libraries",
            healthy()
                .without("usr/lib/x86_64-linux-gnu/libcuda.so.1")
                .variable("NVIDIA_DRIVER_CAPABILITIES", "utility"),
        ),
        (
            "without-utility-capability",
            "cuda-libraries",
            healthy().without("usr/bin/nvidia-smi").variable("NVIDIA_DRIVER_CAPABILITIES", "compute"),
        ),
        ("cuda-newer-than-driver", "cuda-version", healthy().variable("CUDA_VERSION", "13.0.1")),
        (
            "cuda-toolkit-newer-than-driver",
            "cuda-version",
            healthy().file("usr/local/cuda/version.json", r#"{"cuda": {"name": "CUDA SDK", "version": "13.0.1"}}"#),
        ),
        ("visible-devices-of-the-host", "visible-devices", healthy().variable("CUDA_VISIBLE_DEVICES", "2,3")),
        (
            "own-task-prolog",
            "job-devices",
            gpu("[[gpu.mig]]\n[[gpu.mig]]\nslot = 1\ngi = 1")
                .device("dev/nvidia-caps/nvidia-cap12")
                .device("dev/nvidia-caps/nvidia-cap13")
                .device("dev/nvidia-caps/nvidia-cap21")
                .device("dev/nvidia-caps/nvidia-cap22")
                .file(
                    "proc/driver/nvidia-caps/mig-minors",
                    "gpu0/gi0/access 12\ngpu0/gi0/ci0/access 13\ngpu0/gi1/access 21\ngpu0/gi1/ci0/access 22\n",
                )
                .program("opt/own")
                .toml("[slurm.conf]\nTaskProlog = \"/opt/own\"\n"),
        ),
        ("read-only-cgroup", "isolation", healthy()),
    ]
}

fn workload() -> Vec<Case> {
    let full = "condition = { used_mib = 143000, processes = [{ pid = 4711, memory_mib = 142000 }] }";
    let condition = |text: &str| gpu(&format!("condition = {{ {text} }}"));
    vec![
        ("memory-is-full", "gpu-memory", gpu(full)),
        ("gpu-used-outside-slurm", "gpu-processes", gpu(full)),
        (
            "exclusive-mode",
            "gpu-processes",
            condition("compute_mode = \"exclusive\", processes = [{ pid = 4711, memory_mib = 500 }]"),
        ),
        ("prohibited-mode", "gpu-processes", condition("compute_mode = \"prohibited\"")),
        ("too-hot", "gpu-speed", condition("slowdown = [\"thermal\"], temperature = 93, utilization = 100")),
        ("power-brake", "gpu-speed", condition("slowdown = [\"power-brake\"]")),
        ("narrow-link", "gpu-speed", condition("pcie = [5, 5, 4, 16]")),
        ("slow-link", "gpu-speed", condition("pcie = [1, 5, 16, 16], utilization = 90")),
        (
            "job-on-the-cpu",
            "idle-gpus",
            healthy().answer("squeue", "running", "12|12|RUNNING|1|10:00|main|eve|1000|c1|||(null)|None|gres/gpu:1\n"),
        ),
        ("persistence-off", "persistence", healthy().machine("[[gpu]]\nnuma = 0\n")),
        (
            "numa-unknown",
            "numa",
            healthy().machine("[[gpu]]\n").file("sys/bus/pci/devices/0000:10:00.0/numa_node", "-1\n"),
        ),
        (
            "numa-unknown-on-two-sockets",
            "numa",
            two_sockets(healthy().machine("[[gpu]]\n").file("sys/bus/pci/devices/0000:10:00.0/numa_node", "-1\n")),
        ),
    ]
}

/// Adds two CPUs in two sockets.
fn two_sockets(container: Container) -> Container {
    let file = |container: Container, cpu: u32, name: &str, text: &str| {
        container.file(&format!("sys/devices/system/cpu/cpu{cpu}/topology/{name}"), text)
    };
    (0..2).fold(container.file("sys/devices/system/cpu/online", "0-1\n"), |container, cpu| {
        let container = file(container, cpu, "core_siblings_list", &format!("{cpu}\n"));
        file(container, cpu, "thread_siblings_list", &format!("{cpu}\n"))
    })
}

fn start() -> Vec<Case> {
    let foreign = |text: &str| healthy().argument(&["--credential", "/credential"]).answer("sh", "foreign", text);
    let foreign_credential = |status: &str, age| foreign(&credential(status, age));
    vec![
        ("configuration-refused", "configuration", healthy().toml("[gpu]\ntype_name = \"brand\"\n")),
        (
            "munged-unresponsive",
            "munge",
            healthy().answer(
                "sh",
                "munge",
                "munge: Error: Failed to access \"/run/munge/munge.socket.2\": No such file or directory\n",
            ),
        ),
        (
            "munged-rejects-own-credential",
            "munge",
            healthy().answer("sh", "munge", &credential("Rewound credential (16)", -900)),
        ),
        (
            "key-of-the-image",
            "munge-key",
            healthy()
                .file("etc/munge/munge.key", "a key that everybody has")
                .modified_at("etc/munge/munge.key", 1_000)
                .file(".dockerenv", ""),
        ),
        ("clock-behind", "clock", foreign_credential("Rewound credential (16)", -600)),
        ("clock-ahead", "clock", foreign_credential("Expired credential (15)", 900)),
        ("clock-slightly-off", "clock", foreign_credential("Success (0)", 140)),
        ("another-key", "clock", foreign("unmunge: Error: Invalid credential\n")),
        ("state-of-another-cluster", "saved-state", healthy().file("var/lib/slurm/slurmctld/clustername", "old-lab|7")),
        ("no-address", "address", healthy().failure("address", 2, "")),
        ("killed-for-memory", "memory-kills", healthy().file("sys/fs/cgroup/memory.events", "oom 2\noom_kill 3\n")),
        (
            "killed-together",
            "oom-group",
            healthy()
                .file("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n")
                .file("sys/fs/cgroup/cgroup.controllers", "memory\n")
                .file("sys/fs/cgroup/memory.oom.group", "1\n"),
        ),
        (
            "limited",
            "limits",
            two_sockets(healthy())
                .file("sys/fs/cgroup/memory.events", "oom_kill 0\n")
                .file("proc/self/status", "Cpus_allowed_list:\t0\n"),
        ),
        ("more-cpus-than-present", "others", healthy().toml("[node]\ncpus = 9999\n")),
        ("proxy-without-exceptions", "proxy", healthy().variable("http_proxy", "http://user:secret@proxy:3128")),
    ]
}

/// A container whose agent reported a GPU fault.
fn faulty() -> Container {
    let kind = FaultKind::Xid(79);
    let identity = Identity { index: 3, ..Identity::default() };
    let (what, fix) = kind.describe();
    let (since, fix) = (1_795_278_308, fix.text(&identity));
    let gpu = GpuReport {
        identity,
        faults: vec![OpenFault { kind, policy: Policy::Drain, since, what, fix }],
        is_out: true,
        ..GpuReport::default()
    };
    let node = Some("GPU 3 excluded".to_owned());
    let report = Report { process: sys::proc::own_id(), gpus: vec![gpu], node, ..Report::default() };
    healthy().status(Vec::new()).file("run/slurminit/gpus.json", &serde_json::to_string(&report).unwrap())
}

/// A compute node: slurmd is in this state, and `node` is the controller's record of the node.
pub(crate) fn compute(state: UnitState, node: &str) -> Container {
    let unit = |name: &str, state| UnitSnapshot { name: name.to_owned(), state, ..UnitSnapshot::default() };
    healthy().status(vec![unit("munged", UnitState::Ready), unit("slurmd", state)]).answer("sinfo", "node", node)
}

fn node() -> Vec<Case> {
    let node = |line: &str| healthy().answer("sinfo", "node", line);
    let unit = |state, restarts: u32, why| {
        healthy().status(vec![UnitSnapshot {
            name: "slurmd".to_owned(),
            state,
            restarts,
            last_exit: Some(LastExit::Failure("exited with code 1".to_owned())),
            last_exit_why: why,
            ..UnitSnapshot::default()
        }])
    };
    let custom = |name: &str, text: &str| {
        healthy().file(&format!("config/{name}"), &format!("# USER_CUSTOMIZED=true\n{text}\n"))
    };
    vec![
        ("daemon-given-up", "daemons", unit(UnitState::GivenUp, 5, None)),
        ("daemon-waits-for-restart", "daemons", unit(UnitState::BackingOff, 2, None)),
        ("daemon-starts", "daemons", unit(UnitState::Starting, 0, None)),
        ("daemon-restarted", "daemons", unit(UnitState::Ready, 2, None)),
        (
            "daemon-was-unresponsive",
            "daemons",
            unit(UnitState::Ready, 1, Some(StopReason::Silent("it did not answer".to_owned()))),
        ),
        ("gpu-with-a-fault", "gpu-faults", faulty()),
        ("controller-down", "controller", healthy().failure("ping", 1, "Slurmctld(primary) at here is DOWN\n")),
        (
            "controller-rejects-key",
            "controller",
            healthy().failure("ping", 1, "Slurmctld(primary) at here is DOWN\n").failure(
                "node",
                1,
                "slurm_load_partitions: Protocol authentication error\n",
            ),
        ),
        (
            "peer-with-former-key",
            "munge-peers",
            healthy().answer(
                "slurminit",
                "controller-log",
                "2026-11-28T04:29:59.2Z error slurmctld: slurm_unpack_received_msg: [[old.lab]:4] auth_g_verify: REQUEST_PING \
                 has authentication error: Unspecified error\n\
                 2026-11-28T04:37:19.2Z error slurmctld: slurm_unpack_received_msg: [[c1.lab]:41683] auth_g_verify: REQUEST_PING \
                 has authentication error: Unspecified error\n",
            ),
        ),
        ("compute-unreachable", "called", compute(UnitState::Ready, "gpu:nvidia:1|idle*|none\n")),
        ("name-of-another-node", "name-taken", compute(UnitState::Starting, "gpu:nvidia:1|idle|none\n")),
        ("node-down", "node", node("gpu:nvidia:1|down*|Not responding\n")),
        ("drained-by-administrator", "drain", node("gpu:nvidia:1|drained|fan replaced\n")),
        ("drained-by-full-disk", "drain", node("gpu:nvidia:1|drained|SlurmdSpoolDir is full\n")),
        ("stale-drain", "drain", node("gpu:nvidia:1|drained|gres/gpu count reported lower than configured (0 < 1)\n")),
        ("drained-by-agent", "drain", node("gpu:nvidia:1|drained|slurminit: GPU 0 is lost\n")),
        ("drained-by-test-job", "drain", node("gpu:nvidia:1|drained|slurminit: test job: exit code 1\n")),
        ("leftover-drain", "drain", node("gpu:nvidia:1|drained|slurminit: reload\n")),
        ("node-offers-no-gpu", "gres", node("(null)|idle|none\n")),
        ("gres-lower", "gres", node("gpu:nvidia:2|inval|gres/gpu count reported lower than configured (1 < 2)\n")),
        ("no-gres", "gres", without_gpu()),
        (
            "own-gres-claims-more",
            "gres",
            custom(
                "slurm.conf",
                "SlurmctldHost=localhost\nSlurmctldPort=1\nSlurmdPort=2\nProctrackType=proctrack/linuxproc\nGresTypes=gpu\nNodeName=localhost Gres=gpu:nvidia:4",
            ),
        ),
        (
            "slurm-with-known-vulnerabilities",
            "slurm-security",
            healthy().file("usr/share/slurminit/slurm-version", "slurm 25.11.7\n"),
        ),
        (
            "low-real-memory",
            "real-memory",
            node("gpu:nvidia:1|inval|Low RealMemory (reported:900 < 100.00% of configured:1000)\n"),
        ),
        (
            "own-real-memory-too-high",
            "real-memory",
            custom(
                "slurm.conf",
                "SlurmctldHost=localhost\nSlurmctldPort=1\nSlurmdPort=2\nProctrackType=proctrack/linuxproc\nGresTypes=gpu\nNodeName=localhost Gres=gpu:nvidia:1 RealMemory=99999999",
            ),
        ),
        ("own-gres-names-a-missing-device", "own-files", custom("gres.conf", "Name=gpu Type=nvidia File=/dev/nvidia7")),
        ("file-without-marker", "own-files", healthy().file("config/gres.conf", "Name=gpu File=/dev/nvidia0\n")),
        (
            "outdated-files",
            "stale-files",
            healthy().file("etc/slurm/gres.conf", "# Written by slurminit\nAutoDetect=off\n"),
        ),
        ("slurmstepd-died", "lost-jobs", healthy().answer("squeue", "comments", &comments())),
        (
            "job-of-unknown-user",
            "waiting-jobs",
            healthy().answer("squeue", "waiting", "12|12|PENDING|1|0:00|main|1234|1234||||(null)|JobHeldAdmin|\n"),
        ),
        ("job-waits", "waiting-jobs", healthy().answer("squeue", "waiting", "12|12|PENDING|1|0:00|main|eve|1000||||(null)|Resources|\n13|13|PENDING|1|0:00|main|eve|1000||||(null)|Priority|\n")),
    ]
}

/// squeue's columns: job, state, AdminComment.
fn comments() -> String {
    let died = "slurminit: the job's slurmstepd was killed (out of memory?) or crashed";
    let row = |job: &str, state: &str, comment: &str| format!("{job:32}{state:16}{comment:128}\n");
    row("7", "CANCELLED", died) + &row("8_1", "RUNNING", died) + &row("9", "RUNNING", "the user's own")
}
