//! Requests of unprivileged users crash no daemon, and each form of `--export` gives a job the documented environment.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::docker::{Container, Image, Outcome, PLAIN, directory, docker};

const PEOPLE: &str = "[[user]]\nname = \"alice\"\nuid = 1501\n";
const NODE: [&str; 2] = ["--hostname", "node1"];
const BASE: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games";
const ROOTS: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// PIDs of the daemons, in ascending order.
fn daemons(container: &Container) -> String {
    container.sh("pidof munged slurmctld slurmd | tr ' ' '\\n' | sort -n | xargs")
}

fn set_mode_755(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("chmod 755");
}

fn exec(container: &Container, user: &str, line: &str) -> Outcome {
    docker(["exec", "--user", user, "--workdir", "/tmp", &container.name, "sh", "-c", line])
}

/// The environment variables of a batch job.
fn environment(container: &Container, user: &str, options: &str) -> BTreeMap<String, String> {
    let line = format!(
        "out=$(mktemp) && MINE=here timeout 120 sbatch --quiet --wait --output=$out {options} --wrap env && cat $out; rm $out"
    );
    let text = exec(container, user, &line).ok();
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Asserts that the variables are the same as after a login with `su -`.
fn assert_login_environment(variables: &BTreeMap<String, String>, user: &str, home: &str, shell: &str, path: &str) {
    let expected = [("HOME", home), ("USER", user), ("LOGNAME", user), ("SHELL", shell), ("PATH", path)];
    for (name, value) in expected {
        assert_eq!(variables.get(name).map(String::as_str), Some(value), "{user}: {name}: {variables:?}");
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn job_gets_environment_requested_by_export() {
    let config = directory(&[("slurminit.toml", PEOPLE)]);
    let container = Image::new(PLAIN).with(NODE).mount(config.path(), "/config").serve();
    let pids = daemons(&container);
    // A .profile that hangs, prints or changes PATH must not affect the job environment.
    let hangs = "echo 'export PATH=/evil; echo garbage; sleep 600' > /home/alice/.profile";
    container.sh(hangs);
    container.sh(
        "useradd --create-home --shell /bin/sh later; useradd --home-dir /nowhere --shell /usr/sbin/nologin homeless",
    );
    let users = [
        ("root", "/root", "/bin/bash", ROOTS),
        ("alice", "/home/alice", "/bin/bash", BASE),
        ("later", "/home/later", "/bin/sh", BASE),
    ];
    for (user, home, shell, path) in users {
        let none = environment(&container, user, "--export=NONE");
        assert_login_environment(&none, user, home, shell, path);
        assert!(!none.contains_key("MINE"), "{none:?}");
        let one = environment(&container, user, "--export=FOO=1");
        assert_login_environment(&one, user, home, shell, path);
        assert_eq!((one.get("FOO").map(String::as_str), one.get("MINE")), (Some("1"), None), "{one:?}");
        let named = environment(&container, user, "--export=MINE");
        assert_eq!(named.get("MINE").map(String::as_str), Some("here"), "{named:?}");
        assert_login_environment(&named, user, home, shell, path);
        for options in
            ["--export=ALL,FOO=1", "--get-user-env --export=ALL,FOO=1", "--get-user-env=10L --export=ALL,FOO=1"]
        {
            let all = environment(&container, user, options);
            let value = |name| all.get(name).map(String::as_str);
            assert_eq!(
                (value("FOO"), value("MINE"), value("HOME")),
                (Some("1"), Some("here"), Some(home)),
                "{options}: {all:?}"
            );
        }
        let nil = environment(&container, user, "--export=NIL");
        assert!(!nil.contains_key("MINE"), "{nil:?}");
        let file = environment(&container, user, "--export=NONE --export-file=/proc/self/environ");
        assert!(file.contains_key("HOME"), "{file:?}");
        for options in ["", "--export=ALL", "--export=FOO=1,PATH", "--export=NONE"] {
            let ran = exec(&container, user, &format!("srun {options} /usr/bin/env")).ok();
            assert!(ran.contains("SLURM_JOB_ID="), "srun {options}: {ran}");
        }
    }
    let homeless = environment(&container, "homeless", "--export=NONE");
    assert_login_environment(&homeless, "homeless", "/nowhere", "/usr/sbin/nologin", BASE);
    assert_eq!(daemons(&container), pids, "{}", container.log());
    assert!(!container.log().contains("Unable to get user's local environment"), "{}", container.log());
}

/// The slurm user can write to env_cache, so root must not follow a link there.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn root_does_not_follow_symlink_at_env_cache() {
    let container = Image::new(PLAIN).with(NODE).serve();
    let cache = "/var/lib/slurm/slurmctld/env_cache";
    container.sh("install -m 600 /dev/null /root/secret");
    container.sh(&format!("rm -r {cache}; ln -s /root {cache}"));
    container.sh("useradd somebody");
    container.until("slurminit logs slurminit | grep -q not.write.login.environments");
    docker(["restart", &container.name]).ok();
    container.wait_until_healthy();
    assert_eq!(
        container.sh("ls -A /root | grep -v '^\\.' ; find /root -newer /root/secret -type f | wc -l"),
        "secret\n0"
    );
    assert!(container.log().contains("env_cache"), "{}", container.log());
    container.sh(&format!("rm {cache}"));
    docker(["restart", &container.name]).ok();
    container.wait_until_healthy();
    let after = environment(&container, "root", "--export=NONE");
    assert_login_environment(&after, "root", "/root", "/bin/bash", ROOTS);
}

/// One shell command per line. `$big` has 100,000 bytes, `$odd` is not UTF-8; a command may fail.
const REQUESTS: &str = include_str!("requests/requests.txt");

/// Runs the requests one by one as `nobody`, each with a timeout, and checks the daemons' PIDs after each.
const DRIVER: &str = r#"
export USER=nobody
big=$(head -c 100000 /dev/zero | tr '\0' a) odd=$(printf '\033[31m\377\302\205\342\200\256"%%s%%n;\n$(id)`id`') export big odd
cd /tmp && n=0
while IFS= read -r line; do
    [ -n "$line" ] || continue
    timeout --kill-after=1 6 sh -c "$line" </dev/null >/tmp/last 2>&1
    n=$((n + 1))
    now=$(pidof munged slurmctld slurmd | tr ' ' '\n' | sort -n | xargs)
    # One more is a child of a daemon that has not executed its program yet.
    for pid in $1; do
        case " $now " in *" $pid "*) ;; *) echo "DIED OF: $line"; echo "$1 -> $now"; cat /tmp/last; exit 1 ;; esac
    done
    [ $((n % 10)) != 0 ] || scancel --user=nobody
done </config/requests
scancel --user=nobody
echo "$n requests"
"#;

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn requests_of_unprivileged_user_crash_no_daemon() {
    let files = [("slurminit.toml", PEOPLE), ("requests", REQUESTS), ("driver", DRIVER)];
    let config = directory(&files);
    set_mode_755(config.path());
    let container = Image::new(PLAIN).with(NODE).mount(config.path(), "/config").serve();
    let pids = daemons(&container);
    assert_eq!(pids.split(' ').count(), 3, "{pids}");
    let line = format!("sh /config/driver '{pids}'");
    let outcome = exec(&container, "nobody", &line);
    let log = container.log();
    let tail: Vec<&str> = log.lines().rev().take(30).collect();
    assert_eq!(outcome.code, 0, "{outcome:?}\n{}", tail.join("\n"));
    let count = REQUESTS.lines().filter(|line| !line.is_empty()).count();
    assert_eq!(outcome.stdout.trim(), format!("{count} requests"));
    container.sh("! test -e /tmp/mailed");
    assert_eq!(exec(&container, "alice", "timeout 120 srun id -un").ok(), "alice\n");
    assert_eq!(daemons(&container), pids);
}

/// slurmd is killed after the launch request and before it starts slurmstepd. Slurm checks for missing jobs only when
/// the node registers; the job is then younger than the limit of BatchStartTimeout + 10 s.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn detects_lost_batch_launch_after_slurmd_restart() {
    let toml = "[slurm.conf]\nProlog = \"/config/prolog\"\nBatchStartTimeout = 20\n[[partition]]\nname = \"debug\"\nOverSubscribe = \"FORCE:8\"\n";
    let prolog = "#!/bin/sh\n[ -e /tmp/slow ] || exit 0\necho $SLURM_JOB_ID >> /tmp/in-prolog\nexec sleep 600\n";
    let config = directory(&[("slurminit.toml", toml), ("prolog", prolog)]);
    set_mode_755(&config.path().join("prolog"));
    let container = Image::new(PLAIN).with(NODE).mount(config.path(), "/config").serve();
    container.sh("touch /tmp/slow");
    let submit = |options: &str| {
        let line = format!("sbatch --parsable --output=/tmp/out-%j {options} --wrap 'echo ran'");
        container.sh(&line).trim().to_owned()
    };
    let (requeued, failed) = (submit("--requeue"), submit("--no-requeue"));
    container.until("[ \"$(cat /tmp/in-prolog 2>/dev/null | wc -l)\" = 2 ]");
    container.sh("rm /tmp/slow; kill -KILL $(pidof slurmd); pkill -KILL -x sleep; true");
    let ended = format!(
        "timeout 100 sh -c 'until [ -z \"$(squeue --noheader)\" ]; do sleep 0.2; done'; scontrol show job {requeued}"
    );
    let outcome = container.exec(&["sh", "-c", &ended]);
    let log = container.log();
    assert!(
        outcome.stdout.contains("Restarts=1") && outcome.stdout.contains("JobState=COMPLETED"),
        "{outcome:?}\n{log}"
    );
    assert_eq!(container.sh(&format!("cat /tmp/out-{requeued}")), "ran", "{log}");
    let never_ran = container.sh(&format!("scontrol show job {failed}; ls /tmp/out-{failed} 2>&1; true"));
    assert!(!never_ran.contains("JobState=COMPLETED") && never_ran.contains("No such file"), "{never_ran}\n{log}");
    assert!(never_ran.contains("AdminComment=slurminit: ") || never_ran.contains("NODE_FAIL"), "{never_ran}");
}
