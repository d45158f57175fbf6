//! Leftover processes of ended jobs on nodes without cgroups.

use std::time::Instant;

use crate::docker::{Container, DEMO, Image, directory, docker};

/// User alice, who also runs a service.
const CONFIG: &str = r#"
[[partition]]
name = "debug"
OverSubscribe = "FORCE:8"

[[user]]
name = "alice"
uid = 1234

[[service]]
name = "notebook"
command = ["sleep", "9001"]
user = "alice"
"#;

/// Shell functions for alice's jobs. The jobs keep the GPU open as descriptor 3.
const SHELL: &str = r#"
cd /home/alice
job() { sbatch --parsable --output /tmp/job.%j "$@"; }
words() { cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n'; }
alive() { list=$(words); echo "$list" | grep -qx "$1"; } # an argument that a process has
soon() { # CONDITION
    tries=0
    until eval "$1"; do [ $((tries += 1)) -lt 1200 ] || { { echo "never: $1"; squeue; } >&2; exit 1; }; sleep 0.05; done
}
"#;

struct Cluster {
    container: Container,
    _config: tempfile::TempDir,
}

impl Cluster {
    fn new(gpus: &str) -> Self {
        let config = directory(&[("slurminit.toml", CONFIG)]);
        let image = Image::new(DEMO).with(["--hostname", "node1"]).with(["--env", &format!("DEMO_GPUS={gpus}")]);
        Self { container: image.json_log().mount(config.path(), "/config").serve(), _config: config }
    }

    /// Runs a shell line as alice and returns its output.
    #[track_caller]
    fn alice(&self, line: &str) -> String {
        let line = format!("{SHELL}{line}");
        docker(["exec", "--user", "alice", &self.container.name, "sh", "-euc", &line]).ok().trim_end().to_owned()
    }

    /// Starts a shell line as alice in the background.
    fn spawn_as_alice(&self, line: &str) {
        let line = format!("{SHELL}{line}");
        docker(["exec", "--detach", "--user", "alice", &self.container.name, "sh", "-euc", &line]).ok();
    }

    /// The node is idle. A failed epilog would drain it.
    #[track_caller]
    fn assert_node_is_idle(&self) {
        self.container.until("[ \"$(sinfo --noheader --format %T)\" = idle ]");
    }
}

/// The next job would share the GPU with a process that still has it open.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reassigns_gpu_only_after_last_process_released_it() {
    let cluster = Cluster::new("1");
    let found = cluster.alice(
            r#"
            printf '#!/bin/sh\nexec 3</dev/nvidia0\nexec sleep 1000\n' >hold
            printf '#!/bin/sh\ntrap : TERM\nexec 3</dev/nvidia0\nwhile :; do sleep 1001; done\n' >deaf
            cp /bin/sleep "$(printf 'a\033[2J')"
            chmod +x hold deaf
            first=$(job --gres=gpu:1 --wrap '
                setsid nohup ./hold >/dev/null 2>&1 &
                setsid env -i ./deaf >/dev/null 2>&1 &
                setsid "$(printf "./a\033[2J")" 1002 3</dev/nvidia0 >/dev/null 2>&1 &
                until [ $(cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\\0" "\\n" | grep -cx "100[012]") = 3 ]; do sleep 0.05; done')
            second=$(job --gres=gpu:1 --wrap 'ls -l /proc/[0-9]*/fd 2>/dev/null | grep nvidia0; echo looked')
            soon "grep -qs looked /tmp/job.$second"
            cat /tmp/job.$second
            "#,
    );
    assert_eq!(found, "looked");
    let log = cluster.container.log();
    let ended = cluster.container.records("leftover-ended");
    for name in ["sleep", "deaf", "a?[2J"] {
        let record = ended.iter().find(|record| record["fields"]["name"] == name);
        let fields = &record.unwrap_or_else(|| panic!("{name}: {log}"))["fields"];
        // Under load, the Epilog may have no time to read which files each process had open.
        let devices = fields["devices"].as_str().unwrap_or("/dev/nvidia0");
        assert_eq!((fields["user"].as_str(), devices), (Some("alice"), "/dev/nvidia0"), "{log}");
    }
    assert!(!log.contains("\x1b[2J"), "{log}");
    cluster.assert_node_is_idle();
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn ends_only_leftovers_of_ended_job() {
    let cluster = Cluster::new("2");
    cluster.spawn_as_alice("SLURM_JOB_ID=1 exec sleep 9002");
    cluster.spawn_as_alice("srun --cpu-bind=none sleep 9003");
    cluster.spawn_as_alice("salloc sh -c 'setsid sleep 9004; true'");
    cluster.alice(
        r#"
        soon 'alive 9003 && alive 9004'
        ended=$(job --gres=gpu:1 --wrap '
            setsid sleep 1000 &
            setsid env -i sleep 1001 3</dev/nvidia0 &
            setsid env -i sh -c "sleep 1002; true" &
            setsid sh -c "env -i sleep 1003; true" &
            until [ -e go ]; do sleep 0.05; done')
        runs=$(job --gres=gpu:1 --wrap '
            setsid sleep 2000 &
            setsid sh -c "env -i sleep 2001 3</dev/nvidia0; true" &
            until [ -e end ]; do sleep 0.05; done')
        for id in 1000 1001 1002 1003 2000 2001; do soon "alive $id"; done
        touch go
        soon "! alive 1000"
        soon '[ -z "$(squeue --noheader --jobs $ended 2>/dev/null)" ]'
        soon "! squeue --noheader --states all --jobs $ended --format %T | grep -q COMPLETING"
        for id in 1000 1001 1003; do alive $id && { echo "$id is left"; exit 1; }; done
        for id in 2000 2001 9001 9002 9003 9004; do alive $id || { echo "$id was ended"; exit 1; }; done
        alive salloc && alive srun
        touch end
        soon "! alive 2000 && ! alive 2001"
        for id in 9001 9002 9003 9004; do alive $id || { echo "$id was ended"; exit 1; }; done
        "#,
    );
    cluster.container.sh("scancel --user alice");
    // A process without a job ID in its environment ends with alice's last job.
    cluster.alice("soon '! alive 1002'; alive 9001; alive 9002");
    cluster.assert_node_is_idle();
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn kills_five_hundred_leftover_processes() {
    let cluster = Cluster::new("1");
    cluster.alice(
        r#"
        job --gres=gpu:1 --wrap '
            for i in $(seq 500); do setsid env -i sh -c "trap : TERM; while :; do sleep 1000; done" 3</dev/nvidia0 & done
            until [ $(cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\\0" "\\n" | grep -cx "[1]000") -ge 500 ]; do sleep 0.5; done; touch up; until [ -e go ]; do sleep 0.05; done'
        soon '[ -e up ]'
        "#,
    );
    cluster.alice("touch go; soon '! alive 1000'");
    cluster.assert_node_is_idle();
    let log = cluster.container.log();
    assert!(log.lines().count() < 100, "{log}");
}

const COUNT: &str = "cat /proc/[0-9]*/comm 2>/dev/null | grep -c forker || true";

/// Every process is short-lived, has its own session and an empty environment.
const FORKER: &str = r#"
    printf '#!/usr/bin/perl\nuse POSIX;\n%%ENV=(); $SIG{TERM}="IGNORE"; open F, "</dev/nvidia0";\nwhile (1) { exit if fork; setsid; }\n' >forker
    chmod +x forker
    job --gres=gpu:1 --wrap './forker & ./forker & ./forker & sleep 0.5'
"#;

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn ends_fork_bomb_and_keeps_node() {
    let cluster = Cluster::new("1");
    // The `notebook` service also runs as alice and is no leftover, so slurminit cannot signal all her processes at once.
    cluster.alice(FORKER);
    cluster.alice("soon '[ -z \"$(squeue --noheader)\" ]'");
    cluster.assert_node_is_idle();
    // Docker can deliver the log late.
    let is_reported = || !cluster.container.records("leftovers-survive").is_empty();
    let begin = Instant::now();
    while cluster.container.sh(COUNT) != "0" && !is_reported() {
        assert!(begin.elapsed().as_secs() < 60, "{}", cluster.container.log());
    }
    // The remedy that the log suggests. A process that forks during kill(-1) can escape, so repeat it.
    let begin = Instant::now();
    while cluster.container.sh(COUNT) != "0" {
        assert!(begin.elapsed().as_secs() < 60, "{}", cluster.container.sh("ps -ef"));
        docker(["exec", "--user", "alice", &cluster.container.name, "sh", "-c", "kill -KILL -1"]);
    }
}

/// On reconfiguration slurmd re-executes itself under Debian's other name for the binary.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn end_of_root_job_does_not_kill_slurmd() {
    let cluster = Cluster::new("1");
    cluster.container.sh("old=$(pgrep -o slurmd); scontrol reconfigure; \
         timeout 120 sh -c \"until new=\\$(pgrep -o slurmd) && [ \\$new != $old ]; do sleep 0.05; done\"");
    cluster.assert_node_is_idle();
    let slurmd = cluster.container.sh("pgrep -o slurmd");
    cluster.container.sh("srun true");
    cluster.assert_node_is_idle();
    assert_eq!(cluster.container.sh("pgrep -o slurmd"), slurmd);
}
