//! `[[partition]] preempt`: jobs on idle GPUs make room for jobs of other partitions.

use std::fs;

use crate::docker::{DEMO, Image, directory};

const CONFIG: &str = "[[partition]]\nname = 'gpu'\n[[partition]]\nname = 'spare'\npreempt = 'requeue'\nGraceTime = 20\n\
    [[user]]\nname = 'alice'\nuid = 1501\n[[user]]\nname = 'bob'\nuid = 1502\n[slurm.conf]\nKillWait = 1\n";

/// A job that counts steps. At the signal it saves the last step and exits.
const TRAINING: &str = "#!/bin/bash\nstep=$(cat /tmp/checkpoint 2>/dev/null || echo 0)\necho starts at $step >>/tmp/starts\n\
    trap 'echo $step >/tmp/checkpoint; exit 0' USR2\nwhile :; do step=$((step + 1)); sleep 0.1; done\n";

/// The script of docs/operations.md with another program.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_on_idle_gpus_is_requeued_at_its_checkpoint_for_job_of_another_user() {
    let page = fs::read_to_string(harness::root().join("docs/operations.md")).expect("the page exists");
    let mut blocks = page.split("```bash\n").filter_map(|rest| rest.split("```").next());
    let script = blocks.find(|block| block.contains("--partition=spare")).expect("the page contains the script");
    assert!(script.contains("python train.py --resume checkpoint.pt"), "{script}");
    let script = script.replace("python train.py --resume checkpoint.pt", "bash /config/training");
    let ignoring = "#!/bin/bash\n#SBATCH --partition=spare --gres=gpu:1 --output=/dev/null\ntrap '' TERM\nwhile :; do sleep 1; done\n";
    let files =
        [("slurminit.toml", CONFIG), ("training", TRAINING), ("spare.sh", script.as_str()), ("ignoring.sh", ignoring)];
    let config = directory(&files);
    let container = Image::new(DEMO).with(["--env", "DEMO_GPUS=2"]).mount(config.path(), "/config").serve();
    let submit = |user: &str, options: &str| {
        container
            .exec(&["su", user, "-c", &format!("cd /tmp; sbatch --parsable --mem=10 {options}")])
            .ok()
            .trim()
            .to_owned()
    };
    let until = |job: &str, what: &str| container.until(&format!("scontrol show job {job} | grep -q \"{what}\""));
    let spare = submit("bob", "/config/spare.sh");
    container.until("grep -qs starts /tmp/starts");
    // Jobs of the same partition wait.
    let second = submit("bob", "--partition=spare --gres=gpu:1 -o /dev/null --wrap true");
    let alice = submit("alice", "--partition=gpu --gres=gpu:1 -o /dev/null --wrap 'sleep 1000'");
    until(&alice, "JobState=RUNNING");
    until(&spare, "Restarts=1");
    assert!(container.sh(&format!("scontrol show job {second}")).contains("Restarts=0"));
    assert_ne!(container.sh("cat /tmp/checkpoint"), "0");
    container.sh(&format!("scancel {alice}"));
    container.until("[ $(wc -l </tmp/starts) = 2 ]");
    assert_eq!(container.sh("tail -n 1 /tmp/starts"), format!("starts at {}", container.sh("cat /tmp/checkpoint")));
    container.sh(&format!("scancel {spare} {second}; until [ -z \"$(squeue -h)\" ]; do sleep 0.2; done"));

    // A job that ignores the signal is requeued after GraceTime; one of the other partition is never preempted.
    let ignoring: Vec<String> = (0..2).map(|_| submit("bob", "/config/ignoring.sh")).collect();
    ignoring.iter().for_each(|job| until(job, "JobState=RUNNING"));
    let whole = submit("alice", "--partition=gpu --gres=gpu:2 -o /dev/null --wrap 'sleep 1000'");
    until(&whole, "JobState=RUNNING");
    ignoring.iter().for_each(|job| until(job, "JobState=PENDING.*"));
    ignoring.iter().for_each(|job| until(job, "Restarts=1"));
    let other = submit("bob", "--partition=gpu --gres=gpu:2 -o /dev/null --wrap true");
    until(&other, "Reason=Resources");
    until(&whole, "JobState=RUNNING");
}
