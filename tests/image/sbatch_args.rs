//! `sbatch $(slurminit sbatch-args method.json) JOB` on a real Slurm: the job gets the resources of the method file.

use crate::docker::{Container, DEMO, Image, Outcome, PLAIN};

fn write(container: &Container, resources: &str) {
    container.sh(&format!("cat > /tmp/method.json <<'END'\n{{\"name\": \"deep\", \"resources\": {resources}}}\nEND"));
}

fn submit(container: &Container, resources: &str) -> Outcome {
    write(container, resources);
    let job = "cat > /tmp/job.sh <<'END'\n#!/bin/sh\necho \"$CUDA_VISIBLE_DEVICES $SLURM_CPUS_ON_NODE\"\nEND";
    container.sh(job);
    let line = "rm -f /tmp/out; timeout 120 sbatch $(slurminit sbatch-args --timeout 60 /tmp/method.json) --parsable --wait --output /tmp/out \
                /tmp/job.sh";
    container.exec(&["sh", "-c", line])
}

/// The output of the job script and the requested fields of `scontrol show job`.
#[track_caller]
fn allocation(container: &Container, resources: &str, fields: &[&str]) -> (String, Vec<String>) {
    let outcome = submit(container, resources);
    assert_eq!(outcome.code, 0, "{resources}: {}{}", outcome.stderr, container.log());
    let job = container.sh(&format!("scontrol --oneliner show job {}", outcome.stdout.trim()));
    let value = |field: &&str| {
        let word = job.split_whitespace().find_map(|word| word.strip_prefix(field)?.strip_prefix('='));
        word.unwrap_or_default().to_owned()
    };
    (container.sh("cat /tmp/out"), fields.iter().map(value).collect())
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_gets_resources_of_method_file() {
    let container = Image::new(DEMO).with(["--env", "DEMO_GPUS=2"]).serve();
    let fields = ["TresPerNode", "CPUs/Task", "MinMemoryNode", "TimeLimit"];
    let resources = r#"{"min_memory_mb": 100, "cpus": 1, "gpus": 2, "time_limit": "1-00:05"}"#;
    let (output, fields) = allocation(&container, resources, &fields);
    assert_eq!(output, "0,1 1");
    assert!(["gres/gpu:2", "gres:gpu:2"].contains(&fields[0].as_str()), "{fields:?}");
    assert_eq!(fields[1..], ["1", "120M", "1-00:05:00"]);

    let all = container.sh("sinfo --noheader --format %c");
    let (output, fields) = allocation(&container, r#"{"cpus": 0}"#, &["NumCPUs"]);
    assert_eq!((output.trim(), fields[0].as_str()), (all.as_str(), all.as_str()));

    let (_, fields) =
        allocation(&container, r#"{"memory_mb": 64, "exclusive": true}"#, &["OverSubscribe", "MinMemoryNode"]);
    assert_eq!(fields, ["NO", "64M"]);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_missing_resources_without_submitting() {
    let container = Image::new(DEMO).with(["--env", "DEMO_GPUS=2"]).serve();
    // The error has the request and the limit, so that the user can correct the file.
    for (resources, facts) in [
        (r#"{"gpus": 4}"#, ["/tmp/method.json", "4 GPUs", "2 ", "resources.gpus"]),
        (r#"{"cpus": 60000}"#, ["/tmp/method.json", "60000 CPUs", "debug", "resources.cpus"]),
        (r#"{"min_memory_mb": 60000000}"#, ["/tmp/method.json", "72000000 MiB", "60000000", "min_memory_mb"]),
        (r#"{"gpus": "1; touch /tmp/evil"}"#, ["/tmp/method.json", "resources.gpus", "touch", "number"]),
    ] {
        let outcome = submit(&container, resources);
        assert_ne!(outcome.code, 0, "{resources}: {}", outcome.stdout);
        let missing = facts.iter().find(|fact| !outcome.stderr.contains(*fact));
        assert_eq!(missing, None, "{resources}: {}", outcome.stderr);
    }
    container.sh("scontrol update partitionname=debug maxtime=60");
    let outcome = submit(&container, r#"{"time_limit": 61}"#);
    let missing = ["0-01:01:00", "0-01:00:00", "debug"].into_iter().find(|fact| !outcome.stderr.contains(fact));
    assert_eq!(missing, None, "{outcome:?}");
    assert_eq!(container.sh("squeue --noheader --states all"), "", "a job was submitted");
    assert_eq!(container.exec(&["test", "-e", "/tmp/evil"]).code, 1);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn works_without_cluster_only_with_offline() {
    let image = Image::new(PLAIN).with(["--entrypoint", "sh"]);
    let line = "echo '{\"resources\": {\"gpus\": 4, \"cpus\": 0}}' | slurminit sbatch-args";
    let refused = image.run(&["-c", &format!("{line} --timeout 5 -")]);
    assert_eq!((refused.code, refused.stdout.trim()), (1, "--refused-by-slurminit"), "{}", refused.stderr);
    assert!(refused.stderr.contains("--offline"), "{}", refused.stderr);
    let offline = image.run(&["-c", &format!("{line} --offline -")]).ok();
    assert_eq!(offline.trim(), "--nodes=1 --ntasks=1 --gres=gpu:4 --exclusive");
}
