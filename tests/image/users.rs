//! User accounts: jobs under host UIDs and isolation between users.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde_json::Value;

use crate::docker::{Container, Image, Outcome, PLAIN, Volume, directory, docker};

const PEOPLE: &str = r#"
[[group]]
name = "lab"
gid = 2000
[[user]]
name = "alice"
uid = 1501
groups = ["lab"]
[[user]]
name = "bob"
uid = 1502
"#;

fn with_people(config: &Path) -> Image {
    Image::new(PLAIN).mount(config, "/config").with(["--hostname", "node1"])
}

/// `docker exec -u USER -w HOME NAME sh -c LINE`
fn exec(container: &Container, user: &str, line: &str) -> Outcome {
    let home = format!("/home/{user}");
    docker(["exec", "--user", user, "--workdir", &home, &container.name, "sh", "-c", line])
}

/// Runs a batch job to completion and returns its ID.
fn batch(container: &Container, user: &str, options: &str, script: &str) -> String {
    let job = exec(container, user, &format!("sbatch --parsable --wait {options} --wrap '{script}'")).ok();
    job.trim().to_owned()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_runs_under_ids_of_host() {
    let config = directory(&[("slurminit.toml", PEOPLE)]);
    let data = directory(&[]);
    fs::set_permissions(data.path(), fs::Permissions::from_mode(0o777)).expect("chmod 777");
    let mount = format!("{}:/data", data.path().display());
    let container = with_people(config.path()).with(["--volume", &mount]).serve();
    let ids = "uid=1501(alice) gid=1501(alice) groups=1501(alice),2000(lab)\n";
    assert_eq!(exec(&container, "alice", "srun id").ok(), ids, "{}", container.log());
    let script = "id > made; install -d -m 2775 -g lab shared; hostname";
    let job = batch(&container, "alice", "--chdir /data --output out-%j", script);
    let read = |name: &str| fs::read_to_string(data.path().join(name)).expect("output of the job");
    assert_eq!(read("made"), ids);
    assert_eq!(read(&format!("out-{job}")), "node1\n");
    for (name, gid) in [("made", 1501), (&format!("out-{job}"), 1501), ("shared", 2000)] {
        let metadata = fs::metadata(data.path().join(name)).expect("file created by the job");
        assert_eq!((metadata.uid(), metadata.gid()), (1501, gid), "{name}");
    }
    container.sh("rm -r /data/*");

    // A restart of the container finds the accounts that it created.
    docker(["restart", &container.name]).ok();
    container.wait_until_healthy();
    assert_eq!(container.sh("grep -c alice /etc/passwd /etc/group /etc/shadow | cut -d: -f2 | xargs"), "1 2 1");
    assert_eq!(exec(&container, "bob", "srun id -un").ok(), "bob\n");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn user_cannot_read_or_cancel_jobs_of_others() {
    let config = directory(&[("slurminit.toml", PEOPLE)]);
    let container = with_people(config.path()).serve();
    let done = batch(&container, "alice", "", "echo secret");
    assert_eq!(exec(&container, "alice", &format!("cat slurm-{done}.out")).ok(), "secret\n");
    let running = exec(&container, "alice", "sbatch --parsable --wrap 'echo up > up; exec sleep 600'").ok();
    let running = running.trim();
    container.until("grep -qs up /home/alice/up");

    let key = "cat /etc/munge/munge.key";
    let others = [
        format!("cat /home/alice/slurm-{done}.out"),
        "ls /home/alice".to_owned(),
        key.to_owned(),
        "cp /etc/munge/munge.key /tmp/key".to_owned(),
        "ls /var/lib/slurm/slurmctld".to_owned(),
        format!("cat /var/lib/slurm/slurmd/job*{running}/slurm_script"),
        "cat /etc/shadow".to_owned(),
        format!("scancel {running}"),
        format!("scontrol update jobid={running} timelimit=1"),
        "scontrol update nodename=localhost state=drain reason=x".to_owned(),
        "scontrol shutdown".to_owned(),
        "kill 1".to_owned(),
        "touch /etc/slurm/x".to_owned(),
        "touch /run/slurminit/x".to_owned(),
        "slurminit restart slurmd".to_owned(),
        "slurminit logs munged".to_owned(),
        "slurminit stop".to_owned(),
        "srun --uid=alice id".to_owned(),
    ];
    for line in &others {
        let outcome = exec(&container, "bob", line);
        assert_ne!(outcome.code, 0, "bob is allowed to: {line}: {outcome:?}");
    }
    assert_eq!(exec(&container, "alice", &format!("squeue -h -j {running} -o %T")).ok(), "RUNNING\n");
    // Slurm's copy of the batch script is private to its owner. No user can read the key, not even in a job.
    exec(&container, "bob", "slurminit status && slurminit health").ok();
    let script = |user| exec(&container, user, &format!("scontrol write batch_script {running} -")).ok();
    assert!(script("alice").contains("sleep 600"));
    assert!(!script("bob").contains("sleep 600"));
    assert_ne!(exec(&container, "alice", &format!("srun {key}")).code, 0);
    exec(&container, "alice", &format!("scancel {running}")).ok();
}

/// Number of findings that start with the path and contain all of the users.
fn count_reports(container: &Container, path: &str, users: &[&str]) -> usize {
    let matches = |record: &Value| {
        let what = record["fields"]["what"].as_str().unwrap_or_default();
        what.split(' ').next() == Some(path) && users.iter().all(|user| what.contains(user))
    };
    container.records("files").iter().filter(|record| matches(record)).count()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn leaves_mounted_passwd_unchanged_and_reports_it_once() {
    let passwd = Image::new(PLAIN).with(["--entrypoint", "cat"]).run(&["/etc/passwd"]).ok();
    let host = directory(&[("passwd", &format!("{passwd}alice:x:1501:1501::/tmp:/bin/sh\n"))]);
    let config = directory(&[("slurminit.toml", PEOPLE)]);
    let container = with_people(config.path()).json_log().mount(&host.path().join("passwd"), "/etc/passwd").serve();
    assert_eq!(count_reports(&container, "/etc/passwd", &["bob (uid 1502)"]), 1, "{}", container.log());
    // Docker looks names up in the image's /etc/passwd, not in the mounted file, so use the UID.
    let as_alice = ["exec", "--user", "1501:1501", &container.name, "srun", "id", "-un"];
    assert_eq!(docker(as_alice).ok(), "alice\n");
    assert_eq!(container.sh("grep -v ^slurminit: /etc/group | grep -c slurminit || test $? = 1; ls /home"), "0");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_read_only_container_without_users() {
    let config = directory(&[("slurminit.toml", PEOPLE)]);
    let mut image = with_people(config.path()).json_log().with(["--read-only"]);
    for writable in ["/run", "/tmp", "/etc/slurm", "/etc/munge", "/var/lib/slurm", "/var/log"] {
        image = image.with(["--tmpfs", writable]);
    }
    let container = image.serve();
    assert_eq!(count_reports(&container, "/etc", &["alice (uid 1501)", "bob (uid 1502)"]), 1, "{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn rejects_user_with_name_of_image_account() {
    let config = directory(&[("slurminit.toml", "[[user]]\nname = \"munge\"\nuid = 1501\n")]);
    let outcome = Image::new(PLAIN).mount(config.path(), "/config").run(&["true"]);
    assert_eq!(outcome.code, 78, "{outcome:?}");
    assert!(outcome.stderr.contains("/config/slurminit.toml:3:7: user[0].uid: "), "{outcome:?}");
}

const HOST_PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nmunge:x:1:1::/home/munge:/bin/sh\n\
    carol:$6$secret:1601:1601:Carol:/home/carol:/usr/bin/fish\ndave:x:1602:1601::/home/dave:/bin/sh\n\
    eve:x:1603:0::/home/eve:/bin/sh\nmallory\n";
const HOST_GROUP: &str = "root:x:0:carol\nshadow:x:42:carol\ncarol:x:1601:\nteam:x:2001:carol,dave\n";

/// Number of findings about files that contain the text.
fn count_findings(container: &Container, text: &str) -> usize {
    let has = |record: &Value| record["fields"]["what"].as_str().unwrap_or_default().contains(text);
    container.records("files").iter().filter(|record| has(record)).count()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn host_user_runs_jobs_under_host_ids() {
    let host = directory(&[("passwd", HOST_PASSWD), ("group", HOST_GROUP)]);
    let config = directory(&[("slurminit.toml", "[users]\nfrom = \"/host/etc\"\n")]);
    let data = directory(&[]);
    fs::set_permissions(data.path(), fs::Permissions::from_mode(0o777)).expect("chmod 777");
    let mount = format!("{}:/data", data.path().display());
    let image = with_people(config.path()).json_log().mount(host.path(), "/host/etc");
    let container = image.with(["--volume", &mount]).serve();
    let ids = "uid=1601(carol) gid=1601(carol) groups=1601(carol),2001(team)\n";
    let job = batch(&container, "carol", "--chdir /data --output out-%j", "id");
    let output = data.path().join(format!("out-{job}"));
    assert_eq!(fs::read_to_string(&output).expect("output of the job"), ids, "{}", container.log());
    let metadata = fs::metadata(&output).expect("file created by the job");
    assert_eq!((metadata.uid(), metadata.gid()), (1601, 1601));
    container.sh("rm /data/out-*");
    assert_eq!(
        container.sh("getent passwd carol | cut -d: -f6-; grep -c '^carol:\\*:' /etc/shadow"),
        "/home/carol:/bin/bash\n1"
    );
    // Skips a user in root's group and an invalid line; keeps the image's own user.
    assert_eq!(container.sh("getent passwd eve mallory || getent passwd munge | cut -d: -f3"), "640");
    assert_eq!(
        (count_findings(&container, "/host/etc/passwd:5: "), count_findings(&container, "/host/etc/passwd:6: ")),
        (1, 1)
    );

    // An unreadable passwd file removes no account.
    fs::rename(host.path().join("passwd"), host.path().join("away")).expect("the directory is writable");
    container.sh("slurminit reload");
    assert_eq!(count_findings(&container, "/host/etc/passwd: "), 1, "{}", container.log());
    assert_eq!(exec(&container, "carol", "srun id").ok(), ids);

    // A reload removes a user without jobs and fails for one with jobs.
    fs::write(host.path().join("passwd"), "root:x:0:0:root:/root:/bin/bash\ndave:x:1602:1601::/home/dave:/bin/sh\n")
        .expect("the directory is writable");
    let running = exec(&container, "carol", "sbatch --parsable --wrap 'exec sleep 600'").ok();
    assert_ne!(container.exec(&["slurminit", "reload"]).code, 0);
    container.sh(&format!("scancel {running}"));
    container.until("[ -z \"$(squeue -h)\" ]");
    container.sh("slurminit reload");
    assert_eq!(container.sh("getent passwd carol dave | cut -d: -f1"), "dave");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn ignores_user_writable_host_account_files() {
    let config = directory(&[("slurminit.toml", "[users]\nfrom = \"/host/etc\"\n")]);
    let volume = Volume::new("host");
    let container = with_people(config.path()).json_log().volume(&volume, "/host/etc").serve();
    let passwd = "printf 'root:x:0:0::/:/bin/sh\\ncarol:x:1601:100::/home/carol:/bin/sh\\n' >/host/etc/passwd; echo 'users:x:100:' >/host/etc/group";
    container.sh(passwd);
    for change in [
        "chmod 777 /host/etc",
        "chmod 755 /host/etc; chmod 666 /host/etc/passwd",
        "chmod 644 /host/etc/passwd; chown nobody /host/etc/group",
    ] {
        container.sh(&format!("{change}; slurminit reload"));
        assert_eq!(container.exec(&["getent", "passwd", "carol"]).code, 2, "{change}: {}", container.log());
    }
    container.sh("chown root /host/etc/group; slurminit reload; getent passwd carol");
}
