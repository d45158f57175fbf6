//! Accounting with the embedded and with an external database.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::docker::{Container, DEMO, FULL, Image, Network, PLAIN, Volume, directory, docker};

const ACCOUNTS: &str = "[[account]]\nname = 'lab'\nFairshare = 10\nGrpTRES = 'gres/gpu=4'\n\
    [[account]]\nname = 'guests'\nParent = 'lab'\n\
    [[qos]]\nname = 'short'\nPriority = 100\nMaxWall = '01:00:00'\n\
    [[user]]\nname = 'alice'\nuid = 1501\naccount = 'lab'\n[[user]]\nname = 'bob'\nuid = 1502\naccount = 'guests'\n";

/// Waits until the database has recorded that the job completed, and returns these `sacct` columns of the job.
fn wait_for_job_record(container: &Container, job: &str, columns: &str) -> String {
    let condition = format!("sacct -nX -j {job} -o State | grep -q COMPLETED");
    container.sh(&format!("timeout 120 sh -c 'until {condition}; do :; done' && sacct -nXP -j {job} -o {columns}"))
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_records_survive_database_crash_and_new_container() {
    let state = Volume::new("accounting");
    let image = Image::new(FULL).volume(&state, "/var/lib/slurm").json_log();
    let container = image.serve();
    container.sh("srun --job-name first true");
    assert_eq!(wait_for_job_record(&container, "1", "JobName,User,Cluster"), "first|root|slurminit");
    // Only their own users can read the database and its configuration.
    assert_eq!(
        container.sh("stat -c '%U %a' /etc/slurm/slurmdbd.conf /var/lib/slurm/mysql /var/lib/slurm/mysql/data"),
        "slurm 600\nmysql 700\nmysql 700"
    );
    assert_eq!(container.sh("stat -c '%U' /proc/$(pidof mariadbd) /proc/$(pidof slurmdbd)"), "mysql\nslurm");
    assert!(container.warnings().is_empty(), "{:#?}", container.warnings());
    let connect =
        "use IO::Socket::UNIX; exit(IO::Socket::UNIX->new(q(/run/mysqld/mysqld.sock)) ? 0 : $!{EACCES} ? 13 : 1)";
    for (user, code) in [("64030", 0), ("1501", 13)] {
        let groups = if user == "64030" { "--groups=641" } else { "--clear-groups" };
        let client = container.exec(&["setpriv", &format!("--reuid={user}"), groups, "perl", "-MErrno", "-e", connect]);
        assert_eq!(client.code, code, "{user}: {}", client.stderr);
    }
    // A killed database restarts, and then records the jobs that ended in the meantime.
    container.sh("pkill -KILL mariadbd; srun --job-name second true");
    assert_eq!(wait_for_job_record(&container, "2", "JobName"), "second");
    assert_eq!(container.stop(), 0, "{}", container.log());
    drop(container);
    let container = image.serve();
    assert_eq!(container.sh("sacct -nXP -S now-1hour -o JobName"), "first\nsecond");
    assert_eq!(container.sh("sreport -nP cluster utilization start=now-1hour >/dev/null; echo $?"), "0");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn applies_accounts_and_limits_and_keeps_others() {
    let config = directory(&[("slurminit.toml", ACCOUNTS)]);
    let image = Image::new(FULL).mount(config.path(), "/config");
    let container = image.serve();
    let assoc = "sacctmgr -nP show assoc format=account,user,parentname,fairshare,grptres";
    let tree = container.sh(assoc);
    for line in ["lab||root|10|gres/gpu=4", "guests||lab|1|", "lab|alice||1|", "guests|bob||1|"] {
        assert!(tree.lines().any(|found| found == line), "{line}: {tree}");
    }
    assert_eq!(container.sh("sacctmgr -nP show qos where name=short format=priority,maxwall"), "100|01:00:00");
    // Jobs are charged to the user's account; a user without an account cannot run jobs.
    assert_eq!(container.sh("su alice -c 'cd /; srun printenv SLURM_JOB_ACCOUNT'"), "lab");
    container.sh("useradd eve");
    let refused = container.exec(&["su", "eve", "-c", "cd /; srun true"]);
    assert!(refused.stderr.contains("Invalid account"), "{}", refused.stderr);
    for attempt in
        ["modify user alice set adminlevel=admin", "add account eve", "modify account guests set GrpTRES=gres/gpu=9"]
    {
        let refused = container.exec(&["su", "alice", "-c", &format!("cd /; sacctmgr -i {attempt}")]);
        assert_ne!(refused.code, 0, "{attempt}: {refused:?}");
    }
    assert_eq!(container.sh(assoc), tree);
    // A reload restores the values of slurminit.toml and keeps the administrator's other changes.
    container.sh("sacctmgr -i add account own && sacctmgr -i modify account lab set GrpTRES=gres/gpu=1 MaxJobs=7");
    fs::write(config.path().join("slurminit.toml"), ACCOUNTS.replace("100", "200")).unwrap();
    container.sh("slurminit reload");
    assert_eq!(container.sh("sacctmgr -nP show qos where name=short format=priority"), "200");
    let tree = container.sh("sacctmgr -nP show assoc where user= format=account,grptres,maxjobs");
    for line in ["own||", "lab|gres/gpu=4|7"] {
        assert!(tree.lines().any(|found| found == line), "{line}: {tree}");
    }
    let usage = container.sh("slurminit usage --json");
    assert!(usage.contains("\"alice\"") && usage.contains("\"jobs\": 1"), "{usage}");
    // A setting that slurmdbd rejects is reported; the cluster stays ready.
    fs::write(config.path().join("slurminit.toml"), ACCOUNTS.replace("Priority = 100", "Priority = 'high'")).unwrap();
    let outcome = container.exec(&["slurminit", "reload"]);
    let log = container.log() + &outcome.stderr;
    assert!(log.contains("qos where name=short"), "{log}");
    assert_eq!(container.sh("slurminit health --ready"), "ready");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn gpu_hours_include_jobs_of_all_nodes() {
    let (network, key) = (Network::new(), Volume::new("key"));
    let config = directory(&[("slurminit.toml", "[accounting]\nmode = 'embedded'\n")]);
    let member = |image, role, name| {
        Image::new(image)
            .with(["--hostname", name, "--network-alias", name, "--network", &network.0])
            .with([
                "--env",
                &format!("SLURMINIT_ROLE={role}"),
                "--env",
                "SLURMINIT_CONTROLLER=head",
                "--env",
                "DEMO_GPUS=2",
            ])
            .mount(config.path(), "/config")
            .volume(&key, "/etc/munge")
    };
    let head = member(FULL, "controller", "head").serve();
    let node = member(DEMO, "compute", "c1").serve();
    let sum = |container: &Container| container.sh("sha256sum </etc/slurm/slurm.conf");
    assert_eq!(sum(&node), sum(&head));
    // A compute node runs no database; it queries the controller's.
    assert_eq!(node.sh("pidof mariadbd slurmdbd || echo none"), "none");
    node.sh("srun --gres=gpu:2 sleep 2; srun true");
    let job = wait_for_job_record(&node, "1", "ElapsedRaw,AllocTRES");
    assert!(job.contains("gres/gpu=2"), "{job}");
    wait_for_job_record(&node, "2", "State");
    let seconds: u64 = job.split('|').next().unwrap().parse().unwrap();
    let usage = node.sh("slurminit usage --json");
    for part in [format!("\"gpu_seconds\": {}", seconds * 2), "\"jobs\": 2".to_owned()] {
        assert!(usage.contains(&part), "{part}: {usage}");
    }
    let usage = head.sh("slurminit usage");
    assert!(usage.starts_with("USER") && usage.contains("root"), "{usage}");
}

/// A database server called `db`, with the user acct.
fn database_server(network: &Network) -> Container {
    let server = "mkdir -p /run/mysqld && chown mysql /run/mysqld && cp -a /usr/share/slurminit/mariadb /tmp/data && \
        printf '%s\\n' \"create user acct@'%' identified by 's3cret-of-ours';\" \"grant all on *.* to acct@'%';\" >/tmp/init.sql && \
        exec setpriv --reuid=mysql --clear-groups mariadbd --no-defaults --datadir=/tmp/data --bind-address=0.0.0.0 \
        --innodb-undo-tablespaces=0 --innodb-data-file-path=ibdata1:4M:autoextend --init-file=/tmp/init.sql --skip-ssl";
    Image::new(FULL)
        .with(["--network", &network.0, "--network-alias", "db", "--env", "SLURMINIT_ROLE=none"])
        .command(["sh", "-c", server])
        .start()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn external_database_uses_password_without_logging_it() {
    let network = Network::new();
    let secret = directory(&[("password", "s3cret-of-ours\n")]);
    let mode = |mode| fs::set_permissions(secret.path().join("password"), fs::Permissions::from_mode(mode)).unwrap();
    mode(0o400);
    let database = database_server(&network);
    let config = directory(&[(
        "slurminit.toml",
        "[accounting]\nmode = 'external'\ndatabase_host = 'db'\ndatabase_user = 'acct'\npassword_secret = '/run/secrets/db'\n",
    )]);
    let image = Image::new(FULL)
        .with(["--network", &network.0])
        .mount(config.path(), "/config")
        .mount(&secret.path().join("password"), "/run/secrets/db");
    let container = image.serve();
    container.sh("srun --job-name there true");
    assert_eq!(wait_for_job_record(&container, "1", "JobName"), "there");
    assert_eq!(container.sh("pidof mariadbd || echo none"), "none");
    assert!(!container.log().contains("s3cret"), "{}", container.log());
    assert_eq!(
        container.sh("grep -rl s3cret-of-ours /etc/slurm /run /var/lib/slurm /proc/*/environ 2>/dev/null || true"),
        "/etc/slurm/slurmdbd.conf\n/run/secrets/db"
    );
    drop(database);
    // Jobs run while the database is down.
    container.sh("srun true");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn broken_database_aborts_start_unless_accounting_is_off() {
    let state = Volume::new("accounting");
    let image = || Image::new(FULL).volume(&state, "/var/lib/slurm");
    assert_eq!(image().run(&["srun", "true"]).code, 0);
    let damage = "echo nothing >/var/lib/slurm/mysql/data/ibdata1";
    image().with(["--entrypoint", "sh"]).run(&["-c", damage]).ok();
    let outcome = image().run(&["srun", "true"]);
    let output = outcome.stderr + &outcome.stdout;
    assert_eq!(outcome.code, 108, "{output}");
    assert!(output.contains("mariadbd") && output.contains("ibdata1"), "{output}");
    image().with(["--env", "SLURMINIT_ACCOUNTING=none"]).run(&["srun", "true"]).ok();
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_missing_slurmdbd_password_and_accounting() {
    let outcome = Image::new(PLAIN).with(["--env", "SLURMINIT_ACCOUNTING=embedded"]).run(&["true"]);
    assert_eq!(outcome.code, 78);
    assert!(outcome.stderr.contains("slurmdbd") || outcome.stdout.contains("slurmdbd"));
    let config = directory(&[("slurminit.toml", "[accounting]\nmode = 'external'\ndatabase_host = 'db'\n")]);
    let outcome = Image::new(FULL).mount(config.path(), "/config").run(&["true"]);
    let output = outcome.stderr + &outcome.stdout;
    assert!(outcome.code == 104 && output.contains("/run/secrets/accounting_password"), "{output}");
    // `slurminit usage` in a cluster without accounting.
    let plain = Image::new(DEMO).serve();
    let outcome = plain.exec(&["slurminit", "usage"]);
    assert!(outcome.code == 1 && outcome.stderr.contains("docs/accounting.md"), "{}", outcome.stderr);
    // The accounting image can run without accounting.
    let off = Image::new(FULL).with(["--env", "SLURMINIT_ACCOUNTING=none"]).serve();
    assert_eq!(off.sh("pidof mariadbd slurmdbd || echo none"), "none");
}

/// Prints the cluster ID in slurmctld's state.
const CLUSTER_ID: &str = "sed 's/.*|//' /var/lib/slurm/slurmctld/clustername";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn accounting_turned_on_for_used_state_keeps_jobs_and_ids() {
    let state = Volume::new("accounting");
    let image = |mode: &str| {
        let mode = format!("SLURMINIT_ACCOUNTING={mode}");
        Image::new(FULL).with(["--hostname", "node1", "--env", &mode]).volume(&state, "/var/lib/slurm").json_log()
    };
    let without = image("none").serve();
    let hold = "sbatch --parsable --hold -o /dev/null --wrap true";
    assert_eq!(without.sh(&format!("srun printenv SLURM_JOB_ID; {hold}; {hold}")), "1\n2\n3");
    assert_eq!(without.stop(), 0);
    drop(without);
    // Turns accounting on with a new database, after the loss of that database, and with another ID registered for a cluster without jobs.
    let change_id = "sed -i 's/|.*/|17/' /var/lib/slurm/slurmctld/clustername";
    for (line, is_clean) in [("true", true), ("rm -rf /var/lib/slurm/mysql", true), (change_id, false)] {
        image("none").with(["--entrypoint", "sh"]).run(&["-c", line]).ok();
        let with = image("embedded").serve();
        if line == "true" {
            with.sh("scontrol release 3");
            assert_eq!(wait_for_job_record(&with, "3", "State"), "COMPLETED");
        }
        // Job 3 may be recorded as completed while its Epilog still runs.
        with.until("[ \"$(squeue -ho '%i %r')\" = '2 JobHeldUser' ]");
        assert_eq!(with.stop(), 0);
        assert_eq!(with.warnings().is_empty(), is_clean, "{line}: {:#?}", with.warnings());
    }
    let with = image("embedded").serve();
    assert_eq!(with.sh("srun printenv SLURM_JOB_ID; scontrol release 2"), "4");
    // slurmctld considers job 2 recorded, because the lost database had recorded it.
    with.until("scontrol show job 2 | grep -q JobState=COMPLETED");
    assert_eq!(wait_for_job_record(&with, "4", "State"), "COMPLETED");
    assert_eq!(with.stop(), 0);
    drop(with);
    // A database with jobs of another cluster ID is left unchanged.
    image("none").with(["--entrypoint", "sh"]).run(&["-c", change_id]).ok();
    let refused = image("embedded").run(&["true"]);
    let output = refused.stderr + &refused.stdout;
    assert_eq!(refused.code, 78, "{output}");
    assert!(
        output.contains("the ID 17 in the saved state")
            && output.contains("remove /var/lib/slurm/slurmctld/clustername"),
        "{output}"
    );
    // The fix that the message gives.
    let fix = "rm /var/lib/slurm/slurmctld/clustername";
    image("none").with(["--entrypoint", "sh"]).run(&["-c", fix]).ok();
    let with = image("embedded").serve();
    assert_eq!(with.sh("sacct -nXP -j 4 -o JobID"), "4");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn external_database_is_changed_only_for_one_without_jobs() {
    let (network, state) = (Network::new(), Volume::new("accounting"));
    let secret = directory(&[("password", "s3cret-of-ours\n")]);
    fs::set_permissions(secret.path().join("password"), fs::Permissions::from_mode(0o400)).unwrap();
    let _database = database_server(&network);
    let start = |name: &str| {
        let toml = format!(
            "[accounting]\nmode = 'external'\ndatabase_host = 'db'\ndatabase_user = 'acct'\ndatabase_name = '{name}'\npassword_secret = '/run/secrets/db'\n"
        );
        let config = directory(&[("slurminit.toml", &toml)]);
        let image = Image::new(FULL)
            .with(["--hostname", "node1", "--network", &network.0])
            .volume(&state, "/var/lib/slurm")
            .mount(config.path(), "/config")
            .mount(&secret.path().join("password"), "/run/secrets/db");
        image.run(&[
            "sh",
            "-c",
            &format!("srun true; until sacct -nX -o State | grep -q COMPLETED; do :; done; {CLUSTER_ID}"),
        ])
    };
    let first = start("first").ok();
    let second = start("second").ok();
    assert_ne!(first, second, "each new database chooses an ID");
    // The state now has the second database's cluster ID, but the first database has jobs under its own ID.
    let refused = start("first");
    let output = refused.stderr + &refused.stdout;
    assert_eq!(refused.code, 78, "{output}");
    assert!(output.contains(&format!("the ID {} in the saved state", second.trim())), "{output}");
    assert_eq!(start("second").ok(), second);
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn usage_counts_every_run_of_requeued_job() {
    let container = Image::new(FULL).serve();
    let job =
        container.sh("sbatch --parsable -n1 -o /dev/null --wrap '[ -n \"$SLURM_RESTART_COUNT\" ] || exec sleep 1000'");
    container.until(&format!("[ $(squeue -h -j {job} -o %M | tr -d :) -ge 4 ]"));
    container.sh(&format!("scontrol requeue {job}"));
    wait_for_job_record(&container, &job, "State");
    let runs = container.sh(&format!("sacct -nXPD -j {job} -o ElapsedRaw,NCPUS"));
    let seconds = runs.lines().map(|run| {
        let mut numbers = run.split('|').map(|number| number.parse::<u64>().unwrap());
        numbers.next().unwrap() * numbers.next().unwrap()
    });
    assert_eq!(runs.lines().count(), 2, "{runs}");
    let usage: serde_json::Value = serde_json::from_str(&container.sh("slurminit usage --json")).unwrap();
    let used = &usage["used"][0];
    assert_eq!((used["jobs"].as_u64(), used["cpu_seconds"].as_u64()), (Some(1), Some(seconds.sum())), "{usage} {runs}");
    assert!(used["cpu_seconds"].as_u64() >= Some(4), "{usage}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn sstat_and_sacct_show_memory_of_job() {
    let container = Image::new(FULL).serve();
    // tail keeps the whole line in memory.
    let program = "(head -c 60M /dev/zero; cat /tmp/end) | tail >/dev/null";
    let job = container.sh(&format!("mkfifo /tmp/end; sbatch --parsable --mem=200 -o /dev/null --wrap '{program}'"));
    let is_recorded = |command: &str| format!("[ \"$({command} -nP -j {job}.batch -o MaxRSS | tr -d K)\" -gt 60000 ]");
    container.until(&is_recorded("sstat"));
    container.sh("echo end >/tmp/end");
    wait_for_job_record(&container, &job, "State");
    container.until(&is_recorded("sacct"));
}

/// The example of docs/accounting.md, with a second user and short periods.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn priority_fairshare_and_limits_of_docs_example_take_effect() {
    let page = fs::read_to_string(harness::root().join("docs/accounting.md")).expect("the page exists");
    let example =
        page.split("```toml\n").filter_map(|rest| rest.split("```").next()).find(|block| block.contains("[[qos]]"));
    let example = example.expect("the page has an example of [[qos]]");
    let more = "[[user]]\nname = 'bob'\nuid = 1502\naccount = 'radiology'\n\
        [simulate]\nnodes = 1\ncpus = 8\nmemory_mib = 8000\ngpus = 4\n[slurm.conf]\nPriorityCalcPeriod = 1\n";
    let config = directory(&[("slurminit.toml", &format!("{example}{more}"))]);
    let container = Image::new(FULL).mount(config.path(), "/config").serve();
    let submit = |user: &str, options: &str| {
        let line = format!("cd /; sbatch --parsable -o /dev/null --mem=10 {options} --wrap 'sleep 1000'");
        container.exec(&["su", user, "-c", &line]).ok().trim().to_owned()
    };
    let cancel_all = || container.sh("scancel -u alice; scancel -u bob; until [ -z \"$(squeue -h)\" ]; do :; done");
    let starts_first = |first: &str, second: &str| {
        container.until(&format!("[ $(squeue -h -j {first},{second} -t R -o %A) = {first} ]"));
    };

    // A job whose QOS has a higher priority starts first.
    let running = submit("bob", "-n8");
    container.until(&format!("squeue -h -j {running} -t R | grep -q ."));
    let (normal, short) = (submit("alice", "-n8"), submit("alice", "-n8 --qos=short"));
    container.sh(&format!("scancel {running}"));
    starts_first(&short, &normal);
    cancel_all();

    // The jobs of a user who used more start later. slurmctld calculates the usage once a minute.
    let heavy = submit("bob", "-n8");
    let fairshare =
        |user: &str| format!("$(sshare -nP -u {user} -A radiology -o User,FairShare | sed -n s/^{user}.//p)");
    container.until(&format!("[ {} != {} ]", fairshare("bob"), fairshare("alice")));
    let (of_bob, of_alice) = (submit("bob", "-n8"), submit("alice", "-n8"));
    container.sh(&format!("scancel {heavy}"));
    starts_first(&of_alice, &of_bob);
    cancel_all();

    // Limits: two GPUs for a user in this QOS, four for the account.
    let jobs: Vec<String> = (0..3).map(|_| submit("alice", "-n1 --gres=gpu:1 --qos=short")).collect();
    container.until(&format!("squeue -h -j {} -o %A:%r | grep -q {}:QOSMaxGRESPerUser", jobs.join(","), jobs[2]));
    container
        .until(&format!("[ \"$(squeue -h -u alice -t R -o %A | sort -n | xargs)\" = \"{}\" ]", jobs[..2].join(" ")));
    submit("bob", "-n1 --gres=gpu:2");
    let above = submit("bob", "-n1 --gres=gpu:1");
    container.until(&format!("squeue -h -j {above} -o %r | grep -q AssocGrpGRES"));
}

/// An older copy of slurmctld's state is restored, while the database contains later jobs. No job ID is assigned twice.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn restored_state_reuses_no_job_id_of_database() {
    let state = Volume::new("accounting");
    let image = Image::new(FULL).volume(&state, "/var/lib/slurm").json_log();
    let mut container = image.serve();
    let submit =
        |container: &Container| container.sh("cd /tmp && sbatch --parsable --wait --output=/dev/null --wrap true");
    let copy = |line: &str| {
        let mount = format!("{}:/var/lib/slurm", state.name);
        let line = format!("cd /var/lib/slurm && {line}");
        docker(["run", "--rm", "--volume", &mount, "--entrypoint", "sh", &crate::docker::tag(FULL), "-ec", &line]).ok();
    };
    assert_eq!(submit(&container), "1");
    wait_for_job_record(&container, "1", "JobID");
    assert_eq!(container.stop(), 0, "{}", container.log());
    copy("cp -a slurmctld /var/lib/slurm/copy");
    drop(container);
    container = image.serve();
    let later: Vec<String> = (0..3).map(|_| submit(&container)).collect();
    assert_eq!(later, ["2", "3", "4"]);
    wait_for_job_record(&container, "4", "JobID");
    assert_eq!(container.stop(), 0, "{}", container.log());
    assert!(container.records("state-older-than-database").is_empty(), "{}", container.log());
    drop(container);
    copy("rm -r slurmctld && mv copy slurmctld");
    container = image.serve();
    assert_eq!(container.records("state-older-than-database").len(), 1, "{}", container.log());
    assert_eq!(submit(&container), "5", "{}", container.log());
    wait_for_job_record(&container, "5", "JobID");
    assert_eq!(container.sh("sacct -nXDP -S now-1hour -o JobID | sort"), "1\n2\n3\n4\n5");
    // The state was lost, but the database was not.
    assert_eq!(container.stop(), 0, "{}", container.log());
    drop(container);
    copy("rm -r slurmctld");
    container = image.serve();
    assert_eq!(container.records("state-older-than-database").len(), 1, "{}", container.log());
    assert_eq!(submit(&container), "6", "{}", container.log());
}
