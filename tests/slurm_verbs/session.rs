//! `slurminit session`: the job, its steps and logins.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::fake::{Fake, wait_for_sleep};

/// Lines of squeue about sessions.
pub(crate) fn listed(sessions: &[(&str, &str, &str)]) -> String {
    sessions.iter().map(|(job, state, name)| format!("{job}|{state}|c1|2|2026-11-28T18:00:00|{name}\n")).collect()
}

pub(crate) const SESSIONS: &str = "squeue --me *";
pub(crate) const STEP: &str =
    "--overlap --nodes=1 --ntasks=1 --mem=0 --quiet --jobid=70 --nodelist=c1 --cpus-per-task=2";

/// A cluster in which job 70 of alice is in this state.
fn cluster(state: &str) -> Fake {
    with_job(Fake::new().reply("scancel *", &[""]), state)
}

pub(crate) fn with_job(fake: Fake, state: &str) -> Fake {
    // Each line begins with a random mark.
    let line = format!("${{mark%%\\%*}}70|70|{state}|2|0:10|main|alice|1501|||||Resources|1||lab|session/x");
    fake.script("squeue --noheader --all --array --format=*", &format!("mark=${{call#*--format=}}; echo \"{line}\""))
        .reply("squeue *--json*", &[r#"{"jobs": []}"#])
        .reply("squeue *--Format=*", &[""])
        .reply("scontrol --details --json show node", &[r#"{"nodes": []}"#])
        .reply("scontrol show config", &["Configuration data as of 2026-11-28T12:00:00\n"])
        .reply("scontrol --oneliner show reservation", &[""])
        .reply("scontrol getaddrs c1", &["c1: 127.0.0.1:6818\n"])
}

fn session(fake: &Fake, arguments: &[&str]) -> Output {
    fake.command(&[&["session"], arguments].concat()).env("HOME", fake.path("home")).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn lists_sessions_of_this_user() {
    let sessions = [
        ("70", "RUNNING", "session/work"),
        ("71", "COMPLETING", "session/ended"),
        ("72_1", "RUNNING", "session/array"),
        ("73", "RUNNING", "train"),
        ("74", "RUNNING", "session/a|b"),
    ];
    let fake = Fake::new().reply(SESSIONS, &[&listed(&sessions)]).reply("scancel *", &[""]);
    let list = fake.succeed(&["session", "list"]);
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    let work = ["work", "70", "RUNNING", "c1", "2", "2026-11-28T18:00:00"];
    assert_eq!(rows, [["NAME", "JOB", "STATE", "NODE", "CPUS", "UNTIL"], work]);
    fake.succeed(&["session", "end", "work"]);
    assert_eq!(fake.changes(), ["scancel 70"]);
    for (name, why) in [("ended", "no session \"ended\""), ("a|b", "letters, digits")] {
        let output = session(&fake, &["end", name]);
        assert!(!output.status.success() && stderr(&output).contains(why), "{output:?}");
    }
    assert_eq!(fake.changes().len(), 1);
}

#[test]
fn command_runs_in_new_job_that_ends_with_it() {
    let fake = cluster("RUNNING")
        .reply(SESSIONS, &[&listed(&[("70", "RUNNING", "session/x")])])
        .reply("sbatch *", &["70;lab\n"])
        .script("srun *", "[ \"$SLURMINIT_CLIENT_PORT\" -gt 0 ] && exit 3");
    let options = "--gpus 2 --cpus 3 --mem 4G --time 30m --container tools --sbatch=--partition=gpu -- hostname -f";
    let output = session(&fake, &options.split(' ').collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(stderr(&output), "slurminit: Job 70 of alice ; it ends with this command\n");
    let [sbatch] = fake.calls("sbatch ").try_into().unwrap();
    let (start, end) = sbatch.split_once(" --job-name=session/shell-").unwrap();
    assert_eq!(start, "--parsable --nodes=1 --ntasks=1 --no-requeue --output=/dev/null --error=/dev/null");
    let (_, end) = end.split_once(' ').unwrap();
    let request = "--cpus-per-task=3 --time=0-00:30:00 --gres=gpu:2 --mem=4G --partition=gpu --wrap=exec";
    assert_eq!(end, format!("{request} {} session keep 0", harness::slurminit().display()));
    assert_eq!(fake.calls("srun "), [format!("{STEP} --container=tools hostname -f")]);
    assert_eq!(fake.changes(), ["scancel 70"]);
}

#[test]
fn shells_of_one_name_share_job_that_outlives_them() {
    let fake = cluster("RUNNING")
        .reply(SESSIONS, &["", &listed(&[("70", "RUNNING", "session/work")])])
        .reply("sbatch *", &["70\n"])
        .reply("srun *", &[""]);
    for _ in 0..2 {
        let output = session(&fake, &["--name", "work", "--", "hostname"]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(
            stderr(&output),
            "slurminit: Job 70 of alice ; it ends some time after its last shell or command exits\n"
        );
    }
    let [sbatch] = fake.calls("sbatch ").try_into().unwrap();
    assert!(sbatch.contains(" --job-name=session/work ") && sbatch.ends_with(" session keep 600"), "{sbatch}");
    assert_eq!(fake.calls("srun "), [format!("{STEP} hostname"), format!("{STEP} hostname")]);
    assert_eq!(fake.changes(), [""; 0]);
    let output = session(&fake, &["--name", "a b"]);
    assert!(!output.status.success() && stderr(&output).contains("letters, digits"), "{output:?}");
}

#[test]
fn job_that_sbatch_refuses_has_no_shell() {
    for (reply, why) in [
        (Ok(""), "no job ID"),
        (Ok("Submitted 70\n"), "no job ID: \"Submitted 70\""),
        (Err("Invalid gres"), "sbatch: Invalid gres"),
    ] {
        let fake = match reply {
            Ok(text) => cluster("").reply("sbatch *", &[text]),
            Err(error) => cluster("").fail("sbatch *", error),
        };
        let output = session(&fake, &[]);
        assert!(!output.status.success() && stderr(&output).contains(why), "{output:?}");
        assert_eq!(fake.calls("squeue"), [""; 0]);
    }
}

/// A shell whose job is in this state until its situation was queried, and then in the states of these replies.
fn waiting(state: &str, replies: &[&str]) -> (Output, Fake) {
    let waiting = listed(&[("70", state, "session/x")]);
    let fake = cluster(state).reply("sbatch *", &["70\n"]).reply("srun *", &[""]);
    fs::write(fake.path("waiting"), waiting).unwrap();
    let before = "grep -q reservation \"$here/calls\" || { cat \"$here/waiting\"; exit; }";
    let fake = fake.reply_after(before, SESSIONS, replies);
    (session(&fake, &["--", "hostname"]), fake)
}

#[test]
fn shell_names_once_what_its_job_waits_for() {
    let [pending, running] = ["PENDING", "RUNNING"].map(|state| listed(&[("70", state, "session/x")]));
    let (output, fake) = waiting("PENDING", &[&pending, &pending, &running]);
    assert!(output.status.success(), "{output:?}");
    let lines = "slurminit: Job 70 of alice waits for resources; it requests 2 CPUs (Ctrl-C cancels the job)\n";
    assert!(stderr(&output).starts_with(lines), "{output:?}");
    assert_eq!(fake.calls("squeue --noheader --all --json").len(), 2, "while it waits, and when it runs");
}

#[test]
fn shell_prints_no_reason_for_job_that_is_about_to_run() {
    let running = listed(&[("70", "RUNNING", "session/x")]);
    let (output, _) = waiting("CONFIGURING", &[&running]);
    assert!(output.status.success() && stderr(&output).lines().count() == 1, "{output:?}");
    // The job ends while it is pending.
    let (output, fake) = waiting("PENDING", &[""]);
    assert!(!output.status.success(), "{output:?}");
    assert!(
        stderr(&output).ends_with("job 70 has ended; see `sacct -j 70`, or `scontrol show job 70`\n"),
        "{output:?}"
    );
    assert_eq!(fake.calls("srun"), [""; 0]);
}

#[test]
fn signal_cancels_pending_job() {
    let fake = cluster("PENDING").reply("sbatch *", &["70\n"]).script(SESSIONS, "kill -TERM $PPID; exit 1");
    let output = session(&fake, &["--", "hostname"]);
    assert!(!output.status.success() && stderr(&output).ends_with("job 70 is cancelled\n"), "{output:?}");
    assert_eq!((fake.changes(), fake.calls("srun").len()), (vec!["scancel 70".to_owned()], 0));
}

#[test]
fn ssh_config_names_login_and_requests_same_job() {
    let config = |options: &[&str]| {
        let output = session(&Fake::new(), &[&["ssh-config"], options].concat());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text).ok_or_else(|| stderr(&output))
    };
    let lines = |host: &str, ssh: &str, options: &str| {
        format!(
            "Host {host}\n    User alice\n    HostKeyAlias slurminit-{host}-alice\n    StrictHostKeyChecking accept-new\n    \
             ServerAliveInterval 15\n    ProxyCommand ssh {ssh} slurminit session proxy {options}\n"
        )
    };
    let plain = "--gpus=1 --cpus=1 --time=8h --name=ssh --keep=10";
    assert_eq!(config(&["--login", "alice@lab"]).unwrap(), lines("gpu", "alice@lab", plain));
    assert_eq!(config(&["--login", "alice@lab:22x"]).unwrap(), lines("gpu", "alice@lab:22x", plain));
    let given = "--login alice@lab:2222 --host h --gpus gpu:a:2 --cpus 3 --time 30m --mem 4G --container tools \
                 --sbatch=--partition=gpu --name work --keep 5";
    let options =
        "--gpus=gpu:a:2 --cpus=3 --time=30m --mem=4G --container=tools --sbatch=--partition=gpu --name=work --keep=5";
    assert_eq!(config(&given.split(' ').collect::<Vec<_>>()).unwrap(), lines("h", "-p 2222 alice@lab", options));
    for bad in [&["--login", "lab"][..], &["--login", "a@b;c"], &["--login", "a@b", "--host", "$x"]] {
        assert!(config(bad).is_err(), "{bad:?}");
    }
    let why = config(&["--login", "a@b", "--sbatch=--comment=a b"]).unwrap_err();
    assert!(why.contains("shells interpret other characters"), "{why}");
}

/// Prepares a cluster with a running session, in which `ssh-keygen` runs this script after it has written a key to `$file`.
fn with_ssh(keygen: &str) -> Fake {
    let fake = cluster("RUNNING")
        .reply(SESSIONS, &[&listed(&[("70", "RUNNING", "session/ssh")])])
        .script(
            "ssh-keygen *",
            &format!("for file; do :; done; echo key >\"$file\"; echo public >\"$file.pub\"; {keygen}"),
        )
        .script("srun *", "echo \"$SLURMINIT_SSH_HOST_KEY|$SLURMINIT_SSH_KEYS\"; [ \"$SLURMINIT_CLIENT_PORT\" -gt 0 ]");
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap().name;
    fs::create_dir_all(fake.path("run/ssh/keys")).unwrap();
    fs::write(fake.path("run/ssh/keys").join(user), "ssh-ed25519 AAAA alice\n").unwrap();
    fake
}

#[test]
fn proxy_passes_public_keys_and_one_host_key_to_step() {
    // Another connection creates the key at the same time.
    for (keygen, key) in [("", "key"), ("echo other >\"${file%.*}\"", "other")] {
        let fake = with_ssh(keygen);
        for _ in 0..2 {
            let output = session(&fake, &["proxy"]);
            assert!(output.status.success(), "{output:?}");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(text.starts_with(&format!("{key}\n|ssh-ed25519 AAAA alice\n\n")), "{text}");
        }
        assert_eq!(fake.calls("ssh-keygen ").len(), 1);
        let files = fs::read_dir(fake.path("home/.local/state/slurminit")).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        assert_eq!(files, ["lock", "ssh_host_ed25519_key"]);
        assert_eq!(
            fake.calls("srun ")[0],
            format!(
                "{STEP} --unbuffered sh -c # An SSH server for one connection, on standard input and output. It runs in a step of the session's job, also in a container image."
            )
        );
    }
}

#[test]
fn proxy_without_keys_starts_no_step() {
    let refused = |fake: &Fake, why: &str| {
        let output = session(fake, &["proxy"]);
        assert!(!output.status.success() && stderr(&output).contains(why), "{output:?}");
        assert_eq!(fake.calls("srun"), [""; 0]);
    };
    refused(&with_ssh("echo 'no entropy' >&2; exit 1"), "no entropy");
    let unreadable = with_ssh("");
    let keys = fs::read_dir(unreadable.path("run/ssh/keys")).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(&keys).unwrap();
    fs::create_dir(&keys).unwrap();
    refused(&unreadable, keys.to_str().unwrap());
    let output = with_ssh("").command(&["session", "proxy"]).env("HOME", "").output().unwrap();
    assert!(stderr(&output).contains("HOME is not set"), "{output:?}");
}

#[test]
fn batch_script_ends_step_whose_client_is_gone() {
    let client = TcpListener::bind("127.0.0.1:0").unwrap();
    let (job, port) = (format!("4713{}", std::process::id()), client.local_addr().unwrap().port().to_string());
    let fake = Fake::new().reply("scancel *", &[""]).reply("squeue *", &[&format!("{job}.batch\n")]);
    let files = Path::new("/tmp").join(format!("slurminit-session-{job}-x"));
    fs::create_dir(&files).unwrap();
    let pty = nix::pty::openpty(None, None).unwrap();
    let mut step = Command::new("sleep");
    step.arg("60").env("SLURM_JOB_ID", &job).env("SLURM_STEP_ID", "3").env("SLURM_SRUN_COMM_HOST", "127.0.0.1");
    let process = step.env("SLURMINIT_CLIENT_PORT", port).stdin(pty.slave).spawn();
    drop(step);
    let mut step = process.unwrap();
    let mut script = fake.command(&["session", "keep", "0"]);
    script.env("SLURM_JOB_ID", &job).env("SLURM_JOB_END_TIME", (watch::agent::unix() + 300).to_string());
    let mut script = script.spawn().unwrap();
    drop(client.accept().unwrap());
    drop(client);
    assert!(script.wait().unwrap().success());
    step.kill().unwrap();
    step.wait().unwrap();
    let mut text = [0; 200];
    let length = File::from(pty.master).read(&mut text).unwrap();
    let warning = format!("slurminit: job {job} reaches its time limit in 5 min; save your work");
    assert_eq!(String::from_utf8_lossy(&text[..length]).trim(), warning);
    let calls =
        [format!("scancel --signal=KILL {job}.3"), format!("squeue --steps --noheader --format=%i --jobs {job}")];
    assert_eq!(fake.calls(""), calls);
    assert!(!files.exists());
}

fn stream(socket: &Path) -> std::process::Child {
    let mut stream = Command::new(harness::slurminit());
    stream.args(["session", "stream"]).arg(socket).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn stream_waits_for_server_and_ends_with_it() {
    let directory = tempfile::TempDir::new().unwrap();
    let socket = directory.path().join("socket");
    let mut client = stream(&socket);
    wait_for_sleep(&client);
    let server = UnixListener::bind(&socket).unwrap();
    client.stdin.take().unwrap().write_all(b"request").unwrap();
    let mut server = server.accept().unwrap().0;
    let mut text = String::new();
    server.read_to_string(&mut text).unwrap();
    assert_eq!(text, "request");
    server.write_all(b"response without newline").unwrap();
    server.shutdown(Shutdown::Both).unwrap();
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, b"response without newline");
}
