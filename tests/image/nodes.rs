//! `slurminit nodes`, `drain`, `resume` and `submit`, with real daemons.

use crate::docker::{Container, DEMO, Image, directory};
use crate::members::Cluster;

/// The GPUs of a node in `slurminit nodes`: index, job and user.
fn gpus(container: &Container, node: &str) -> Vec<String> {
    let text = container.sh("slurminit nodes");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let is_number = |word: &&str| word.parse::<u32>().is_ok();
    let rows = words.filter(|words| words.first() == Some(&node) && words.get(2).is_some_and(is_number));
    rows.map(|words| format!("{} {} {}", words[2], words[words.len() - 2], words[words.len() - 1])).collect()
}

/// Submits a job and waits until it runs. Returns the job ID.
#[track_caller]
fn start_job(container: &Container, submit: &str) -> String {
    let job = container.sh(submit);
    container.until(&format!("squeue -h -j {job} -t R | grep -q ."));
    job
}

const AS_NOBODY: &str = "su -s /bin/sh nobody -c";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn shows_gpus_with_job_and_user_and_drains_and_resumes() {
    let container = Image::new(DEMO).with(["--env", "DEMO_GPUS=4"]).serve();
    assert_eq!(gpus(&container, "localhost"), ["0 free -", "1 free -", "2 free -", "3 free -"]);
    let job = start_job(
        &container,
        &format!("{AS_NOBODY} 'cd /tmp; sbatch --parsable --gres=gpu:2 -o /dev/null --wrap \"sleep 1000\"'"),
    );
    let allocated = |index: u32| format!("{index} {job} nobody");
    assert_eq!(gpus(&container, "localhost"), [allocated(0), allocated(1), "2 free -".into(), "3 free -".into()]);
    let json: serde_json::Value = serde_json::from_str(&container.sh("slurminit nodes --json")).unwrap();
    let gpu = &json["nodes"][0]["gpus"][1];
    assert_eq!(
        (&gpu["state"], &gpu["user"], &gpu["memory_mib"]),
        (&"allocated".into(), &"nobody".into(), &143_771.into())
    );
    assert_eq!(gpu["model"], "Simulated NVIDIA H200", "{json}");

    // A reason with control characters that resembles slurminit's own reasons.
    let output = container.sh("slurminit drain localhost --reason \"slurminit: \u{1b}[2J fan\"");
    assert!(output.contains(&format!("{job} of nobody")), "{output}");
    let table = container.sh("slurminit nodes");
    assert!(table.contains("slurminit: \\x1b[2J fan"), "{table}");
    assert!(container.sh("slurminit drain localhost --reason other").contains("by hand: slurminit: "));
    let waited = container.exec(&["slurminit", "drain", "localhost", "--wait", "1"]);
    assert!(waited.code == 1 && waited.stderr.contains(&format!("{job} of nobody")), "{waited:?}");
    container.sh(&format!("scancel {job}"));
    container.sh("slurminit drain localhost --wait 60");
    let resumed = container.sh("slurminit resume localhost");
    assert!(resumed.starts_with("localhost accepts jobs again; it was drained (by hand: slurminit: "), "{resumed}");
    container.sh("srun --gres=gpu:1 true");
    container.until("sinfo --noheader --format %T | grep -qx idle");
    container.sh("slurminit resume localhost");
    assert_eq!(container.sh("sinfo --noheader --format %T"), "idle");

    // Rejects an unprivileged user and unknown nodes.
    let refused = container.exec(&["su", "-s", "/bin/sh", "nobody", "-c", "slurminit drain localhost"]);
    assert!(refused.code == 1 && refused.stderr.contains("root"), "{refused:?}");
    for (node, message) in
        [("other", "no node named other; the cluster has localhost"), ("a;b", "not a node or list of nodes")]
    {
        let refused = container.exec(&["slurminit", "resume", node]);
        assert!(refused.code == 1 && refused.stderr.contains(message), "{refused:?}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn every_container_lists_and_drains_all_nodes() {
    let cluster = Cluster::new("");
    let controller = &cluster.controller;
    assert!(controller.sh("slurminit nodes").contains("1024"));
    // c2 registers first, so the controller's order differs from the order of names.
    let second = cluster.compute("c2", 3);
    let first = cluster.compute("c1", 2);
    controller.sh("cd /tmp; sbatch -w c2 --gres=gpu:1 -o /dev/null --wrap 'sleep 1000'");
    let job = start_job(controller, "cd /tmp; sbatch --parsable -N2 --gres=gpu:1 -o /dev/null --wrap 'sleep 1000'");
    for container in [controller, &first, &second] {
        assert_eq!(gpus(container, "c1"), [format!("0 {job} root"), "1 free -".to_owned()]);
        assert_eq!(gpus(container, "c2"), ["0 1 root".to_owned(), format!("1 {job} root"), "2 free -".to_owned()]);
        assert!(container.sh("slurminit nodes").contains("Simulated NVIDIA H200 140 GiB"));
    }
    let json: serde_json::Value = serde_json::from_str(&first.sh("slurminit nodes --json")).unwrap();
    assert_eq!((&json["most_nodes"], &json["nodes"][1]["gpus"][2]["memory_mib"]), (&1024.into(), &143_771.into()));

    let output = first.sh("slurminit drain 'c[1-2]' --reason 'a fan'");
    assert!(output.contains("c1 ") && output.contains("c2 ") && output.contains("a fan"), "{output}");
    assert_eq!(controller.sh("sinfo --noheader --nodes c2 --format '%T %E'"), "draining a fan");
    // If one node does not exist, none is changed.
    let refused = second.exec(&["slurminit", "resume", "c1", "c9"]);
    assert!(refused.code == 1 && refused.stderr.contains("c9"), "{refused:?}");
    assert_eq!(controller.sh("sinfo --noheader --nodes c1 --format '%T %E'"), "draining a fan");
    assert_eq!(second.sh("slurminit resume 'c[1-2]' | grep -c 'accepts jobs again; it was draining (a fan)'"), "2");
    cluster.until("slurminit nodes | grep -q \"c1 *mixed *1 .* free\"");
}

/// Each GPU of the node has its own type. Each of 20 jobs is allocated exactly the requested GPUs. No two jobs use a GPU at the same time.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn submit_allocates_exactly_requested_gpus() {
    let container = Image::new(DEMO).with(["--env", "DEMO_GPUS=4", "--env", "SLURMINIT_GPU_TYPE_NAME=index"]).serve();
    let script = "for gpu in $(echo $SLURM_JOB_GPUS | tr , \" \"); do mkdir /tmp/busy.$gpu || touch /tmp/twice; done; \
        echo $SLURM_JOB_GPUS; sleep 0.2; \
        for gpu in $(echo $SLURM_JOB_GPUS | tr , \" \"); do rmdir /tmp/busy.$gpu; done";
    let sets = ["0", "3", "1,3", "0,2", "0,1,2,3", "2", "1,2,3", "0,3", "1", "2,3"];
    let targets: Vec<String> = sets.iter().chain(&sets).map(|set| format!("-t localhost::{set}")).collect();
    container.sh(&format!("printf '%s' '{script}' >/tmp/script"));
    let submit = format!(
        "cd /tmp && mkdir out && chmod 777 out && {AS_NOBODY} 'cd /tmp && slurminit submit -m 10M -o out/%j --wait {} -- sh /tmp/script'",
        targets.join(" ")
    );
    let outcome = container.exec(&["sh", "-c", &submit]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let jobs: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(jobs.len(), sets.len() * 2, "{outcome:?}");
    for (job, set) in jobs.iter().zip(sets.iter().chain(&sets)) {
        assert_eq!(container.sh(&format!("cat /tmp/out/{job}")), **set, "{outcome:?}");
    }
    assert_eq!(container.exec(&["test", "-e", "/tmp/twice"]).code, 1);
    assert!(outcome.stderr.contains("GPUs 0,2") && outcome.stderr.contains("out/"), "{outcome:?}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn submits_one_job_per_target_and_none_if_any_target_is_invalid() {
    let cluster = Cluster::new("");
    let index = cluster.member(DEMO, "compute", "c1");
    let index = index.with(["--env", "DEMO_GPUS=3", "--env", "SLURMINIT_GPU_TYPE_NAME=index"]).serve();
    let by_vendor = cluster.compute("c2", 2);
    let controller = &cluster.controller;
    let words = "it's \"two  words\" $HOME `id` *";
    let submit =
        ["slurminit", "submit", "-o", "/tmp/out.%j", "-t", "c1::0,2", "-t", "c2::all", "-t", "c2", "--wait", "--"];
    let command = ["sh", "-c", "echo \"$SLURMD_NODENAME ${SLURM_JOB_GPUS-none} $1\"", "x", words];
    let outcome = controller.exec(&[&submit[..], &command[..]].concat());
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "1\n2\n3\n"), "{outcome:?}");
    assert_eq!(index.sh("cat /tmp/out.1"), format!("c1 0,2 {words}"));
    assert_eq!(by_vendor.sh("cat /tmp/out.2 /tmp/out.3"), format!("c2 0,1 {words}\nc2 none {words}"));
    // Reports a failed job, and the job that holds a requested GPU.
    let failed = controller.exec(&[
        "slurminit",
        "submit",
        "-t",
        "c1::1",
        "--wait",
        "-o",
        "/dev/null",
        "--",
        "sh",
        "-c",
        "exit 3",
    ]);
    assert!(failed.code == 1 && failed.stderr.contains("job 4 ") && failed.stderr.contains("FAILED"), "{failed:?}");
    start_job(controller, "cd /tmp; slurminit submit -o /dev/null -t c1::1 -- sleep 1000 2>/dev/null");
    let queued = controller.exec(&["slurminit", "submit", "-t", "c1::1,2", "-o", "/dev/null", "--", "true"]);
    assert!(queued.stderr.contains("GPU 1 ") && queued.stderr.contains("job 5 of root"), "{queued:?}");
    assert_eq!(controller.sh("squeue -h -j 6 -o %t"), "PD");

    controller.sh("slurminit drain c2 --reason 'a fan'");
    for (target, message) in [
        ("c9", "no node named c9; the cluster has c1, c2"),
        ("c1::3", "c1 has no GPU 3; it has GPUs 0,1,2"),
        ("c2::0", "c2 accepts no jobs: it is drained (a fan); run `slurminit resume c2`"),
    ] {
        let refused = controller.exec(&["slurminit", "submit", "-t", "c1::0", "-t", target, "--", "true"]);
        assert!(refused.code == 1 && refused.stdout.is_empty() && refused.stderr.contains(message), "{refused:?}");
    }
    controller.sh("slurminit resume c2");
    cluster.until("slurminit nodes | grep -q \"c2 *idle *0\"");
    let refused = controller.exec(&["slurminit", "submit", "-t", "c2::1", "--", "true"]);
    assert!(refused.code == 1 && refused.stderr.contains("type_name = \"index\""), "{refused:?}");
    assert_eq!(controller.exec(&["slurminit", "submit", "-t", "c2::x", "--", "true"]).code, 2);
}

/// A GPU with allocated shards is not free: a job that requests a whole GPU cannot get it.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn gpu_with_allocated_shards_is_shown_as_shared() {
    let config = directory(&[("slurminit.toml", "[gpu]\nshards = 4\n")]);
    let image = Image::new(DEMO).mount(&config.path().join("slurminit.toml"), "/config/slurminit.toml");
    let container = image.with(["--env", "DEMO_GPUS=3"]).serve();
    start_job(&container, "cd /tmp; sbatch --parsable --gres=shard:2 -o /dev/null --wrap 'sleep 1000'");
    let job = start_job(&container, "cd /tmp; sbatch --parsable --gres=gpu:1 -o /dev/null --wrap 'sleep 1000'");
    let shown = gpus(&container, "localhost");
    assert!(shown.contains(&"0 shared root".to_owned()), "{shown:?}");
    let status: serde_json::Value = serde_json::from_str(&container.sh("slurminit status --json")).unwrap();
    assert_eq!(status["gpus"][0]["state"], "shared", "{status}");
    assert!(shown.iter().any(|gpu| gpu.ends_with(&format!(" {job} root"))), "{shown:?}");
    assert_eq!(shown.iter().filter(|gpu| gpu.ends_with(" free -")).count(), 1, "{shown:?}");
}
