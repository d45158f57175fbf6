//! People: jobs under the user ids of the host, and what people keep from each other.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde_json::Value;

use crate::docker::{Container, Image, Outcome, PLAIN, debians, directory, docker};

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

fn with_people(image: &str, config: &Path) -> Image {
    Image::new(image).mount(config, "/config").with(["--hostname", "node1"])
}

/// `docker exec -u USER -w HOME NAME sh -c LINE`
fn exec(container: &Container, user: &str, line: &str) -> Outcome {
    let home = format!("/home/{user}");
    docker(["exec", "--user", user, "--workdir", &home, &container.name, "sh", "-c", line])
}

/// A batch job to its end; the number of it.
fn batch(container: &Container, user: &str, options: &str, script: &str) -> String {
    let job = exec(container, user, &format!("sbatch --parsable --wait {options} --wrap '{script}'")).ok();
    job.trim().to_owned()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_runs_under_ids_of_host_on_each_debian() {
    let config = directory(&[("slurminit.toml", PEOPLE)]);
    for image in debians(PLAIN) {
        let data = directory(&[]);
        fs::set_permissions(data.path(), fs::Permissions::from_mode(0o777)).expect("a directory for everyone");
        let mount = format!("{}:/data", data.path().display());
        let container = with_people(image, config.path()).with(["--volume", &mount]).serve();
        let ids = "uid=1501(alice) gid=1501(alice) groups=1501(alice),2000(lab)\n";
        assert_eq!(exec(&container, "alice", "srun id").ok(), ids, "{image}: {}", container.log());
        let script = "id > made; install -d -m 2775 -g lab shared; hostname";
        let job = batch(&container, "alice", "--chdir /data --output out-%j", script);
        let read = |name: &str| fs::read_to_string(data.path().join(name)).expect("the job wrote it");
        assert_eq!(read("made"), ids);
        assert_eq!(read(&format!("out-{job}")), "node1\n");
        for (name, gid) in [("made", 1501), (&format!("out-{job}"), 1501), ("shared", 2000)] {
            let metadata = fs::metadata(data.path().join(name)).expect("the job made it");
            assert_eq!((metadata.uid(), metadata.gid()), (1501, gid), "{image}: {name}");
        }
        container.sh("rm -r /data/*");

        // A second start of the same container finds the accounts as it made them.
        docker(["restart", &container.name]).ok();
        container.wait_until_healthy();
        assert_eq!(container.sh("grep -c alice /etc/passwd /etc/group /etc/shadow | cut -d: -f2 | xargs"), "1 2 1");
        assert_eq!(exec(&container, "bob", "srun id -un").ok(), "bob\n");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn nobody_reads_or_ends_what_is_another_s() {
    let config = directory(&[("slurminit.toml", PEOPLE)]);
    let container = with_people(PLAIN, config.path()).serve();
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
        assert_ne!(outcome.code, 0, "bob may: {line}: {outcome:?}");
    }
    assert_eq!(exec(&container, "alice", &format!("squeue -h -j {running} -o %T")).ok(), "RUNNING\n");
    // The batch script is a copy that Slurm keeps; it is its owner's. The key is nobody's, also in a job.
    exec(&container, "bob", "slurminit status && slurminit health").ok();
    let script = |user| exec(&container, user, &format!("scontrol write batch_script {running} -")).ok();
    assert!(script("alice").contains("sleep 600"));
    assert!(!script("bob").contains("sleep 600"));
    assert_ne!(exec(&container, "alice", &format!("srun {key}")).code, 0);
    exec(&container, "alice", &format!("scancel {running}")).ok();
}

/// How many findings begin with the path and name all of these users.
fn reports_of(container: &Container, path: &str, users: &[&str]) -> usize {
    let is_it = |record: &Value| {
        let what = record["fields"]["what"].as_str().unwrap_or_default();
        what.split(' ').next() == Some(path) && users.iter().all(|user| what.contains(user))
    };
    container.records("files").iter().filter(|record| is_it(record)).count()
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn leaves_mounted_passwd_unchanged_and_reports_it_once() {
    let own = Image::new(PLAIN).with(["--entrypoint", "cat"]).run(&["/etc/passwd"]).ok();
    let host = directory(&[("passwd", &format!("{own}alice:x:1501:1501::/tmp:/bin/sh\n"))]);
    let config = directory(&[("slurminit.toml", PEOPLE)]);
    let container =
        with_people(PLAIN, config.path()).json_log().mount(&host.path().join("passwd"), "/etc/passwd").serve();
    assert_eq!(reports_of(&container, "/etc/passwd", &["bob (uid 1502)"]), 1, "{}", container.log());
    // Docker looks a name up in the image's own file, behind the mount; a number it takes as it is.
    let as_alice = ["exec", "--user", "1501:1501", &container.name, "srun", "id", "-un"];
    assert_eq!(docker(as_alice).ok(), "alice\n");
    assert_eq!(container.sh("grep -v ^slurminit: /etc/group | grep -c slurminit || test $? = 1; ls /home"), "0");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn reports_read_only_container_without_users() {
    let config = directory(&[("slurminit.toml", PEOPLE)]);
    let mut image = with_people(PLAIN, config.path()).json_log().with(["--read-only"]);
    for writable in ["/run", "/tmp", "/etc/slurm", "/etc/munge", "/var/lib/slurm", "/var/log"] {
        image = image.with(["--tmpfs", writable]);
    }
    let container = image.serve();
    assert_eq!(reports_of(&container, "/etc", &["alice (uid 1501)", "bob (uid 1502)"]), 1, "{}", container.log());
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn keeps_account_of_image_for_its_user() {
    let config = directory(&[("slurminit.toml", "[[user]]\nname = \"munge\"\nuid = 1501\n")]);
    let outcome = Image::new(PLAIN).mount(config.path(), "/config").run(&["true"]);
    assert_eq!(outcome.code, 78, "{outcome:?}");
    assert!(outcome.stderr.contains("/config/slurminit.toml:3:7: user[0].uid: "), "{outcome:?}");
}
