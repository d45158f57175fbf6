//! `slurminit report`: the reported GPU use of jobs, compared with the values that the simulated driver was set to.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use serde_json::Value;

use crate::docker::{Container, DEMO, FULL, Image, Network, Volume, directory, docker};
use crate::gpu_faults::{serve, until_sampled};

const PEOPLE: &str = "[[user]]\nname = 'alice'\nuid = 1501\n[[user]]\nname = 'bob'\nuid = 1502\n";

/// Sets the utilization and memory of a GPU, and returns the time, in seconds since 1970.
fn set(container: &Container, gpu: u32, percent: u32, used_mib: u32) -> f64 {
    let condition = format!("condition = {{ utilization = {percent}, used_mib = {used_mib} }}");
    let replace = format!(
        "/^\\[\\[gpu/ {{ gpus++ }} gpus == {} && /^condition/ {{ next }} {{ print }} gpus == {0} && /^uuid/ {{ print \"{condition}\" }}",
        gpu + 1
    );
    let set = format!("awk '{replace}' /etc/fake-nvml.toml >/tmp/new && mv /tmp/new /etc/fake-nvml.toml");
    container.sh(&format!("{set}; date +%s.%N")).parse().unwrap()
}

fn submit(container: &Container, user: &str, options: &str) -> String {
    let line = format!("sbatch --parsable --output /dev/null {options} --wrap 'exec sleep 600'");
    let job = docker(["exec", "--user", user, "--workdir", "/tmp", &container.name, "sh", "-c", &line]).ok();
    let job = job.trim().to_owned();
    container.until(&format!("squeue --noheader --jobs {job} --states RUNNING | grep -q ."));
    job
}

fn report(container: &Container, user: &str) -> Value {
    let text = docker(["exec", "--user", user, &container.name, "slurminit", "report", "--json"]).ok();
    serde_json::from_str(&text).unwrap()
}

fn job<'a>(report: &'a Value, job: &str) -> &'a Value {
    let found = report["jobs"].as_array().unwrap().iter().find(|found| found["job"] == job);
    found.unwrap_or_else(|| panic!("no job {job}: {report:#}"))
}

fn until_ended(container: &Container, job: &str) {
    container.until(&format!("slurminit report {job} --csv | grep -Eq \"^{job},.*,(CANCELLED|COMPLETED),\""));
}

#[track_caller]
fn assert_within(percent: f64, is: f64, set: f64) {
    assert!((is - set).abs() <= set * percent / 100.0, "{is} instead of {set}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn report_equals_what_the_driver_was_set_to() {
    let notify = "[[notify]]\non = 'job-end'\ncommand = ['tee', '-a', '/tmp/ends']\n";
    let (container, _config) = serve(2, &format!("{notify}{PEOPLE}"));
    set(&container, 0, 0, 500);
    set(&container, 1, 30, 20_480);
    let submit = |(user, mail)| submit(&container, user, &format!("--gres=gpu:1 {mail}"));
    let [alice, bob] = [("alice", ""), ("bob", "--mail-type=FAIL")].map(submit);
    until_sampled(&container, 3);
    let begin = set(&container, 0, 80, 40_960);
    until_sampled(&container, 10);
    let end = set(&container, 0, 0, 500);
    until_sampled(&container, 2);
    let running = report(&container, "root");
    assert_eq!(job(&running, &alice)["state"], "RUNNING", "{running:#}");
    container.sh(&format!("scancel {alice} {bob}"));
    set(&container, 1, 90, 81_920);
    until_ended(&container, &alice);
    until_ended(&container, &bob);
    let all = report(&container, "root");
    let number = |job: &Value, key: &str| job[key].as_f64().unwrap_or_else(|| panic!("{key}: {all:#}"));
    let gpu = &job(&all, &alice)["gpus"][0];
    let seconds = number(gpu, "measured_seconds");
    // The tolerance of 1 s is for the two changes, each of which can happen at any time between two samples, one second apart.
    let busy = number(gpu, "use_percent") * seconds / 80.0;
    assert!((busy - (end - begin)).abs() <= 0.02 * (end - begin) + 1.0, "{busy} s instead of {} s", end - begin);
    assert_within(2.0, number(gpu, "energy_wh") * 3600.0, 70.0 * seconds);
    assert_eq!((number(gpu, "peak_percent"), number(gpu, "peak_memory_mib")), (80.0, 40_960.0));
    // The values contain nothing from the time after the job's end.
    let constant = &job(&all, &bob)["gpus"][0];
    assert_eq!((number(constant, "use_percent"), number(constant, "peak_memory_mib")), (30.0, 20_480.0));
    assert_within(2.0, number(constant, "mean_memory_mib"), 20_480.0);
    let length = number(job(&all, &bob), "end") - number(job(&all, &bob), "start");
    assert_eq!(number(constant, "measured_seconds"), length, "{all:#}");
    // A user sees only their own jobs; the user slurm sees all jobs.
    let jobs = |user: &str| {
        report(&container, user)["jobs"].as_array().unwrap().iter().map(|job| job["job"].clone()).collect::<Vec<_>>()
    };
    assert_eq!((jobs("alice"), jobs("bob")), (vec![Value::from(alice.clone())], vec![Value::from(bob.clone())]));
    assert_eq!(jobs("slurm").len(), 2);
    let foreign = docker(["exec", "--user", "bob", &container.name, "cat", "/var/lib/slurm/jobs.jsonl"]);
    assert_ne!(foreign.code, 0, "{foreign:?}");
    let hold = "push @c, IO::Socket::UNIX->new(Peer => '/run/slurminit/report.sock') for 1..100; sleep 60";
    docker(["exec", "--detach", "--user", "bob", &container.name, "perl", "-MIO::Socket::UNIX", "-e", hold]).ok();
    container.until("pgrep -u bob perl");
    assert_eq!(jobs("alice"), vec![Value::from(alice.clone())], "bob's connections lock out alice");
    container.sh("pkill -u bob perl");
    let none = docker(["exec", "--user", "bob", &container.name, "slurminit", "report", &alice]);
    assert!(none.code == 1 && none.stderr.contains("no report for"), "{none:?}");
    // bob has requested mail, so the end of his job is notified.
    container.until("grep -q job-end /tmp/ends");
    let end: Value = serde_json::from_str(&container.sh("cat /tmp/ends")).unwrap();
    assert_eq!(
        (end["job"].to_string(), &end["user"], &end["percent"]),
        (bob.clone(), &"bob".into(), &30.into()),
        "{end}"
    );
    assert!(end["line"].as_str().unwrap().contains("mean use 30 %"), "{end}");
    // Every user can see the last hour of the GPUs, and that both jobs ended.
    let health: Value = serde_json::from_str(&container.sh("cat /run/slurminit/gpus.json")).unwrap();
    let ended: Vec<String> = health["job_uses"].as_array().unwrap().iter().map(|job| job["job"].to_string()).collect();
    assert!(ended.contains(&alice) && ended.contains(&bob), "{health:#}");
    assert!(
        health["gpus"][1]["last_hour"].as_array().unwrap().iter().any(|mean| mean.as_u64() >= Some(30)),
        "{health:#}"
    );
    let status = docker(["exec", "--user", "alice", &container.name, "slurminit", "status"]).ok();
    assert!(status.contains("LAST HOUR") && status.contains("30 %"), "{status}");
    let text = container.sh("slurminit report");
    assert!(text.contains("alice") && text.contains("30 %") && text.contains("cancelled"), "{text}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn killed_container_loses_one_interval_of_a_report() {
    let (container, _config) = serve(1, PEOPLE);
    set(&container, 0, 55, 1_000);
    let job_id = submit(&container, "alice", "--gres=gpu:1");
    until_sampled(&container, 6);
    // Restarts of the agent and of slurmctld do not end the run.
    container.sh("slurminit restart agent && slurminit restart slurmctld");
    until_sampled(&container, 3);
    let killed: f64 = container.sh("date +%s.%N").parse().unwrap();
    docker(["kill", &container.name]).ok();
    docker(["start", &container.name]).ok();
    container.wait_until_healthy();
    container.until("grep -Eq \"REQUEUED|LOST\" /var/lib/slurm/jobs.jsonl");
    let runs = container.sh("cat /var/lib/slurm/jobs.jsonl");
    let run: Value = serde_json::from_str(runs.lines().next().unwrap()).unwrap();
    let start = run["start"].as_f64().unwrap();
    let measured = run["gpus"][0]["measured_ms"].as_f64().unwrap() / 1000.0;
    // slurmctld's times are whole seconds. The agent's restart leaves a gap of less than 3 intervals, which counts as measured time.
    assert!((-2.0..=5.0).contains(&(killed - start - measured)), "{} s of {} s: {run:#}", measured, killed - start);
    // The next run of the job is added.
    container.until(&format!("slurminit report {job_id} --csv | grep -q ,RUNNING,2,"));
    assert_eq!(run["gpus"][0]["busy"].as_f64(), run["gpus"][0]["percent_ms"].as_f64().map(|ms| ms * 55.0), "{run:#}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn two_nodes_of_a_job_appear_as_one_report() {
    let (network, key) = (Network::new(), Volume::new("key"));
    let config = directory(&[("slurminit.toml", "[accounting]\nmode = 'embedded'\n[agent]\ninterval = 1\n")]);
    let member = |image, role: &str, name| {
        Image::new(image)
            .with(["--hostname", name, "--network-alias", name, "--network", &network.0, "--env", "DEMO_GPUS=2"])
            .with(["--env", &format!("SLURMINIT_ROLE={role}"), "--env", "SLURMINIT_CONTROLLER=head"])
            .mount(config.path(), "/config")
            .volume(&key, "/etc/munge")
            .serve()
    };
    let head = member(FULL, "controller", "head");
    let nodes = [member(DEMO, "compute", "c1"), member(DEMO, "compute", "c2")];
    for (node, percent) in nodes.iter().zip([70, 20]) {
        set(node, 0, percent, 10_000);
        set(node, 1, percent, 10_000);
    }
    let id = nodes[0].sh("sbatch --parsable -N2 --gres=gpu:2 -o /dev/null --wrap 'srun sleep 12'");
    nodes[0].until(&format!("squeue --noheader --jobs {id} --states RUNNING | grep -q ."));
    nodes[0].sh(&format!("scontrol update jobid={id} admincomment='a note of the administrator'"));
    // Both nodes add their parts to the database.
    let is_merged = format!("slurminit report {id} --json | grep -c measured_seconds | grep -qx 4");
    head.until(&is_merged);
    let all = report(&head, "root");
    let job = job(&all, &id);
    assert_eq!((job["gpus"].as_array().unwrap().len(), job["nodes"].as_array().unwrap().len()), (4, 2), "{all:#}");
    for gpu in job["gpus"].as_array().unwrap() {
        let set = if gpu["node"] == "c1" { 70.0 } else { 20.0 };
        assert_within(2.0, gpu["use_percent"].as_f64().unwrap(), set);
    }
    assert_within(2.0, job["use_percent"].as_f64().unwrap(), 45.0);
    let comment =
        head.sh(&format!("sacct --noheader --parsable2 --allocations --jobs {id} --format=AdminComment,SystemComment"));
    assert!(comment.starts_with("JS1:") && comment.ends_with("|a note of the administrator"), "{comment}");
    // A node has its own part even without the database.
    assert_eq!(nodes[1].sh("wc -l </var/lib/slurm/jobs.jsonl"), "1");
    // `slurminit usage` contains the job's use, too.
    head.until("slurminit usage | grep -q \"45 %\"");
}

/// 20 jobs, submitted by two users in turn; every third job uses its GPU.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn exactly_the_idle_jobs_are_warned_and_then_cancelled() {
    const JOBS: u32 = 20;
    let toml = "[gpu.idle]\naction = 'cancel'\nafter = 20\n[slurm.conf]\nDefMemPerCPU = 20\n\
        [[partition]]\nname = 'debug'\nDefault = 'YES'\nOverSubscribe = 'FORCE:20'\n";
    let (container, _config) = serve(JOBS, &format!("{toml}{PEOPLE}"));
    let is_busy = |gpu: u32| gpu % 3 == 0;
    let conditions = (0..JOBS).map(|gpu| if is_busy(gpu) { 3 } else { 1 });
    for (gpu, percent) in (0..).zip(conditions) {
        set(&container, gpu, percent, 30_000);
    }
    let submit = |number: u32| {
        let user = ["alice", "bob"][(number % 2) as usize];
        let line = "sbatch --hold --parsable --gres=gpu:1 --output /tmp/out-%j --wrap 'exec sleep 600'";
        let id = docker(["exec", "--user", user, "--workdir", "/tmp", &container.name, "sh", "-c", line]).ok();
        id.trim().to_owned()
    };
    let ids: Vec<String> = (0..JOBS).map(submit).collect();
    // Together, because the first idle jobs end after 40 s.
    container.sh(&format!("scontrol release {}", ids.join(",")));
    container.until(&format!("[ $(squeue --noheader --states RUNNING | wc -l) = {JOBS} ]"));
    let gpu_of = |id: &String| -> u32 {
        let detail = container.sh(&format!("scontrol --details show job {id} | grep -o 'IDX:[0-9]*'"));
        detail.trim_start_matches("IDX:").parse().unwrap()
    };
    let (busy, idle): (Vec<&String>, Vec<&String>) = ids.iter().partition(|id| is_busy(gpu_of(id)));
    assert_eq!((busy.len(), idle.len()), (7, 13));
    container.until("[ $(squeue --noheader --states RUNNING | wc -l) = 7 ]");
    let running = container.sh("squeue --noheader --states RUNNING --format %i | sort -n | xargs");
    assert_eq!(running, busy.iter().map(|id| id.as_str()).collect::<Vec<_>>().join(" "));
    // The output of each idle job has both lines, and the output of the other jobs is empty.
    for id in idle {
        let output = container.sh(&format!("cat /tmp/out-{id}"));
        let (warned, cancelled) =
            (output.find("the job will be cancelled"), output.find("cancelled: GPU use of this job"));
        assert!(warned.is_some() && warned < cancelled, "{output}");
    }
    for id in &busy {
        assert_eq!(container.sh(&format!("cat /tmp/out-{id}")), "");
    }
    let kinds = |kind: &str| container.records(kind).len();
    assert_eq!((kinds("idle-job"), kinds("idle-job-cancelled")), (13, 13));
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn output_of_batch_job_ends_with_its_report() {
    let (container, _config) = serve(1, &format!("[report]\noutput = true\n{PEOPLE}"));
    set(&container, 0, 45, 2_048);
    let batch = |output: &str| {
        let line = format!("sbatch --parsable --wait --gres=gpu:1 --output '{output}' --wrap 'echo done; sleep 4'");
        docker(["exec", "--user", "alice", "--workdir", "/tmp", &container.name, "sh", "-c", &line])
            .ok()
            .trim()
            .to_owned()
    };
    // The user's link leads to a file that the user cannot write.
    container.sh("echo root > /tmp/roots && chmod 644 /tmp/roots");
    batch("/tmp/linked");
    docker(["exec", "--user", "alice", &container.name, "ln", "-sf", "/tmp/roots", "/tmp/linked"]).ok();
    let job = batch("/tmp/a b-%j");
    container.until(&format!("grep -q \"slurminit report {job}\" \"/tmp/a b-{job}\""));
    let output = container.sh(&format!("cat '/tmp/a b-{job}'"));
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines[0] == "done" && lines[1].contains("mean use 45 %, memory at most 2048 of 143771 MiB"), "{output}");
    assert_eq!((lines.len(), container.sh("cat /tmp/roots").as_str()), (3, "root"), "{output}");
}
