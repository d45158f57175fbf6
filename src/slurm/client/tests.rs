//! Queries of Slurm's commands, answered by [`answers`].

use super::*;

#[test]
fn error_distinguishes_missing_slow_and_failing_command() {
    let error = |answer: &Answer| {
        let run = |_: &str, _: &[&str]| answer.clone();
        Client::with_runner(&run).run("sinfo", &["--all"]).unwrap_err()
    };
    assert_eq!(error(&Answer::Missing), QueryError::Missing("sinfo"));
    assert_eq!(error(&Answer::Silent), QueryError::TimedOut("sinfo"));
    let failed = Answer::Ended { succeeded: false, stdout: "b".to_owned(), stderr: "a\n".to_owned() };
    assert_eq!(error(&failed), QueryError::Failed { program: "sinfo", output: "a\nb".to_owned() });
}

#[test]
fn update_names_entity_before_settings() {
    let lines = std::cell::RefCell::new(Vec::new());
    let run = |program: &str, arguments: &[&str]| {
        lines.borrow_mut().push(format!("{program} {}", arguments.join(" ")));
        Answer::Ended { succeeded: true, stdout: String::new(), stderr: String::new() }
    };
    let client = Client::with_runner(&run);
    client.update_node("c1", &["state=resume", "reason=none"]).unwrap();
    client.update_job("7", &["timelimit=5"]).unwrap();
    let expected = ["scontrol update nodename=c1 state=resume reason=none", "scontrol update jobid=7 timelimit=5"];
    assert_eq!(lines.into_inner(), expected);
}

#[test]
fn controller_is_up_or_rejects_credentials() {
    let up = answers([
        ("scontrol ping", Ok("Slurmctld(primary) at c1 is DOWN\nSlurmctld(backup) at c2 is UP\n")),
        ("sinfo", Ok("main up\n")),
    ]);
    let up = Client::with_runner(&up);
    assert_eq!((up.ping().map(|report| report.state), up.rejection()), (Ok("up".to_owned()), None));
    let down = "Slurmctld(primary) at c1 is DOWN\n";
    let other_key = answers([("scontrol ping", Ok(down)), ("sinfo", Err("slurm: Protocol authentication error"))]);
    let other_key = Client::with_runner(&other_key);
    assert_eq!(other_key.ping(), Err(QueryError::Failed { program: "scontrol", output: down.to_owned() }));
    assert!(other_key.rejection().is_some());
    let silent = answers([("sinfo", Err("Unable to contact slurm controller"))]);
    assert_eq!(Client::with_runner(&silent).rejection(), None);
}

#[test]
fn node_queries_omit_lines_without_a_node() {
    let run = answers([
        ("sinfo --noheader --all --nodes=c[1-2] --format=%T ", Ok("idle root|none\n\ndown* root|fan\n")),
        ("sinfo --noheader --all --nodes c1 --format=%G|%T ", Ok("gpu:nvidia:2|idle root|none\n")),
        ("sinfo --noheader --all --nodes c2 ", Ok("(null)|down root|fan\n")),
        ("sinfo --noheader --all --nodes c3 ", Ok("\n")),
        ("scontrol --oneliner show node c1", Ok("NodeName=c1 State=IDLE\n\n")),
        ("scontrol --oneliner show node c2", Err("Node c2 not found")),
        ("scontrol --oneliner show node c3", Err("Unable to contact slurm controller")),
        ("scontrol --oneliner show node", Ok("NodeName=c1 State=IDLE\nNodeName=c2 State=DOWN\nx\n")),
    ]);
    let client = Client::with_runner(&run);
    let states: Vec<String> = client.node_reports("c[1-2]").unwrap().into_iter().map(|report| report.state).collect();
    assert_eq!(states, ["idle", "down"]);
    let with_gres = |node: &str| client.node_with_gres(node).unwrap().map(|(gres, report)| (gres, report.state));
    assert_eq!(with_gres("c1"), Some(("gpu:nvidia:2".to_owned(), "idle".to_owned())));
    assert_eq!(with_gres("c2"), Some((String::new(), "down".to_owned())));
    assert_eq!(with_gres("c3"), None);
    assert!(client.node("c1").unwrap().is_some_and(|node| node.has_state(&["IDLE"])));
    assert_eq!(client.node("c2"), Ok(None));
    assert!(client.node("c3").is_err());
    let states: Vec<_> = client.nodes().unwrap().iter().map(|node| node.get("State").map(str::to_owned)).collect();
    assert_eq!(states, [Some("IDLE".to_owned()), Some("DOWN".to_owned())]);
}

#[test]
fn job_queries_apply_filter() {
    let holding = format!("squeue --noheader --array --states={} --nodelist=c1 --format=", HOLDING.join(","));
    let run = answers([
        (&holding, Ok("7|7_1|RUNNING|2|0:00|main|bob|1000|c1||||None|gres/gpu:2\nx|y\n")),
        ("squeue --noheader --json", Ok("{}")),
        ("squeue --noheader --Format=JobID:4,State:10", Ok("7   RUNNING\n8   PENDING\n")),
    ]);
    let client = Client::with_runner(&run);
    let jobs = client.jobs(&Jobs { node: Some("c1"), options: &["--array"], ..Jobs::HOLDING }).unwrap();
    let jobs: Vec<_> = jobs.iter().map(|job| (job.number, job.gres.as_str())).collect();
    assert_eq!(jobs, [(7, "gres/gpu:2")]);
    assert_eq!(client.jobs_json(&Jobs { options: &["--json"], ..Jobs::default() }).as_deref(), Ok("{}"));
    let columns = client.job_columns(&Jobs::default(), &[("JobID", 4), ("State", 10)]).unwrap();
    assert_eq!(columns, [["7", "RUNNING"], ["8", "PENDING"]]);
}

#[test]
fn cluster_queries_parse_slurms_output() {
    let run = answers([
        ("scontrol show config", Ok("MaxNodeCount = 64\n")),
        ("scontrol show hostnames c[1-2]", Ok("c1\nc2\n")),
        ("scontrol getaddrs c1", Ok("c1: 172.18.0.3:6818\nx\n")),
        ("scontrol --oneliner show node", Ok("NodeName=c1 CPUEfctv=2 RealMemory=8000 Partitions=main\n")),
        ("scontrol --oneliner show partition", Ok("PartitionName=main Default=YES\n")),
        ("sdiag ", Ok("Server thread count: 3\n")),
        ("sshare ", Ok(" lab||0.250000|\n")),
    ]);
    let client = Client::with_runner(&run);
    assert_eq!(client.config().unwrap().max_node_count(), Some(64));
    assert_eq!(client.hostnames("c[1-2]").unwrap(), ["c1", "c2"]);
    assert_eq!(client.addresses("c1").unwrap(), [("c1".to_owned(), "172.18.0.3:6818".parse().unwrap())]);
    assert_eq!(client.scheduler().unwrap().threads, Some(3));
    assert_eq!(client.shares().unwrap(), [FairShare { account: "lab".to_owned(), factor: 0.25 }]);
    assert_ne!(client.capacity(), Ok(Capacity::default()));
}

#[test]
fn parses_node_addresses() {
    let pair = |line: &str| parse_address(line).map(|(name, address)| format!("{name} {}", address.ip()));
    assert_eq!(pair("compute-1: 172.18.0.3:6818").as_deref(), Some("compute-1 172.18.0.3"));
    assert_eq!(pair("compute-1: [fd00::3]:6818").as_deref(), Some("compute-1 fd00::3"));
    for other in ["", "compute-1: x:6818", "a b: 172.18.0.3:6818", "172.18.0.3:6818"] {
        assert_eq!(pair(other), None, "{other}");
    }
}

#[test]
fn ignores_lines_forged_by_job_name() {
    let line = |mark: &str, id: u64, name: &str| {
        format!("{mark}{id}|{id}|PENDING|2|0:00|main|bob|1000|||||Resources|2|gres/gpu:nvidia:2|lab|{name}\n")
    };
    let run = |_: &str, arguments: &[&str]| {
        let format = arguments.last().and_then(|format| format.strip_prefix("--format=")).unwrap_or_default();
        let mark = format.split_once('%').unwrap_or_default().0;
        let text = line(mark, 7, &format!("train|a\n{}", line("", 8, "forged")));
        Answer::Ended { succeeded: true, stdout: text, stderr: String::new() }
    };
    let jobs = Client::with_runner(&run).jobs_for_display(&Jobs::default()).unwrap();
    let [job] = jobs.as_slice() else { panic!("{jobs:?}") };
    assert_eq!((job.number, job.name.as_str(), job.gpus), (7, "train|a", 4));
    assert_eq!(job.account, "lab");
}

#[test]
fn splits_columns_by_width() {
    let columns = [("JobID", 4), ("State", 10), ("NodeList", 6)];
    assert_eq!(split_columns("7   PENDING         ", &columns), ["7", "PENDING", ""]);
    assert_eq!(split_columns("7   RUNNING   c1", &columns), ["7", "RUNNING", "c1"]);
    assert_eq!(split_columns("", &columns), [""; 3]);
}

#[test]
fn omits_localhost_in_squeue_arguments() {
    let arguments = |node| Jobs { node: Some(node), ..Jobs::HOLDING }.arguments().len();
    assert_eq!((arguments("localhost"), arguments("c1")), (2, 3));
}

#[test]
fn deadline_covers_all_commands_of_a_client() {
    let minute = Duration::from_secs(60);
    assert_eq!(Client::with_timeout(minute).run("true", &[""; 0]), Ok(()));
    assert_eq!(Client::with_total_timeout(minute).run("true", &[""; 0]), Ok(()));
    let passed = Client::with_total_timeout(Duration::ZERO).run("sleep", &["60"]);
    assert_eq!(passed, Err(QueryError::TimedOut("sleep")));
}
