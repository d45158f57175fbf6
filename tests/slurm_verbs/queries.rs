//! Verbs that query Slurm: `token`, `usage`, `report`, `sbatch-args`, `nodes` and `why`.

use std::fs;
use std::io::Write as _;

use base64::Engine as _;
use faults::usage::{Job, JobRecord};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::fake::Fake;
use super::session::with_job;

#[test]
fn token_is_limited_by_configured_lifetime() {
    let fake = || {
        Fake::new()
            .config("AuthAltParameters = jwt_key=/k,max_token_lifespan=600")
            .reply("scontrol token username=alice lifespan=600", &["SLURM_JWT=abc\n"])
    };
    assert_eq!(fake().succeed(&["token", "alice", "--lifespan", "600"]), "abc\n");
    let longer = fake();
    assert!(!longer.run(&["token", "alice", "--lifespan", "601"]).status.success());
    assert_eq!(longer.calls("scontrol token"), [""; 0]);
    let unlimited = Fake::new().config("").reply("scontrol token *", &["SLURM_JWT=\n"]);
    assert!(!unlimited.run(&["token", "alice"]).status.success(), "an empty token");
    assert_eq!(unlimited.calls("scontrol token "), ["username=alice lifespan=3600"]);
}

#[test]
fn usage_sums_jobs_of_period() {
    let fake =
        Fake::new().reply("sacct *", &["70|alice|lab|3600|cpu=2,gres/gpu=1|\n71|alice|lab|3600|cpu=2,gres/gpu=1|\n"]);
    let output = fake.succeed(&["usage", "--since", "now-1days", "--until", "now-1hours", "--json"]);
    assert!(output.contains("\"gpu_seconds\": 7200"), "{output}");
    let [call] = fake.calls("sacct ").try_into().unwrap();
    assert!(call.contains("--starttime=now-1days --endtime=now-1hours"), "{call}");
    assert!(!Fake::new().fail("sacct *", "no database").run(&["usage"]).status.success());
}

#[test]
fn sbatch_args_are_refused_without_answer_of_controller() {
    let fake = Fake::new().fail("scontrol *", "Unable to contact slurm controller");
    let file = fake.path("method.json");
    fs::write(&file, "{\"cpus\": 1}").unwrap();
    let output = fake.run(&["sbatch-args", file.to_str().unwrap()]);
    assert!(!output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "--refused-by-slurminit\n");
    fs::write(&file, " ".repeat((1 << 20) + 1)).unwrap();
    let output = fake.run(&["sbatch-args", "--offline", file.to_str().unwrap()]);
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(why.contains("longer than 1 MiB"), "{why}");
}

/// A record of node `c1`: the job, and how many days ago it ended.
fn record(job: u64, user: &str, days: Option<u64>) -> JobRecord {
    let now = watch::agent::unix();
    let (start, end) = (now - 40 * 86_400, days.map(|days| now - days * 86_400 - 60));
    let job = Job { job, user: user.to_owned(), state: "COMPLETED".to_owned(), start, end, ..Job::default() };
    JobRecord { job, node: "c1".to_owned(), ..JobRecord::default() }
}

/// The record as an AdminComment.
fn comment(record: &JobRecord) -> String {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    write!(gzip, "{}", serde_json::json!({ "nodes": { "c1": { "slurminit": record } } })).unwrap();
    format!("JS1:{}\n", base64::engine::general_purpose::STANDARD.encode(gzip.finish().unwrap()))
}

#[test]
fn report_selects_jobs_by_time_user_and_name() {
    let records = [record(17, "alice", Some(1)), record(18, "bob", None), record(19, "alice", Some(30))];
    let comments = records.each_ref().map(comment).concat();
    let fake =
        || Fake::new().config("AccountingStorageType = accounting_storage/slurmdbd").reply("sacct *", &[&comments]);
    let report = |options: &[&str]| {
        let fake = fake();
        // Root reads the records of its own node, which the database has, too.
        fs::write(fake.path("state/jobs.jsonl"), serde_json::to_string(&records[0]).unwrap() + "\n").unwrap();
        let output = fake.run(&[&["report", "--csv"], options].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        let jobs: Vec<String> = text.lines().skip(1).map(|line| line.split(',').next().unwrap().to_owned()).collect();
        let [call] =
            fake.calls("sacct --allocations --parsable2 --noheader --format=AdminComment ").try_into().unwrap();
        (output.status.success(), jobs.join(" "), call.trim_end_matches(" --allusers").to_owned())
    };
    let outcome = |succeeds, jobs: &str, which: &str| (succeeds, jobs.to_owned(), which.to_owned());
    assert_eq!(report(&[]), outcome(true, "17 18", "--starttime=now-604800seconds"));
    assert_eq!(report(&["--since", "31d"]), outcome(true, "19 17 18", "--starttime=now-2678400seconds"));
    assert_eq!(report(&["--user", "alice"]), outcome(true, "17", "--starttime=now-604800seconds"));
    assert_eq!(report(&["19", "18"]), outcome(true, "19 18", "--jobs=19,18"));
    assert_eq!(report(&["19", "--user", "bob"]), outcome(false, "", "--jobs=19"));
    assert_eq!(report(&["20", "17"]), outcome(false, "17", "--jobs=20,17"));
    let json: serde_json::Value = serde_json::from_str(&fake().succeed(&["report", "--json"])).unwrap();
    assert_eq!((&json["jobs"][0]["job"], &json["users"][0]["user"]), (&"17".into(), &"alice".into()));
    assert!(fake().succeed(&["report"]).starts_with("JOB "));
}

#[test]
fn report_without_database_is_about_own_node() {
    let is_root = nix::unistd::geteuid().is_root();
    for (storage, log) in [("slurmdbd", "jobs of other nodes are missing: "), ("none", "")] {
        let storage = format!("AccountingStorageType = accounting_storage/{storage}");
        let fake = Fake::new().config(&storage).fail("sacct *", "no database");
        fs::write(fake.path("state/jobs.jsonl"), serde_json::to_string(&record(17, "alice", None)).unwrap()).unwrap();
        let output = fake.run(&["report"]);
        // The agent, which passes records to other users, is not running.
        assert_eq!(output.status.success(), is_root, "{output:?}");
        assert_eq!(fake.calls("sacct").len(), usize::from(!log.is_empty()));
        assert!(!is_root || String::from_utf8_lossy(&output.stderr).starts_with(log), "{output:?}");
    }
}

#[test]
fn sbatch_args_request_resources_of_method() {
    let fake = Fake::new()
        .reply(
            "scontrol --oneliner show node",
            &["NodeName=c1 CPUEfctv=2 RealMemory=8000 Partitions=main State=IDLE\n"],
        )
        .reply("scontrol --oneliner show partition", &["PartitionName=main Default=YES Nodes=c1 State=UP\n"]);
    let file = fake.path("method.json");
    let method = |cpus: u64| format!("{{\"resources\": {{\"cpus\": {cpus}}}}}");
    let arguments = |method: &str, options: &[&str]| {
        fs::write(&file, method).unwrap();
        let output = fake.run(&[&["sbatch-args", file.to_str().unwrap()], options].concat());
        (output.status.success(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (succeeds, line, why) = arguments(&method(2), &["--partition", "main"]);
    assert!(succeeds && line == "--nodes=1 --ntasks=1 --partition=main --cpus-per-task=2\n", "{line} {why}");
    assert_eq!(arguments(&method(2), &["--partition", "main", "--offline"]), (true, line, why));
    let (succeeds, line, why) = arguments(&method(3), &[]);
    assert!(!succeeds && line == "--refused-by-slurminit\n" && why.contains("method.json"), "{line} {why}");
    assert!(arguments(&method(3), &["--offline"]).0);
    assert!(!arguments("{}", &["--partition", "a b"]).0);
    // A file of exactly 1 MiB is read.
    assert!(arguments(&(method(2) + &" ".repeat((1 << 20) - method(2).len())), &["--offline"]).0);
    let mut stdin = fake.command(&["sbatch-args", "--offline", "-"]);
    let output = stdin.stdin(fs::File::open(&file).unwrap()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn nodes_and_reasons_of_jobs_are_shown() {
    let fake = with_job(Fake::new(), "PENDING");
    assert_eq!(fake.succeed(&["why", "70"]), "Job 70 of alice waits for resources; it requests 2 CPUs\n");
    let output = fake.run(&["why", "71"]);
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && why.contains("job 71 is not in the queue"), "{why}");
    let nodes = r#"{"nodes": [{"name": "c1", "state": ["IDLE"], "gres": "gpu:a:1", "gres_used": "gpu:a:0"}]}"#;
    let fake = Fake::new()
        .config("MaxNodeCount = 10")
        .reply("scontrol --details --json show node", &[nodes])
        .reply("squeue *", &[r#"{"jobs": []}"#]);
    assert!(fake.succeed(&["nodes"]).starts_with("1 node: 1 idle · 1 GPU: 1 free"));
    let json: serde_json::Value = serde_json::from_str(&fake.succeed(&["nodes", "--json"])).unwrap();
    assert_eq!((&json["shape"], &json["nodes"][0]["name"]), (&1.into(), &"c1".into()));
}
