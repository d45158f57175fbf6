//! Surroundings of the container: a job of another Slurm, and a /tmp that cannot hold programs.

use crate::docker::{Image, PLAIN, text};
use crate::doctor::report;
use crate::images::{alice, serve};

/// The variables that slurmd of another cluster sets for a batch job.
const OUTER: [&str; 9] = [
    "SLURM_JOB_ID=4711",
    "SLURM_JOBID=4711",
    "SLURM_CLUSTER_NAME=big",
    "SLURMD_NODENAME=n1",
    "SLURM_CONF=/run/slurm/conf/slurm.conf",
    "SLURM_NTASKS=9",
    "SLURM_MEM_PER_NODE=7",
    "SLURM_JOB_NODELIST=n[1-9]",
    "PMIX_RANK=3",
];

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn cluster_starts_inside_a_job_of_another_slurm() {
    let image = |variables: &[&str]| {
        variables.iter().fold(Image::new(PLAIN).json_log(), |image, variable| image.with(["--env", variable]))
    };
    for (variables, named) in [
        (&OUTER[..], "SLURM_JOB_ID and other variables of a job in another Slurm cluster are ignored (9 in all)"),
        (&["SLURM_CONF=/run/slurm/conf/slurm.conf"], "SLURM_CONF is ignored"),
        (&["SLURM_JOB_ID=4711", "SLURM_MEM_PER_CPU=1", "SLURM_MEM_PER_NODE=1"], "SLURM_JOB_ID and other variables"),
    ] {
        let container = image(variables).serve();
        let warnings = container.records("start-warning");
        assert!(warnings.len() == 1 && text(&warnings[0]).starts_with(named), "{named}: {warnings:?}");
        // `docker exec` still has the variables.
        let ran = container.exec(&["srun", "sh", "-c", "env | grep -c 4711"]);
        assert_eq!(ran.stdout, "0\n", "{variables:?}: {ran:?}");
        container.exec(&["salloc", "srun", "true"]).ok();
        container.sh("cd /root && sbatch --wait --output=/root/out --wrap 'srun true && env'");
        let inside = container.sh("cat /root/out");
        assert!(inside.contains("SLURM_JOB_ID=") && !inside.contains("=4711"), "{inside}");
        assert!(!inside.contains("PMIX_RANK=3") && !inside.contains("/run/slurm/conf"), "{inside}");
        container.exec(&["slurminit", "run", "--", "srun", "true"]).ok();
        container.exec(&["slurminit", "status"]).ok();
    }
    let outcome = image(&OUTER).run(&["sh", "-c", "env | grep -c 4711; srun true"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, "0\n"), "{outcome:?}");
}

/// The driver of a workflow is itself a job, and submits jobs.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn submitted_job_does_not_inherit_request_of_submitting_job() {
    let container = Image::new(PLAIN).serve();
    for outer in
        ["--mem=100", "--mem-per-cpu=100", "--ntasks=1 --ntasks-per-node=1", "--export=NONE", "--hint=nomultithread"]
    {
        for inner in [
            "sbatch --wait --output=/root/inner --wrap \"srun true; echo rc=\\$?; printenv SLURM_MEM_PER_NODE\" >/dev/null; cat /root/inner",
            "salloc --quiet sh -c \"srun true; echo rc=\\$?; printenv SLURM_MEM_PER_NODE\"",
        ] {
            container.sh("rm -f /root/inner /root/outer");
            let line =
                format!("cd /root && sbatch --wait {outer} --output=/root/outer --wrap '{inner}'; cat /root/outer");
            let seen = container.exec(&["sh", "-c", &line]);
            assert!(seen.stdout.contains("rc=0\n") && !seen.stdout.contains("\n100\n"), "{outer}: {seen:?}");
        }
    }
    // A step still has the request of its job.
    let step =
        "cd /root && sbatch --wait --mem=100 --output=/root/outer --wrap 'srun printenv SLURM_MEM_PER_NODE' >/dev/null";
    assert_eq!(container.sh(&format!("{step}; cat /root/outer")), "100");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn jobs_run_in_images_whatever_the_mount_options_of_tmp() {
    for options in [
        &["--tmpfs", "/tmp:size=64m"][..],
        &["--tmpfs", "/tmp:size=64m,mode=0755"],
        &["--tmpfs", "/tmp:size=64m,exec,mode=0700"],
        &["--tmpfs", "/tmp:size=64m,noexec", "--tmpfs", "/run:noexec", "--shm-size", "1m"],
    ] {
        let (_config, container) = serve(options);
        let ok = |line: &str| alice(&container, line).ok();
        let works = || {
            assert_eq!(ok("srun --container=small cat /etc/mark"), "inside\n", "{options:?}");
            // Some programs close the file descriptors that they inherit.
            let close = "srun --container=small sh -c 'for n in 3 4 5 6 7 8 9; do eval \"exec $n>&-\"; done; env cat /etc/mark'";
            assert_eq!(ok(close), "inside\n", "{options:?}");
            let answer = report(&container, "").of("container-images");
            assert_eq!(answer.verdict, "ok", "{options:?}: {answer:?}");
        };
        works();
        container.sh("dd if=/dev/zero of=/tmp/full bs=64k 2>/dev/null || true; df /tmp | grep -q 100%");
        works();
    }
}
