//! Slurm files provided by the operator. Each case runs a container with one set of files.

use crate::docker::{Image, PLAIN, Volume, directory};
use crate::doctor::report;

/// A valid slurm.conf.
const BASE: &str = "# USER_CUSTOMIZED=true\nClusterName=own\nSlurmctldHost=box\nSlurmUser=slurm\n\
    StateSaveLocation=/var/lib/slurm/slurmctld\nSlurmdSpoolDir=/var/lib/slurm/slurmd\nProctrackType=proctrack/linuxproc\n\
    TaskPlugin=task/none\nGetEnvTimeout=0\nReturnToService=2\nNodeName=box CPUs=2\nPartitionName=debug Nodes=ALL Default=YES\n";
/// A cgroup.conf that does not disable cgroups.
const CGROUP: &str = "# USER_CUSTOMIZED=true\nConstrainCores=yes\nConstrainDevices=yes\n";

fn image(files: &[(&str, &str)]) -> (tempfile::TempDir, Image) {
    let directory = directory(files);
    let image = Image::new(PLAIN).with(["--hostname", "box"]).mount(directory.path(), "/config");
    (directory, image)
}

/// Files that would crash a daemon are rejected before any daemon starts; the error names file and line.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn rejects_files_that_crash_a_daemon() {
    let edited = |from: &str, to: &str| BASE.replace(from, to);
    let with_state = edited("/var/lib/slurm/slurmctld", "/etc");
    let with_cgroups = edited("proctrack/linuxproc", "proctrack/cgroup");
    let without_node = edited("NodeName=box", "NodeName=n[1-2]");
    let with_include = edited("NodeName=box CPUs=2", "Include nodes.conf");
    let without_user = edited("SlurmUser=slurm", "SlurmUser=nobody-here");
    let cases: [(&[(&str, &str)], &str); 10] = [
        (&[("slurm.conf", &with_state)], "/config/slurm.conf:5: "),
        (&[("slurm.conf", &with_cgroups), ("cgroup.conf", CGROUP)], "/config/slurm.conf:7: "),
        (&[("slurm.conf", &without_node)], "/config/slurm.conf:11: "),
        (&[("slurm.conf", &with_include)], "/config/slurm.conf:11: "),
        (&[("slurm.conf", &without_user)], "/config/slurm.conf:4: "),
        (&[("slurminit.toml", "[slurm.conf]\nTopologyPlugin = 'topology/block'\n")], "/config/slurminit.toml:2:"),
        (&[("slurminit.toml", "[slurm.conf]\nAuthType = 'auth/slurm'\n")], "/config/slurminit.toml:2:"),
        (&[("slurminit.toml", "[slurm.conf]\nTaskPlugin = 'task/cgroup'\n")], "/config/slurminit.toml:2:"),
        (
            &[("slurminit.toml", "[slurm.conf]\nJobContainerType = 'job_container/tmpfs'\n")],
            "/config/slurminit.toml:2:",
        ),
        (&[("slurminit.toml", "[slurm.conf]\nPreemptType = 'preempt/qos'\n")], "/config/slurminit.toml:2:"),
    ];
    for (files, place) in cases {
        let (_files, image) = image(files);
        let outcome = image.run(&["true"]);
        assert_eq!(outcome.code, 78, "{files:?}: {outcome:?}");
        assert!(outcome.stderr.contains(place), "{place}: {outcome:?}");
    }
    // A slurm.conf in UTF-16.
    let (files, image) = image(&[]);
    std::fs::write(files.path().join("slurm.conf"), b"\xff\xfe#\0 \0").expect("write slurm.conf");
    assert_eq!(image.run(&["true"]).code, 78);
}

/// Lines for other hosts, a byte order mark, an included file, missing directories and another SlurmUser.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn runs_with_site_configuration() {
    let conf = BASE
        .replace("# USER", "\u{feff}# USER")
        .replace("SlurmUser=slurm\n", "")
        .replace("/var/lib/slurm/slurmctld", "/srv/slurm/state")
        .replace("/var/lib/slurm/slurmd", "/srv/slurm/spool/%n")
        .replace("NodeName=box CPUs=2", "GresTypes=gpu\nInclude nodes.conf");
    let nodes = "NodeName=box CPUs=2\nNodeName=dgx[1-2] NodeAddr=127.0.0.1 CPUs=256 RealMemory=2000000 Gres=gpu:8\n";
    let gres = "NodeName=dgx1 Name=gpu File=/dev/nvidia[0-7]\nNodeName=dgx2 Name=gpu File=/dev/nvidia[0-7]\n";
    let (files, image) = image(&[("slurm.conf", &conf), ("nodes.conf", nodes), ("gres.conf", gres)]);
    let container = image.serve();
    container.sh("srun --nodelist=box true");
    assert_eq!(container.sh("ps -o user= -p $(pidof slurmctld | tr ' ' ,) | sort -u"), "root");
    assert_eq!(container.sh("slurminit status --json | grep -c '\"severity\": *\"error\"' || true"), "0");
    assert_eq!(report(&container, "").of("own-files").verdict, "ok");
    // A reload detects changes in an included file.
    container.exec(&["slurminit", "reload"]).ok();
    std::fs::write(files.path().join("nodes.conf"), nodes.replace("box CPUs=2", "box CPUs=1"))
        .expect("write nodes.conf");
    container.exec(&["slurminit", "reload"]).ok();
    assert_eq!(container.sh("sinfo --noheader --nodes=box --format=%c"), "1");
    // A reload rejects the same files as a start.
    std::fs::write(files.path().join("nodes.conf"), nodes.replace("box", "other")).expect("write nodes.conf");
    assert_ne!(container.exec(&["slurminit", "reload"]).code, 0);
    container.sh("srun --nodelist=box true");
}

/// A new volume belongs to root and contains only slurminit's lock. A missing directory is created.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn gives_empty_state_directory_to_slurmctld_user() {
    let state = Volume::new("state");
    let conf = BASE.replace("/var/lib/slurm/slurmctld", "/srv/state");
    let (_files, image) = image(&[("slurm.conf", &conf)]);
    assert_eq!(image.clone().volume(&state, "/srv/state").run(&["srun", "hostname"]).stdout, "box\n");
    assert_eq!(image.clone().volume(&state, "/srv/state").run(&["stat", "-c", "%U", "/srv/state"]).stdout, "slurm\n");
    assert_eq!(image.run(&["srun", "hostname"]).stdout, "box\n");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn configured_name_selects_node_in_slurm_conf() {
    let conf = BASE.replace("NodeName=box", "NodeName=n[1-2] NodeAddr=127.0.0.1");
    let (files, image) = image(&[("slurm.conf", &conf)]);
    let container = image.with(["--env", "SLURMINIT_NODE_NAME=n2"]).serve();
    assert_eq!(container.sh("srun --nodelist=n2 printenv SLURMD_NODENAME"), "n2");
    // Slurm creates no credentials for a UID without an account, so the job is held.
    container.exec(&["setpriv", "--reuid=4321", "--clear-groups", "sh", "-c", "cd /tmp; sbatch --wrap true"]).ok();
    container.until("squeue --noheader --format=%r | grep -q JobHeld");
    let answer = report(&container, "").of("waiting-jobs");
    assert_eq!(answer.verdict, "fail");
    // The suggested fix works: a [[user]] with that uid, then these commands.
    std::fs::write(files.path().join("slurminit.toml"), "[[user]]\nname = \"ana\"\nuid = 4321\n").expect("write");
    let (_, commands) = answer.fix.as_deref().and_then(|fix| fix.split_once("; ")).expect("commands");
    container.sh(commands);
    container.until("! squeue --noheader --states=all --jobs=3 --format=%r | grep -q JobHeld");
}

/// Slurm logs these and exits, some of them only after a wait: each gets the operator's file and line.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn settings_that_daemons_reject_are_refused_with_their_line() {
    let gpu = BASE.replace("NodeName=box CPUs=2", "GresTypes=gpu\nNodeName=box CPUs=2 Gres=gpu:1");
    let with = |line: &str| format!("{BASE}{line}\n");
    let marked = |lines: &str| format!("# USER_CUSTOMIZED=true\n{lines}\n");
    let cases = [
        // slurmd waits 19 s for a device.
        (gpu.clone(), Some(marked("Name=gpu File=/dev/nvidia7")), "/config/gres.conf:2: "),
        (gpu.clone(), Some(marked("Name=gpu AutoDetect=nvml\nName=gpu AutoDetect=nvml")), "/config/gres.conf:2: "),
        (
            gpu.replace("gpu:1", "gpu:2"),
            Some(marked("Name=gpu Type=a File=/dev/zero\nName=gpu File=/dev/null")),
            "/config/gres.conf:2: ",
        ),
        (with("AccountingStorageLoc=/var/log/slurm"), None, "/config/slurm.conf:13: "),
        (with("PartitionName=debug Nodes=box"), None, "/config/slurm.conf:12: "),
        (with("MaxNodeCount=0"), None, "/config/slurm.conf:13: "),
        (with("only words"), None, "/config/slurm.conf:13: "),
    ];
    let outcomes = crate::docker::side_by_side(3, &cases, |(slurm, gres, _)| {
        let mut files = vec![("slurm.conf", slurm.as_str())];
        files.extend(gres.as_ref().map(|gres| ("gres.conf", gres.as_str())));
        let (_files, image) = image(&files);
        image.run(&["true"])
    });
    for ((_, _, place), outcome) in cases.iter().zip(outcomes) {
        assert_eq!(outcome.code, 78, "{place} {outcome:?}");
        let last = outcome.stderr.lines().last().unwrap_or_default();
        assert!(last.contains(place), "{place}: {outcome:?}");
    }
}

/// slurmctld tries each host for 10 s, and waits for a database forever.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn hosts_without_address_are_named_once_with_line_and_delay() {
    let nodes = BASE.replace("CPUs=2\nPart", "CPUs=2\nNodeName=far[1-2] CPUs=2\nPart");
    let backup = BASE.replace("SlurmUser", "SlurmctldHost=spare\nSlurmUser");
    let database = format!("{BASE}AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=db\n");
    let address = BASE.replace("CPUs=2\nPart", "CPUs=2\nNodeName=far1 NodeAddr=far1.lab CPUs=2\nPart");
    let cloud = BASE.replace("CPUs=2\nPart", "CPUs=2\nNodeName=far[1-9] State=CLOUD CPUs=2\nPart");
    for (conf, named) in [
        (nodes, Some("far1 (/config/slurm.conf:12), far2 (/config/slurm.conf:12)")),
        (backup, Some("spare (/config/slurm.conf:4)")),
        (database, Some("db (/config/slurm.conf:14)")),
        (address, Some("far1.lab (/config/slurm.conf:12)")),
        (cloud, None),
    ] {
        let (_files, image) = image(&[("slurm.conf", &conf)]);
        let container = image.json_log().start();
        container.until_logged("prepared", None);
        let found: Vec<String> = container
            .log()
            .lines()
            .filter(|line| line.contains("hosts without an address"))
            .map(str::to_owned)
            .collect();
        assert_eq!(found.len(), usize::from(named.is_some()), "{conf}: {}", container.log());
        assert!(named.is_none_or(|named| found[0].contains(named) && found[0].contains("NodeAddr=")), "{found:?}");
    }
}

/// The daemons start without programs and plugins that only jobs use, but then the first job would drain the node or fail.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn programs_and_plugins_of_jobs_are_checked_before_the_start() {
    let with = |line: &str| vec![("slurm.conf".to_owned(), format!("{BASE}{line}\n"))];
    let toml = |line: &str| vec![("slurminit.toml".to_owned(), format!("[slurm.conf]\n{line}\n"))];
    let cases = [
        (with("Prolog=/etc/slurm/prolog.sh"), "/config/slurm.conf:13: Prolog=/etc/slurm/prolog.sh does not exist"),
        (with("Epilog=/usr/local/sbin/epilog"), "/config/slurm.conf:13: Epilog="),
        (with("TaskProlog=/etc/hostname"), "/config/slurm.conf:13: TaskProlog=/etc/hostname is not an executable file"),
        (with("PrologSlurmctld=prolog.d/first"), "/config/slurm.conf:13: PrologSlurmctld=/etc/slurm/prolog.d/first"),
        (with("Epilog=/etc/slurm/epilog.d/*"), "/config/slurm.conf:13: Epilog=/etc/slurm/epilog.d/* does not exist"),
        (with("Prolog=/srv/*"), "/config/slurm.conf:13: Prolog=/srv/* does not exist"),
        (with("Prolog=/usr/bin/no*match"), "/config/slurm.conf:13: Prolog=/usr/bin/no*match does not exist"),
        (with("ProctrackType=linuxproc"), "/config/slurm.conf:13: "),
        (with("MpiDefault=pmix_v3"), "/config/slurm.conf:13: MpiDefault=pmix_v3"),
        (with("AcctGatherEnergyType=acct_gather_energy/none-such"), "/config/slurm.conf:13: AcctGatherEnergyType="),
        (with("SlurmdPort=6817"), "/config/slurm.conf:13: SlurmctldPort and SlurmdPort are both 6817"),
        (with("SlurmctldPort=6818"), "/config/slurm.conf:13: SlurmctldPort and SlurmdPort are both 6818"),
        (toml("MpiDefault = 'pmix_v3'"), "/config/slurminit.toml:2:"),
        (toml("Prolog = '/opt/prolog'"), "/config/slurminit.toml:2:"),
    ];
    let outcomes = crate::docker::side_by_side(3, &cases, |(files, _)| {
        let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let (_files, image) = image(&files);
        image.run(&["true"])
    });
    for ((_, place), outcome) in cases.iter().zip(outcomes) {
        assert!(outcome.code == 78 && outcome.stderr.contains(place), "{place}: {outcome:?}");
    }
    let plugins = directory(&[("plugstack.conf", "optional no_such.so\nrequired /no/such/spank.so\n")]);
    let mount = format!("{}:/etc/slurm/plugstack.conf", plugins.path().join("plugstack.conf").display());
    let outcome = Image::new(PLAIN).with(["--volume", &mount]).run(&["true"]);
    assert!(outcome.code == 78 && outcome.stderr.contains("/etc/slurm/plugstack.conf:2: "), "{outcome:?}");
    // Accepted: programs that exist, a pattern, and programs that no job needs.
    let usable = "Prolog=/bin/true\nEpilog=/bin/tru[e]\nTaskEpilog=/no/such\nMpiDefault=none";
    let (files, image) = image(&[("slurm.conf", &format!("{BASE}{usable}\n"))]);
    let container = image.serve();
    container.sh("srun true");
    assert!(container.log().contains("TaskEpilog=/no/such does not exist"), "{}", container.log());
    // A reload also checks the programs.
    std::fs::write(files.path().join("slurm.conf"), format!("{BASE}Prolog=/no/such\n")).expect("write slurm.conf");
    let reload = container.exec(&["slurminit", "reload"]);
    assert!(reload.code != 0 && reload.stderr.contains("/config/slurm.conf:13: "), "{reload:?}");
    container.sh("srun true");
}

/// Each of these mismatches makes the node `inval`: the start names file and line, and `doctor` quotes the line.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_user_files_that_do_not_match_hardware() {
    let node = |keys: &str| BASE.replace("NodeName=box CPUs=2", &format!("NodeName=box {keys}"));
    let gpu = |keys: &str| BASE.replace("NodeName=box CPUs=2", &format!("GresTypes=gpu\nNodeName=box CPUs=2 {keys}"));
    let gres = |line: &str| Some(format!("{line}\n"));
    let cases = [
        (node("Procs=64"), None, "/config/slurm.conf:11: box has Procs=64, but this machine has only 2"),
        (
            node("Sockets=2 CoresPerSocket=16 ThreadsPerCore=2"),
            None,
            "/config/slurm.conf:11: box has Sockets=2 CoresPerSocket=16 ThreadsPerCore=2 (64 CPUs)",
        ),
        (node("CPUs=2 Boards=1 SocketsPerBoard=4 CoresPerSocket=8"), None, "/config/slurm.conf:11: box has Boards=1"),
        (node("CPUs=2 TmpDisk=900000000"), None, "/config/slurm.conf:11: box has TmpDisk=900000000"),
        (node("CPUs=2 RealMemory=9000000"), None, "/config/slurm.conf:11: box has RealMemory=9000000"),
        (
            gpu("Gres=gpu:1"),
            gres("Name=gpu File=/dev/zero Cores=32-63"),
            "/config/gres.conf:1: Cores=32-63, but the last core of this machine is ",
        ),
        (
            gpu("Gres=gpu:a100:1"),
            gres("Name=gpu Type=h100 File=/dev/zero"),
            "/config/slurm.conf:12: box has a count of 1 for GPU type a100 in Gres=, but 0 in /config/gres.conf",
        ),
        (
            gpu("Gres=gpu:a100:1,gpu:h100:1"),
            gres("Name=gpu Type=a100 File=/dev/zero\nName=gpu Type=a100 File=/dev/null"),
            "/config/slurm.conf:12: box has a count of 1 for GPU type h100 in Gres=, but 0 in /config/gres.conf",
        ),
    ];
    crate::docker::side_by_side(2, &cases, |(slurm, gres, named)| {
        let mut files = vec![("slurm.conf", slurm.as_str())];
        files.extend(gres.as_ref().map(|gres| ("gres.conf", gres.as_str())));
        let (_files, image) = image(&files);
        let container = image.start();
        container.until_said(named);
        container.until("sinfo --noheader --format=%T | grep -qE \"inval|drained\"");
        if container.sh("sinfo --noheader --format=%T").starts_with("inval") {
            let answer = report(&container, "").of("node");
            let line = slurm.lines().find(|line| line.starts_with("NodeName=")).unwrap_or_default();
            assert!(answer.verdict == "fail" && format!("{answer:?}").contains(line), "{named}: {answer:?}");
        }
    });
}

fn script(directory: &tempfile::TempDir, name: &str, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let path = directory.path().join(name);
    std::fs::write(&path, text).expect("write a script");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
}

const MISSING_INTERPRETER: &str = "#!/nowhere/python\n";

/// At the start and at a reload, a test job verifies that jobs run. It does not wait for other jobs.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn is_ready_once_a_job_has_run() {
    let conf = format!("{BASE}Prolog=/config/prolog\n");
    let (files, image) = image(&[("slurm.conf", &conf), ("slurminit.toml", "[supervise]\nreload_on_change = false\n")]);
    script(&files, "prolog", "#!/bin/sh\n");
    script(&files, "task", MISSING_INTERPRETER);
    let container = image.json_log().serve();
    assert_eq!(container.records("test-job-ran").len(), 1, "{}", container.log());
    let reload = |line: &str| {
        std::fs::write(files.path().join("slurm.conf"), format!("{conf}{line}\n")).expect("write slurm.conf");
        container.exec(&["slurminit", "reload"])
    };
    let refused = reload("TaskProlog=/config/task");
    assert!(refused.code != 0 && container.log().contains("/config/slurm.conf:14: "), "{refused:?}");
    container.sh("srun true");
    let job = container.sh("sbatch --parsable --ntasks=2 --output /dev/null --wrap 'exec sleep 1000'");
    container.until(&format!("squeue --noheader --jobs {job} --states R | grep -q ."));
    reload("MaxJobCount=500").ok();
    assert_eq!(container.records("test-job-not-tried").len(), 1, "{}", container.log());
    container.sh(&format!("squeue --noheader --jobs {job} --states R | grep -q . && scancel {job}"));
    container.until("sinfo --noheader --format=%T | grep -qx idle");
    reload("MaxJobCount=600").ok();
    assert_eq!(container.records("test-job-ran").len(), 2, "{}", container.log());
}

/// While the test job fails, the node is drained, so that jobs wait instead of failing. The container becomes ready once a job has run.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn is_not_ready_while_test_job_fails() {
    let conf = format!("{BASE}Prolog=/config/prolog\nTaskProlog=/config/task\n");
    let (files, image) = image(&[("slurm.conf", &conf)]);
    script(&files, "prolog", "#!/bin/sh\nexit 1\n");
    script(&files, "task", MISSING_INTERPRETER);
    let outcome = image.run(&["true"]);
    assert!(outcome.code == 107 && outcome.stderr.contains("/config/slurm.conf:13: "), "{outcome:?}");
    let container = image.json_log().start();
    container.until_logged("not-ready", None);
    assert_ne!(container.exec(&["slurminit", "health"]).code, 0);
    let answer = report(&container, "").of("drain");
    // Slurm's reason for the drain, or srun's error if srun ends before slurmctld drains the node.
    let is_prolog = |text: &str| text.contains("Prolog error") || text.contains("Job prolog failed");
    assert!(answer.verdict == "fail" && is_prolog(&answer.seen), "{answer:?}");
    // Once this fault is fixed, the next one is reported.
    script(&files, "prolog", "#!/bin/sh\n");
    container.sh("slurminit resume box");
    container.until_log("the TaskProlog", |log| log.contains("/config/slurm.conf:14: "));
    // srun's error, if slurmstepd's message did not reach srun before the step ended.
    container.until("sinfo --noheader --format=%E | grep -qE \"test job: .*(TaskProlog|Exited with exit code)\"");
    assert_eq!(container.sh("squeue --noheader"), "");
    let waiting = container.sh("sbatch --parsable --output /dev/null --wrap true");
    script(&files, "task", "#!/bin/sh\n");
    container.sh("slurminit resume box");
    container.wait_until_healthy();
    container.until(&format!("squeue --noheader --states=CD --jobs {waiting} | grep -q ."));
}
