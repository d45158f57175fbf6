//! `slurminit why` on a real scheduler: a job starts at once with the change that the command suggests.

use crate::docker::{Container, Image, PLAIN, directory};

const CONFIG: &str = "[simulate]\nnodes = 2\ncpus = 8\nmemory_mib = 16384\ngpus = 2\ngpu_type = 'a100'\n\
                      [[user]]\nname = 'alice'\nuid = 1501\n[[user]]\nname = 'bob'\nuid = 1502\n";

/// Submits a job of a user, and returns its ID.
fn submit(container: &Container, user: &str, options: &str) -> String {
    let line = format!("cd /tmp; sbatch --parsable --output=/dev/null {options} --wrap 'sleep 600'");
    container.exec(&["su", user, "-s", "/bin/sh", "-c", &line]).ok().trim().to_owned()
}

fn why(container: &Container, job: &str) -> String {
    container.sh(&format!("slurminit why {job}"))
}

/// The resources that alice holds, bob's request, the expected text, and the request that the text suggests, which
/// starts at once.
const CASES: [(&str, &str, &[&str], &str); 7] = [
    (
        "-w node1 --gpus=2 -c2 --mem=4G --time=60",
        "-w node1 --gpus=1",
        &["waits for 1 GPU: 2 of 2 in use by alice (until ", "start now on node2, without --nodelist", "Slurm expects"],
        "--gpus=1",
    ),
    (
        "-w node1 --gpus-per-node=1",
        "-w node1 --gres=gpu:2",
        &["waits for 2 GPUs: 1 of 2 in use by alice (without a time limit)", "with at most 1 GPU"],
        "-w node1 --gres=gpu:1",
    ),
    (
        "-w node1 -c5 --mem=1G",
        "-w node1 -c4 --mem=1G",
        &["waits for 4 CPUs: 5 of 8 in use", "job JOB of alice (5 CPUs, 1 GiB)", "with at most 3 CPUs"],
        "-w node1 -c3 --mem=1G",
    ),
    (
        "-w node1 --mem=10G",
        "-w node1 --mem=8G",
        &["10 GiB of 16 GiB in use by alice", "with at most 6 GiB of memory"],
        "-w node1 --mem=6G",
    ),
    (
        "-w node1 --mem=1G",
        "-w node1 --exclusive -c2 --mem=1G",
        &["waits for a whole node", "without --exclusive"],
        "-w node1 -c2 --mem=1G",
    ),
    (
        "-N2 --gpus-per-node=2 --mem=1G",
        "-n2 --gpus-per-task=1 --mem=1G",
        &["waits for 2 GPUs: 4 of 4 in use by alice"],
        "--mem=1G",
    ),
    (
        "-w node1 -c8 --mem=1G",
        "-w node1 --begin=now+1hour --mem=1G",
        &["waits for its start time"],
        "-w node2 --mem=1G",
    ),
];

/// The text without Slurm's estimate, which can appear between two queries.
fn without_estimate(text: &str) -> String {
    let sentences = text.trim_end_matches('.').split(". ");
    sentences.filter(|sentence| !sentence.starts_with("Slurm")).collect()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn suggested_change_lets_job_start_at_once() {
    let config = directory(&[("slurminit.toml", CONFIG)]);
    let container = Image::new(PLAIN).json_log().mount(config.path(), "/config").serve();
    for (held, requested, texts, changed) in CASES {
        let first = submit(&container, "alice", held);
        container.until(&format!("squeue --noheader --format=%T -j {first} | grep -qx RUNNING"));
        let job = submit(&container, "bob", requested);
        // Slurm sets the reason and the estimate in its next scheduling cycle.
        container.until(&format!("slurminit why {job} | grep -qF \"{}\"", texts[0].replace("JOB", &first)));
        if texts.contains(&"Slurm expects") {
            container.until(&format!("slurminit why {job} | grep -q Slurm.expects"));
        }
        let text = why(&container, &job);
        for expected in texts {
            assert!(text.contains(&expected.replace("JOB", &first)), "{held}; {requested}: {text}");
        }
        assert!(why(&container, &first).contains("is running on node"), "{}", why(&container, &first));
        let of_user = container.sh(&format!("su bob -s /bin/sh -c 'slurminit why {job}'"));
        assert_eq!(without_estimate(&of_user), without_estimate(&text));
        let doctor = container.sh("slurminit doctor --json || true");
        let headline = text.split_once(". ").map_or(text.as_str(), |(first, _)| first).replacen("Job", "job", 1);
        assert!(doctor.contains(&headline), "{headline}: {doctor}");
        container.sh(&format!("scancel {job}"));
        let job = submit(&container, "bob", changed);
        container.until(&format!("squeue --noheader --format=%T -j {job} | grep -qx RUNNING"));
        container.sh(&format!("scancel {job} {first}"));
        container.until("! squeue --noheader | grep -q .");
    }
    let unknown = container.exec(&["slurminit", "why", "999"]);
    assert!(unknown.code == 1 && unknown.stderr.contains("job 999 is not in the queue"), "{unknown:?}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn holders_are_hidden_where_slurm_hides_jobs() {
    let toml = format!("{CONFIG}[slurm.conf]\nPrivateData = 'jobs'\n");
    let config = directory(&[("slurminit.toml", &toml)]);
    let container = Image::new(PLAIN).json_log().mount(config.path(), "/config").serve();
    let first = submit(&container, "alice", "-w node1 --gpus=2");
    container.until(&format!("squeue --noheader --format=%T -j {first} | grep -qx RUNNING"));
    let job = submit(&container, "bob", "-w node1 --gpus=1");
    let of_bob = |line: &str| container.exec(&["su", "bob", "-s", "/bin/sh", "-c", line]);
    container.until(&format!("slurminit why {job} | grep -q in.use.by.alice"));
    let text = of_bob(&format!("slurminit why {job}")).ok();
    assert!(text.contains("2 of 2 in use by jobs that you may not see") && !text.contains("alice"), "{text}");
    assert_eq!(of_bob(&format!("slurminit why {first}")).code, 1);
}
