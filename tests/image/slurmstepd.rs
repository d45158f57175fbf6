//! A user cannot reach another user's slurmstepd, and a job whose slurmstepd dies ends or starts again.

use crate::docker::{Container, DEMO, Image, directory, docker};

const CONFIG: &str = r#"
[[partition]]
name = "debug"
OverSubscribe = "FORCE:8"

[[user]]
name = "alice"
uid = 1234

[[user]]
name = "mallory"
uid = 1235
"#;

/// Enough for the daemons and one job, but not for one more thread per connection of the attack.
const PIDS: &str = "--pids-limit=400";

/// Opens at most COUNT connections to sockets, keeps them for SECONDS, and prints their number.
const CONNECT: &str = r#"perl -MSocket -e '
    my ($count, $seconds, @sockets) = @ARGV; my @held; my $until = time + $seconds;
    while (time < $until) {
        for my $socket (@sockets) {
            socket(my $new, AF_UNIX, SOCK_STREAM, 0) or next;
            push @held, $new if @held < $count && connect($new, pack_sockaddr_un($socket));
        }
        select(undef, undef, undef, 0.001);
    }
    print scalar @held;'"#;

struct Cluster {
    container: Container,
    _config: tempfile::TempDir,
}

impl Cluster {
    fn new(options: &[&str]) -> Self {
        let config = directory(&[("slurminit.toml", CONFIG)]);
        let image = Image::new(DEMO).with(["--hostname", "node1"]).json_log().mount(config.path(), "/config");
        let image = options.iter().fold(image, |image, option| image.with([*option]));
        Self { container: image.serve(), _config: config }
    }

    /// Runs a shell line as a user.
    #[track_caller]
    fn as_user(&self, user: &str, line: &str) -> String {
        let line = format!("cd /tmp; {line}");
        docker(["exec", "--user", user, &self.container.name, "sh", "-ec", &line]).ok().trim_end().to_owned()
    }

    /// Submits a batch job as alice, and returns its ID once it runs.
    #[track_caller]
    fn submit(&self, options: &str, script: &str) -> String {
        let job = self.as_user("alice", &format!("sbatch --parsable --output=/dev/null {options} --wrap '{script}'"));
        self.container.until(&format!("pgrep -f \"^slurmstepd: .{job}.batch\" && {}", has(&job, "JobState=RUNNING")));
        job
    }

    /// Kills the slurmstepd of a batch job.
    fn kill(&self, job: &str) {
        self.container.sh(&format!("pkill -KILL -f '^slurmstepd: .{job}.batch'"));
    }

    /// The IDs of the jobs that were found without a process.
    fn found(&self) -> Vec<String> {
        let records = self.container.records("job-without-process");
        records.iter().filter_map(|record| record["fields"]["job"].as_str().map(str::to_owned)).collect()
    }
}

/// A shell condition: the job has this field and value.
fn has(job: &str, field: &str) -> String {
    format!("scontrol --oneliner show job {job} | grep -q \" {field} \"")
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn no_user_connects_to_slurmstepd_of_another() {
    let cluster = Cluster::new(&[PIDS]);
    let container = &cluster.container;
    let job = cluster.submit("--gres=gpu:1", "srun sleep 9001");
    let sockets = format!("/var/lib/slurm/slurmd/localhost_{job}.4294967291 /var/lib/slurm/slurmd/localhost_{job}.0");
    container.until(&format!("pgrep -f \"^slurmstepd: .{job}.0\""));
    container.until(&format!("! stat --format=%a {sockets} | grep -v 600"));
    assert_eq!(cluster.as_user("mallory", &format!("{CONNECT} 270 5 {sockets}")), "0");
    // Sockets that are opened to all users are closed again.
    container.sh(&format!("chmod 777 {sockets}"));
    container.until(&format!("! stat --format=%a {sockets} | grep -v 600"));
    // slurmd itself opens a connection for each of these.
    cluster
        .as_user("alice", &format!("srun --overlap --jobid={job} true; sstat --noheader --allsteps {job} | grep -q ."));
    container.sh(&format!("scontrol listpids {job} | grep -q batch"));
    container.sh(&has(&job, "JobState=RUNNING"));
    cluster.as_user("alice", &format!("scancel {job}"));
    container.until(&has(&job, "JobState=CANCELLED"));
    assert_eq!(cluster.found(), [""; 0], "{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_whose_slurmstepd_was_killed_is_requeued_or_ends_and_frees_its_gpu() {
    let cluster = Cluster::new(&["--env=DEMO_GPUS=2"]);
    let container = &cluster.container;
    let again = cluster.submit("--gres=gpu:1 --requeue", "srun sleep 9001");
    container.until("pgrep -f \"^[^ ]*sleep 9001\"");
    let once = cluster.submit("--gres=gpu:1 --no-requeue", "sleep 9002");
    container.until("pgrep -f \"^[^ ]*sleep 9002\"");
    cluster.kill(&again);
    cluster.kill(&once);
    for (job, field) in [(&again, "Restarts=1"), (&once, "JobState=CANCELLED")] {
        let outcome = container.wait_until(60, &has(job, field));
        assert_eq!(outcome.code, 0, "{job} {field}: {outcome:?}\n{}", container.log());
    }
    container.until(&has(&again, "JobState=RUNNING"));
    container.until("! pgrep -f \"^[^ ]*sleep 9002\" && [ \"$(pgrep -c -f \"^[^ ]*sleep 9001\")\" = 1 ]");
    let comment = container.sh(&format!("squeue --noheader --states=all --jobs={once} --Format=admin_comment:128"));
    assert!(comment.starts_with("slurminit: "), "{comment}");
    cluster.as_user("alice", "timeout 60 srun --gres=gpu:1 true");
    container.until("[ \"$(sinfo --noheader --format=%T%E)\" = mixednone ]");
    let mut found = cluster.found();
    found.sort();
    assert_eq!(found, [again.as_str(), &once], "{}", container.log());
    let doctor = container.sh("slurminit doctor || true");
    assert!([&again, &once].iter().all(|job| doctor.contains(&format!("job {job} died"))), "{doctor}");
}

/// Each killed slurmstepd starts a search among jobs that start, run and end.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn search_for_jobs_without_slurmstepd_finds_no_other_job() {
    let cluster = Cluster::new(&[]);
    let container = &cluster.container;
    cluster.as_user("alice", "sbatch --mem=8 --output=/dev/null --array=1-100 --wrap 'srun true'");
    let many = "for i in $(seq 30); do srun --mem=8 true & srun --mem=8 true; done; wait";
    docker(["exec", "--detach", "--user", "alice", "--workdir", "/tmp", &container.name, "sh", "-c", many]).ok();
    let mut killed = Vec::new();
    for _ in 0..6 {
        let job = cluster.submit("--mem=8 --no-requeue", "sleep 9003");
        cluster.kill(&job);
        container.until(&has(&job, "JobState=CANCELLED"));
        killed.push(job);
    }
    container.until("[ -z \"$(squeue --noheader)\" ]");
    assert_eq!(cluster.found(), killed, "{}", container.log());
    let changed = "squeue --noheader --states=all --Format=JobID:12,State:12,RestartCnt:4 | awk '$2 == \"CANCELLED\" || $3 > 0' | wc -l";
    assert_eq!(container.sh(changed), killed.len().to_string());
}
