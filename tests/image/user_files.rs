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
    // UTF-16.
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
    let (_files, image) = image(&[("slurm.conf", &conf)]);
    let container = image.with(["--env", "SLURMINIT_NODE_NAME=n2"]).serve();
    assert_eq!(container.sh("srun --nodelist=n2 printenv SLURMD_NODENAME"), "n2");
    // Slurm creates no credentials for a UID without an account, so the job is held.
    container.exec(&["setpriv", "--reuid=4321", "--clear-groups", "sh", "-c", "cd /tmp; sbatch --wrap true"]).ok();
    container.until("squeue --noheader --format=%r | grep -q JobHeld");
    assert_eq!(report(&container, "").of("waiting-jobs").verdict, "fail");
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

/// slurmctld tries each host for 10 s, and waits for a database for ever.
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
