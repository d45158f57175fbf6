//! Metrics and the web page of a running cluster with simulated GPUs.

use std::time::{Duration, Instant};

use crate::docker::{Container, DEMO, Image, PLAIN, directory};

const CONFIG: &str = "[metrics]\nlisten = '127.0.0.1:9835'\n[[user]]\nname = 'alice'\nuid = 1501\n";

fn served(image: &Image) -> (tempfile::TempDir, Container) {
    let config = directory(&[("slurminit.toml", CONFIG)]);
    let container = image.clone().mount(config.path(), "/config").serve();
    container.until("slurminit status | grep -q \"metrics *ready\"");
    (config, container)
}

/// The HTTP response. The image has no curl.
fn get(container: &Container, path: &str) -> String {
    container.sh(&format!(
        "timeout 60 bash -c \"exec 3<>/dev/tcp/127.0.0.1/9835; printf 'GET {path} HTTP/1.1\\r\\nHost: 127.0.0.1:9835\\r\\n\\r\\n' >&3; cat <&3\""
    ))
}

/// The value of a series.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit(' ').next()?.trim().parse().ok()
}

fn pid(container: &Container) -> String {
    container
        .sh("slurminit status --json | grep -A3 '\"name\": \"metrics\"' | grep -o '\"pid\": [0-9]*' | grep -o '[0-9]*'")
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn exports_gpu_job_daemon_and_cluster_metrics() {
    // Root in the container needs SYS_PTRACE to read another user's links in /proc. slurminit passes it to no unit.
    let (_config, container) = served(&Image::new(DEMO).with(["--env", "DEMO_GPUS=4", "--cap-add", "SYS_PTRACE"]));
    container.sh("su alice -c 'cd /tmp; sbatch --gres=gpu:2 --wrap \"sleep 600\"; sbatch --gres=gpu:4 --wrap true'");
    container.until("squeue -ht R | grep -q .");
    // slurmctld is queried at most every 5 s.
    let deadline = Instant::now() + Duration::from_secs(120);
    let is_reported = |text: &str| text.contains("nvidia_smi_temperature_gpu{") && text.contains("user=\"alice\"} 1");
    while !is_reported(&get(&container, "/metrics")) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(200));
    }
    let text = get(&container, "/metrics");
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("text/plain; version=0.0.4"), "{text}");
    for (series, expected) in [
        ("slurminit_slurm_up", 1.0),
        ("slurminit_ready", 1.0),
        ("slurminit_daemon_up{daemon=\"slurmd\"}", 1.0),
        ("slurminit_daemon_up{daemon=\"metrics\"}", 1.0),
        ("slurm_nodes_mix", 1.0),
        ("slurm_queue_running", 1.0),
        ("slurm_queue_pending", 1.0),
        ("slurm_user_jobs_running{user=\"alice\"}", 1.0),
        ("slurm_gpus_alloc", 2.0),
        ("slurm_gpus_total", 4.0),
        ("nvidia_smi_last_collect_success", 1.0),
    ] {
        let actual = value(&text, series);
        // A node with all CPUs allocated is not mixed.
        let is_expected =
            actual == Some(expected) || (series == "slurm_nodes_mix" && value(&text, "slurm_nodes_alloc") == Some(1.0));
        assert!(is_expected, "{series}: {actual:?}\n{text}");
    }
    let jobs = text.matches("slurmjobid=\"1\",user=\"alice\"} 1").count();
    assert_eq!((jobs, text.matches("nvidia_smi_temperature_gpu{").count()), (2, 4), "{text}");
    let page = get(&container, "/");
    assert!(page.contains("content-security-policy: default-src 'none'") && page.contains("nosniff"), "{page}");
    assert!(!page.to_lowercase().contains("access-control-allow"), "{page}");
    let state = get(&container, "/api/state");
    assert!(state.contains("\"user\":\"alice\"") && state.contains("\"is_simulated\":true"), "{state}");
    for path in ["/etc/passwd", "/../etc/passwd", "/metrics/", "//metrics", "/%2e%2e/etc/passwd"] {
        assert!(get(&container, path).starts_with("HTTP/1.1 404"), "{path}");
    }
    // No capabilities, and not the group that can open GPUs.
    let status = container.sh(&format!("cat /proc/{}/status", pid(&container)));
    for line in
        ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Gid:\t65534\t65534\t65534"]
    {
        assert!(status.contains(line), "{line}: {status}");
    }
    let uid = container.sh("id -u slurminit");
    assert!(status.contains(&format!("Uid:\t{uid}\t{uid}\t{uid}")), "{status}");
    let files = container.exec(&["ls", "-l", &format!("/proc/{}/fd", pid(&container))]);
    assert!(files.code == 0 && files.stdout.contains("socket:") && !files.stdout.contains("/dev/nvidia"), "{files:?}");
}

/// Shell code that prints the agent's report on eight GPUs, with special characters in names.
const EIGHT: &str = "for i in 0 1 2 3 4 5 6 7; do \
    printf '%s{\"vendor\":\"nvidia\",\"index\":%d,\"uuid\":\"GPU-%d\",\"pci_address\":null,\"model\":\"NVIDIA \\\\\"H200\\\\\"\\\\n\",\"file\":\"/dev/nvidia%d\",\
\"offered\":[],\"jobs\":[{\"job\":%d,\"user\":\"eve<b>\"}],\"since\":1,\"condition\":{\"index\":%d,\"memory_mib\":[1,2],\"processes\":[],\"slowdowns\":[],\
\"temperature\":40,\"pcie\":null,\"ecc\":null,\"compute_mode\":null,\"is_persistent\":null,\"utilization\":50},\"readings\":{\"power_mw\":100000},\
\"faults\":[],\"counts\":[],\"is_out\":false}' \"$comma\" $i $i $i $i $i; comma=,; done";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn many_connections_slow_reader_and_kill_block_no_scrape() {
    let config =
        directory(&[("slurminit.toml", &format!("{CONFIG}[agent]\ninterval = 0\n[supervise]\nprobe_interval = 0\n"))]);
    let container = Image::new(PLAIN).mount(config.path(), "/config").serve();
    container.until("slurminit status | grep -q \"metrics *ready\"");
    container.sh(&format!(
        "{{ printf '{{\"pid\":1,\"start_ticks\":%d,\"at\":%d,\"interval_ms\":3600000,\"gpus\":[' $(cut -d ' ' -f 22 /proc/1/stat) $(date +%s); comma=; {EIGHT}; printf '],\"recent\":[]}}'; }} >/run/slurminit/new && mv /run/slurminit/new /run/slurminit/gpus.json"
    ));
    let text = get(&container, "/metrics");
    assert_eq!(text.matches("nvidia_smi_temperature_gpu{").count(), 8, "{text}");
    assert!(text.contains("name=\"NVIDIA \\\"H200\\\"\\\\x0a\""), "{text}");
    // 500 idle connections, 500 with a part of a request, and 300 that read no response.
    container.sh(
        "bash -c 'ulimit -n 4096; n=0; open() { exec {fd}<>/dev/tcp/127.0.0.1/9835 && printf \"$1\" >&$fd && n=$((n+1)); }; \
         for i in $(seq 500); do open \"\"; open \"GET /metrics HT\"; done; \
         for i in $(seq 300); do open \"GET /metrics HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n\"; done; \
         echo $n >/tmp/crowd; sleep 600' >/dev/null 2>&1 &",
    );
    container.until("[ -s /tmp/crowd ]");
    assert_eq!(container.sh("cat /tmp/crowd"), "1300");
    for _ in 0..5 {
        assert!(get(&container, "/metrics").starts_with("HTTP/1.1 200"));
    }
    // A truncated report.
    container.sh(
        "head -c 300 /run/slurminit/gpus.json >/run/slurminit/new && mv /run/slurminit/new /run/slurminit/gpus.json",
    );
    let text = get(&container, "/metrics");
    assert!(text.starts_with("HTTP/1.1 200") && !text.contains("uuid="), "{text}");
    let old_pid = pid(&container);
    container.sh(&format!("kill -KILL {old_pid}"));
    container.until(&format!("slurminit status | grep \"metrics *ready\" | grep -qv \" {old_pid} \""));
    let text = get(&container, "/metrics");
    assert_eq!(value(&text, "slurminit_daemon_restarts_total{daemon=\"metrics\"}"), Some(1.0), "{text}");
    // slurmctld hangs and is not restarted (probe_interval = 0). The other metrics remain when its last reply is stale.
    container.sh("pkill -STOP slurmctld");
    let deadline = Instant::now() + Duration::from_secs(120);
    let text = loop {
        let text = get(&container, "/metrics");
        if value(&text, "slurminit_slurm_up") == Some(0.0) {
            break text;
        }
        assert!(Instant::now() < deadline, "{text}");
        std::thread::sleep(Duration::from_millis(200));
    };
    container.sh("pkill -CONT slurmctld");
    assert!(!text.contains("\nslurm_") && text.contains("slurminit_daemon_up"), "{text}");
}

/// Shell code that edits the simulated NVML: the first GPU is a Hopper with active tensor cores, the second is older.
const TENSORS: &str = "{ awk '/^name/ { if (n++) { print \"name = \\\"Simulated NVIDIA A100\\\"\"; next } print; print \"condition = { tensor = 40.5 }\"; next } \
    !/^condition/' /etc/fake-nvml.toml; printf '%s'; } >/tmp/new && mv /tmp/new /etc/fake-nvml.toml";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn dcgm_metrics_report_tensor_activity_of_supported_gpus() {
    let agent = "[agent]\ninterval = 0.2\n";
    let serve = |dcgm: &str| {
        let config = directory(&[("slurminit.toml", &format!("{}{agent}", CONFIG.replacen('\n', dcgm, 1)))]);
        let image = Image::new(DEMO).with(["--env", "DEMO_GPUS=2"]).mount(config.path(), "/config");
        let container = image.json_log().serve();
        container.sh(&TENSORS.replace("%s", ""));
        // The agent checks only once whether a GPU supports the metric.
        container.sh("slurminit restart agent");
        (config, container)
    };
    let (_config, container) = serve("\ndcgm = true\n");
    let active = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu=";
    let until = |condition: &dyn Fn(&str) -> bool| {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let text = get(&container, "/metrics");
            if condition(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "{text}");
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    let text = until(&|text| text.contains(active));
    let series: Vec<&str> = text.lines().filter(|line| line.starts_with(active)).collect();
    assert!(series.len() == 1 && series[0].contains("gpu=\"0\"") && series[0].ends_with(" 0.405"), "{series:?}");
    // A profiling error is not a fault of the GPU.
    container.sh(&TENSORS.replace("%s", "[[fault]]\\nat = \"gpm\"\\nkind = \"gpu-is-lost\"\\n"));
    let text = until(&|text| !text.contains(active));
    assert!(text.contains("DCGM_FI_DEV_GPU_TEMP{gpu=\"0\""), "{text}");
    assert!(container.records("gpu-fault").is_empty(), "{}", container.log());
    assert_eq!(container.sh("sinfo --noheader --format %T"), "idle");
    // DCGM's names are off by default.
    let (_config, container) = serve("\n");
    container.until("grep -q A100 /run/slurminit/gpus.json");
    assert!(!get(&container, "/metrics").contains("DCGM_"));
}
