//! Control socket clients that send garbage, send nothing, do not read, or belong to other users.

use super::*;

#[test]
fn rejects_garbage_with_one_line_reply() {
    let cluster = Cluster::new("");
    let init = cluster.start();
    cluster.wait_until_ready();
    let cases: [(&[u8], &str); 6] = [
        (b"\n", "empty"),
        (b"\xff\xfe\0\0\n", "not a request"),
        (b"GET / HTTP/1.1\r\n\r\n", "not a request"),
        (b"{\"verb\":\"reboot\"}\n", "reboot"),
        (b"{\"verb\":\"restart\",\"name\":\"\\u001b[2J\"}\n", "no daemon or service"),
        (b"{\"verb\":\"logs\",\"name\":\"munged\",\"lines\":-1}\n", "not a request"),
    ];
    for (bytes, word) in cases {
        let mut stream = connect(&cluster);
        stream.write_all(bytes).unwrap();
        let reply = read_reply(&mut stream);
        assert!(reply.contains("refused") && reply.contains(word), "{bytes:?}: {reply}");
        assert_eq!(reply.matches('\n').count(), 1);
        assert!(!reply.contains('\x1b'));
    }
    assert_still_serving(&cluster, init);
}

#[test]
fn disconnects_client_that_sends_endless_request() {
    let cluster = Cluster::new("");
    let init = cluster.start();
    cluster.wait_until_ready();
    let mut stream = connect(&cluster);
    let chunk = vec![b'x'; 64 << 10];
    let sent = (0..160).take_while(|_| stream.write_all(&chunk).is_ok()).count();
    assert!(sent < 160, "the server read 10 MiB");
    assert!(read_reply(&mut stream).contains("longer than 4096 bytes"));
    let resident = kib(init.pid, "VmRSS");
    assert!(resident < 32 << 10, "{resident} KiB");
    assert_still_serving(&cluster, init);
}

#[test]
fn disconnects_hundred_silent_clients() {
    let cluster = Cluster::new("");
    let init = cluster.start();
    cluster.wait_until_ready();
    let mut silent: Vec<_> = (0..100).map(|_| connect(&cluster)).collect();
    let restart = verb(&cluster, &["restart", "munged"]);
    assert_eq!(restart.code, 0, "{}", restart.stderr);
    let replies: Vec<_> = silent.iter_mut().map(read_reply).collect();
    let count = |text: &str| replies.iter().filter(|reply| reply.contains(text)).count();
    let (busy, late) = (count("busy"), count("no request within 1 s"));
    assert!(busy + late == 100 && late >= 8, "{busy} and {late}: {replies:?}");
    assert_still_serving(&cluster, init);
}

#[test]
fn clients_that_never_read_block_nothing() {
    let cluster = Cluster::new("");
    let init = cluster.start();
    cluster.wait_until_ready();
    for _ in 0..3 {
        let _unread: Vec<_> = (0..8)
            .map(|_| {
                let mut stream = connect(&cluster);
                let _ = stream.write_all(b"{\"verb\":\"logs\",\"name\":\"slurminit\",\"lines\":4000000000}\n");
                stream
            })
            .collect();
    }
    assert_still_serving(&cluster, init);
}

#[test]
fn thousand_quick_connections_leak_no_descriptor() {
    let cluster = Cluster::new("");
    let init = cluster.start();
    cluster.wait_until_ready();
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", init.pid)).unwrap().count();
    let before = descriptors();
    for _ in 0..1000 {
        drop(connect(&cluster));
    }
    wait_for("closed connections", || (descriptors() <= before).then_some(()));
    assert_still_serving(&cluster, init);
}

#[test]
fn rejects_other_users_by_socket_mode_and_in_server() {
    let cluster = Cluster::new("");
    let init = cluster.start();
    cluster.wait_until_ready();
    assert_eq!(fs::metadata(socket(&cluster)).unwrap().permissions().mode() & 0o7777, 0o600);
    fs::set_permissions(cluster.directory(), fs::Permissions::from_mode(0o755)).unwrap();
    // The build directory may be unreadable by other users.
    let binary = cluster.directory().join("slurminit");
    fs::copy(slurminit(), &binary).unwrap();
    let as_nobody = |arguments: &[&str]| {
        let mut command = in_container("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&binary).args(arguments);
        command.arg("--config").arg(cluster.directory().join("slurminit.toml"));
        run(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
    };
    let refused = as_nobody(&["restart", "slurmctld"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("only root can send requests to slurminit"), "{}", refused.stderr);
    assert_eq!(as_nobody(&["status"]).code, 0, "status needs no privileges");
    assert_eq!(as_nobody(&["health", "--live"]).code, 0);
    fs::set_permissions(socket(&cluster), fs::Permissions::from_mode(0o666)).unwrap();
    let refused = as_nobody(&["restart", "slurmctld"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("only root may send requests"), "{}", refused.stderr);
    assert_eq!(cluster.unit("slurmctld")["restarts"], 0);
    assert_still_serving(&cluster, init);
}

#[test]
fn cluster_runs_without_control_socket() {
    let cluster = Cluster::new("");
    fs::create_dir_all(cluster.directory().join("run/control")).unwrap();
    let init = cluster.start();
    cluster.wait_until_ready();
    assert_eq!(verb(&cluster, &["health", "--live"]).code, 0);
    assert_eq!(verb(&cluster, &["restart", "munged"]).code, 1);
    init.signal(15);
    let end = init.end();
    assert_eq!(end.code, 0, "{}", end.stderr);
    assert!(end.stderr.contains("run/control: "), "{}", end.stderr);
}

#[test]
fn restart_and_logs_work_with_full_run_directory() {
    let cluster = Cluster::new("");
    let run = cluster.directory().join("run");
    fs::create_dir_all(&run).unwrap();
    let _mount = Mount::tmpfs(&run);
    let init = cluster.start();
    cluster.wait_until_ready();
    let mut filler = fs::File::create(run.join("filler")).unwrap();
    while filler.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
    let restart = verb(&cluster, &["restart", "slurmctld"]);
    assert_eq!(restart.code, 0, "{}{}", restart.stdout, restart.stderr);
    // The status file cannot be written, but the log is kept in memory.
    let log = |name: &str| verb(&cluster, &["logs", name]).stdout;
    assert!(log("slurminit").lines().any(|line| line.contains(" info slurminit: ") && line.contains("slurmctld")));
    assert_still_serving(&cluster, init);
}

/// A small tmpfs, unmounted on drop.
struct Mount(PathBuf);

impl Mount {
    fn tmpfs(at: &Path) -> Self {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "none"]).arg(at).status().unwrap();
        assert!(mounted.success(), "mount needs root");
        Self(at.to_owned())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
