//! Effects of the generated slurm.conf: fast requeue, MPI, job history, memory limits and node names.

use serde_json::Value;

use crate::docker::{Image, PLAIN, Volume, directory, records};
use crate::members::Cluster;

/// With Slurm's defaults a requeued job starts after two to three minutes.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn requeued_batch_job_starts_soon() {
    let container = Image::new(PLAIN).serve();
    let job = container.sh("sbatch --parsable --output=/dev/null --wrap 'echo up >>/tmp/starts; exec sleep 1000'");
    container.until("grep -qs up /tmp/starts");
    container.sh(&format!("scontrol requeue {job}"));
    // Takes about 2 s; at least 120 s with Slurm's defaults.
    let outcome = container.wait_until(100, "[ $(grep -c up /tmp/starts) = 2 ]");
    assert_eq!(outcome.code, 0, "{}", container.sh("squeue"));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn srun_connects_tasks_of_mpi_program() {
    let container = Image::new(PLAIN).serve();
    // An MPI library needs its rank and the address of the PMIx server.
    let ranks =
        container.sh("srun --ntasks=2 --overcommit sh -c 'echo \"$PMIX_RANK ${PMIX_SERVER_URI41:+served}\"' | sort");
    assert_eq!(ranks, "0 served\n1 served");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn sacct_shows_ended_jobs_in_next_container() {
    let state = Volume::new("state");
    let cluster = Image::new(PLAIN).with(["--hostname", "node1"]).volume(&state, "/var/lib/slurm");
    let first = cluster.serve();
    // sacct run by root before the first job ends must not take ownership of the log.
    first.sh("sacct --completion");
    assert_eq!(first.sh("stat -c '%U %a' /var/lib/slurm/jobcomp"), "slurm 750");
    assert_eq!(first.sh("stat -c %U /var/lib/slurm/jobcomp/jobs"), "slurm");
    first.sh("srun --job-name=fine true; srun --job-name=broken false || :");
    first.until("grep -q broken /var/lib/slurm/jobcomp/jobs");
    assert_eq!(first.stop(), 0, "{}", first.log());
    drop(first);

    let second = cluster.serve();
    let history = "sacct --completion --noheader --parsable2 --format=jobname,state,uid";
    assert_eq!(second.sh(history), "fine|COMPLETED|0\nbroken|FAILED|0");
    // The log lists the jobs of all users, regardless of PrivateData.
    let read = second.exec(&["su", "-s", "/bin/sh", "nobody", "-c", "cat /var/lib/slurm/jobcomp/jobs"]);
    assert!(read.code != 0 && read.stdout.is_empty(), "{read:?}");
}

/// The settings in docs/configuration.md that limit memory without cgroups.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn limits_memory_where_configured() {
    let conf = "[slurm.conf]\nJobAcctGatherType = \"jobacct_gather/linux\"\n\
                JobAcctGatherParams = \"OverMemoryKill,UsePss\"\nJobAcctGatherFrequency = \"task=1\"\n";
    let config = directory(&[("slurminit.toml", conf)]);
    let container = Image::new(PLAIN).mount(config.path(), "/config").serve();
    // tail buffers a whole line in memory.
    let fills = |mib: u32| format!("head -c {mib}M /dev/zero | tail | sleep 1000");
    let submit =
        |mib: u32| container.sh(&format!("sbatch --parsable --mem=100 --output=/tmp/%j --wrap '{}'", fills(mib)));
    let (greedy, modest) = (submit(300), submit(50));
    container.until(&format!("grep -qs exceeded.memory.limit /tmp/{greedy}"));
    container.until(&format!("scontrol show job {greedy} | grep -q JobState=FAILED"));
    let memory = format!("sstat --allsteps --noheader --jobs={modest} --format=MaxRSS");
    container.until(&format!("{memory} | grep -q [1-9]"));
    assert!(container.sh(&format!("scontrol show job {modest}")).contains("JobState=RUNNING"));
}

/// Slurm accepts any name for the node if its only node is called localhost.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn finds_node_with_own_name_only_by_that_name() {
    for (host, address) in [("box", "127.0.0.1"), ("gpu1", "172.")] {
        let container = Image::new(PLAIN).with(["--env", "SLURMINIT_NODE_NAME=gpu1", "--hostname", host]).serve();
        let first = "srun sh -c 'getent hosts \"$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\"'";
        let found = container.sh(first);
        assert!(found.starts_with(address) && found.ends_with("gpu1"), "{host}: {found}");
        let typo = container.exec(&["srun", "--nodelist=nosuch", "true"]);
        assert!(typo.code != 0 && typo.stderr.contains("Invalid node name"), "{typo:?}");
        let typo = container.exec(&["scontrol", "update", "nodename=typo", "state=drain", "reason=x"]);
        assert!(typo.code != 0 && typo.stderr.contains("Invalid node name"), "{typo:?}");
        container.until("[ \"$(sinfo --noheader --format='%N %T')\" = 'gpu1 idle' ]");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn config_overrides_allows_more_cpus_than_detected() {
    let conf = Image::new(PLAIN).with(["--hostname", "node1"]).run(&["cat", "/etc/slurm/slurm.conf"]).ok();
    let lines = conf.lines().filter(|line| !line.starts_with("SlurmdParameters="));
    let lines = lines.map(|line| match line.starts_with("NodeName=") {
        true => "NodeName=localhost CPUs=512 RealMemory=1024 State=UNKNOWN",
        false => line,
    });
    let custom: Vec<&str> =
        ["# USER_CUSTOMIZED=true", "SlurmdParameters=config_overrides"].into_iter().chain(lines).collect();
    let config = directory(&[("slurm.conf", &custom.join("\n"))]);
    let container = Image::new(PLAIN).with(["--hostname", "node1"]).json_log().mount(config.path(), "/config").serve();
    assert_eq!(container.sh("sinfo --noheader --format='%c %T'"), "512 idle");
    let log = container.log();
    let is_error = |record: &Value| record["source"] == "slurminit" && record["level"] == "error";
    assert!(log.contains("CPUs=512") && !records(&log).iter().any(is_error), "{log}");
}

/// Slurm rejects every `--tmp` request on a node without TmpDisk.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_can_request_space_in_tmp() {
    let container = Image::new(PLAIN).with(["--tmpfs", "/tmp:size=2500m,exec"]).serve();
    let output =
        container.sh("sinfo --noheader --format='%d %T'; srun --tmp=1G echo granted; srun --tmp=3G true 2>&1; true");
    let output: Vec<&str> = output.lines().collect();
    assert_eq!(output.get(..2), Some(["2048 idle", "granted"].as_slice()), "{output:?}");
    assert!(output.len() > 2, "--tmp=3G was granted");
    let config = directory(&[("slurminit.toml", "[node]\ntmp_disk_mib = 999999\n")]);
    let larger = Image::new(PLAIN).with(["--tmpfs", "/tmp:size=2500m,exec"]).mount(config.path(), "/config").serve();
    assert_eq!(larger.sh("sinfo --noheader --format='%d %T'"), "2500 idle", "{}", larger.log());
    let config = directory(&[("slurminit.toml", "[node]\ntmp_disk_mib = 0\n")]);
    let container = Image::new(PLAIN).mount(config.path(), "/config").serve();
    assert_eq!(container.sh("sinfo --noheader --format=%d"), "0");
}

/// By default Slurm leaves a job above the partition's limits pending forever.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_above_limits_of_partition_is_rejected() {
    let conf = "[[partition]]\nname = 'short'\nMaxTime = '1-00:00:00'\nDefaultTime = '00:10:00'\n\
                [[partition]]\nname = 'long'\nMaxTime = '20-0'\n";
    let config = directory(&[("slurminit.toml", conf)]);
    let container = Image::new(PLAIN).mount(config.path(), "/config").serve();
    let submit =
        |options: &str| container.exec(&["sh", "-c", &format!("sbatch -o /dev/null {options} --wrap 'sleep 100'")]);
    for options in ["-t 10-0", "-p long -t 30-0", "-p short,long -t 30-0"] {
        let outcome = submit(options);
        assert!(outcome.code != 0 && outcome.stderr.contains("time limit"), "{options}: {outcome:?}");
    }
    // One of several partitions is enough.
    for options in ["-t 1-0", "-p short,long -t 10-0", "-p long"] {
        assert_eq!(submit(options).code, 0, "{options}");
    }
    // A partition that is down accepts jobs for later.
    container.sh("scontrol update partitionname=long state=down");
    assert_eq!(submit("-p long").code, 0);
    container.sh("scontrol update partitionname=long state=up; scontrol update nodename=ALL state=drain reason=x");
    assert_eq!(submit("").code, 0);
    container.sh("scontrol update nodename=ALL state=resume");
    // A default time limit needs no accounting.
    container.sh("scancel -u root; sbatch --parsable -o /dev/null --wrap 'sleep 100'");
    assert_eq!(container.sh("squeue --noheader --format='%P %l' --states=all --sort=-i | head -n 1"), "short 10:00");
}

/// A job may be submitted while a node is drained or down.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn cluster_rejects_only_jobs_above_limits_of_partition() {
    let cluster = Cluster::new("[[partition]]\nname = 'short'\nMaxTime = '1-0'\n");
    let _node = cluster.compute("c1", 1);
    let submit = |options: &str| {
        cluster.controller.exec(&["sh", "-c", &format!("sbatch -o /dev/null {options} --wrap 'sleep 1000'")])
    };
    let refused = submit("-t 2-0");
    assert!(refused.code != 0 && refused.stderr.contains("time limit"), "{refused:?}");
    for state in ["", "drain reason=x", "down reason=x"] {
        if !state.is_empty() {
            cluster.controller.sh(&format!("scontrol update nodename=c1 state={state}"));
        }
        let accepted = submit("--gres=gpu:1");
        assert_eq!(accepted.code, 0, "{state}: {accepted:?}");
    }
}

/// The query of snakemake's executor with `--slurm-status-command squeue`.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn squeue_shows_ended_jobs_without_accounting() {
    let container = Image::new(PLAIN).serve();
    let query = "squeue --format='%i|%T' --states=all --noheader --name run-1";
    let job = container.sh("sbatch --parsable -o /dev/null --job-name run-1 --wrap true");
    container.until(&format!("{} | grep -q \"^{job}|COMPLETED\"", query.replace('\'', "\"")));
    let failed = container.exec(&["srun", "--job-name", "run-1", "false"]);
    assert_eq!(failed.code, 1);
    container.until(&format!("{} | grep -q \"|FAILED\"", query.replace('\'', "\"")));
    // The executor queries every 40 s at first.
    let age = container.sh("scontrol show config | sed -n 's/^MinJobAge *= \\([0-9]*\\) sec/\\1/p'");
    assert!(age.parse::<u32>().unwrap() >= 120, "{age}");
    let sacct = container.exec(&["sacct", "--name", "run-1"]);
    assert!(sacct.code != 0 && sacct.stderr.contains("accounting storage is disabled"), "{sacct:?}");
}
