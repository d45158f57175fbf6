//! Checkpoints of submitit (from PyPI) across a stop.

use crate::built_image::BuiltImage;
use crate::docker::{Image, PLAIN, Volume, directory, tag};
use crate::requested_signal::show;

/// A checkpoint as in submitit's documentation: the callable is saved with its state, here the step number.
const COUNTER: &str = r#"import sys, time
import submitit

class Counter(submitit.helpers.Checkpointable):
    def __init__(self):
        self.step = 0

    def __call__(self, steps):
        print("starts at", self.step, flush=True)
        while self.step < steps:
            time.sleep(0.1)
            self.step += 1
            print("step", self.step, flush=True)

if __name__ == "__main__":
    import counter
    executor = submitit.AutoExecutor(folder="/home/tester/log", cluster="slurm")
    executor.update_parameters(timeout_min=60, slurm_mem="100M")
    print(executor.submit(counter.Counter(), 100000).job_id)
"#;

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn submitit_job_continues_at_checkpointed_step_after_stop() {
    let base = format!("IMAGE={}", tag(PLAIN));
    let image = BuiltImage::new("submitit", "tests/clients", &[&base, "CLIENT=submitit"]);
    let (slurm, home) = (Volume::new("state"), Volume::new("home"));
    let config = directory(&[("slurminit.toml", "[[user]]\nname = \"tester\"\nuid = 1501\n")]);
    let cluster = Image::new(&image.0).with(["--hostname", "node1"]).mount(config.path(), "/config");
    let cluster = cluster.volume(&slurm, "/var/lib/slurm").volume(&home, "/home");
    let first = cluster.serve();
    let line = "printf %s \"$1\" >/home/tester/counter.py && \
        su tester -c 'cd && PYTHONPATH=/home/tester /client/venv/bin/python3 counter.py'";
    let job = first.exec(&["sh", "-c", line, "sh", COUNTER]).ok().trim().to_owned();
    let (out, error) = (format!("/home/tester/log/{job}_0_log.out"), format!("/home/tester/log/{job}_0_log.err"));
    first.until(&format!("grep -qsx \"step 5\" {out}"));
    assert_eq!(first.stop(), 0, "{}", first.log());
    let log = first.log();
    drop(first);

    let second = cluster.serve();
    let restarted = second.wait_until(60, &format!("[ $(grep -c \"^starts at\" {out}) = 2 ]"));
    let errors = second.sh(&format!("cat {error}"));
    assert_eq!(restarted.code, 0, "{log}\n{errors}\n{}", show(&second, &job));
    let lines = second.sh(&format!("cat {out}"));
    let (before, after) = lines.rsplit_once("starts at ").unwrap_or_default();
    let last = before.lines().filter_map(|line| line.strip_prefix("step ")?.parse::<u32>().ok()).next_back();
    let next = after.lines().next().and_then(|step| step.parse::<u32>().ok());
    // The signal can arrive between a step and its output line, and srun can exit before it forwards the line.
    let is_next = last.zip(next).is_some_and(|(last, next)| last >= 5 && (last..last + 5).contains(&next));
    assert!(is_next, "stopped after {last:?}, starts at {next:?}: {lines}\n{errors}");
    assert!(errors.contains("Caught signal SIGUSR2"), "{errors}");
    assert!(show(&second, &job).contains("JobState=RUNNING"), "{}", show(&second, &job));
}
