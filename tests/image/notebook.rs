//! `slurminit notebook` with a stand-in for JupyterLab. tests/clients/jupyterlab has the real one.

use std::io::Read as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::docker::Outcome;
use crate::session::Site;

/// A server on the socket that its command line names. It requires the token and responds with its job.
const JUPYTER_LAB: &str = r#"#!/usr/bin/perl
use IO::Socket::UNIX;
my ($path) = map { /^--ServerApp\.sock=(.*)/ } @ARGV;
open my $file, '<', $ENV{JUPYTER_TOKEN_FILE} or die;
my $token = <$file>;
my $server = IO::Socket::UNIX->new(Local => $path, Listen => 9) or die;
$SIG{CHLD} = 'IGNORE';
while (my $client = $server->accept) {
    next if fork;
    for (my $head = ''; my $line = <$client>; ) {
        $head .= $line;
        next unless $line eq "\r\n";
        my ($code, $body) = $head =~ /token $token\r/ ? (200, "job $ENV{SLURM_JOB_ID} GPU $ENV{CUDA_VISIBLE_DEVICES}") : (403, 'Forbidden');
        print $client "HTTP/1.1 $code X\r\nContent-Length: " . length($body) . "\r\n\r\n$body";
        $client->flush;
        $head =~ /Connection: close/ ? last : ($head = '');
    }
    exit;
}
"#;

impl Site {
    pub(crate) fn install_jupyter_lab(&self) {
        self.container.sh(&format!(
            "cat >/usr/local/bin/jupyter-lab <<'END'\n{JUPYTER_LAB}END\nchmod 755 /usr/local/bin/jupyter-lab"
        ));
    }

    /// Starts a notebook in the background, and returns its token. Its PID, output and log are in the files `pid`, `url` and `log` in the
    /// user's home.
    pub(crate) fn notebook(&self, user: &str, options: &str) -> String {
        let line = format!("(setsid slurminit notebook {options} >url 2>log </dev/null & echo $! >pid)");
        self.login(user, &line).ok();
        self.container.until(&format!("grep -q token= ~{user}/url || ! kill -0 $(cat ~{user}/pid)"));
        let (url, log) =
            (self.container.sh(&format!("cat ~{user}/url")), self.container.sh(&format!("cat ~{user}/log")));
        assert!(url.contains("token="), "{url}{log}");
        url.split("token=").nth(1).unwrap_or_default().to_owned()
    }

    fn get(&self, user: &str, port: u16, token: &str) -> Outcome {
        let line = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port} && printf 'GET / HTTP/1.1\\r\\nAuthorization: token {token}\\r\\nConnection: close\\r\\n\\r\\n' >&3 && cat <&3"
        );
        self.login(user, &line)
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn notebook_is_reached_with_its_token_only_and_ends_with_its_client() {
    let site = Site::start();
    let container = &site.container;
    // If JupyterLab is not installed, the message names both ways to get it.
    let outcome = site.login("alice", "slurminit notebook");
    assert!(
        outcome.code == 127
            && outcome.stderr.contains("--container docker://")
            && outcome.stderr.contains("pip install jupyterlab"),
        "{outcome:?}"
    );
    site.wait_until_free(Duration::from_secs(10));

    site.install_jupyter_lab();
    let token = site.notebook("alice", "--cpus 2");
    let other = site.notebook("bob", "--port 127.0.0.1:8889");
    let page = site.get("alice", 8888, &token).ok();
    assert!(page.contains(" 200 ") && page.contains("GPU 0"), "{page}");
    let page = site.get("bob", 8889, &other).ok();
    assert!(page.contains(" 200 ") && page.contains("GPU 1"), "{page}");
    for wrong in ["", &other] {
        assert!(site.get("alice", 8888, wrong).ok().contains(" 403 "));
    }
    // Another user's connection is closed, even with the token.
    assert!(!site.get("bob", 8888, &token).stdout.contains("HTTP/1.1"));
    // The search itself must not have the token on its command line. Only alice can read the environments of her processes.
    container.sh("cut -d= -f2 ~alice/url >/tmp/token && chown alice /tmp/token && chmod 600 /tmp/token");
    let found = container.sh("grep -rlFf /tmp/token /var/lib/slurm /var/log /etc /run /tmp/slurminit* 2>/dev/null; \
         su alice -c 'cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | grep -caFf /tmp/token'; \
         (scontrol show job; scontrol show step) | grep -cFf /tmp/token; true");
    let lines: Vec<&str> = found.lines().collect();
    assert!(lines.len() == 3 && lines[0].ends_with("/token") && lines[1..] == ["0", "0"], "{found}");
    assert_ne!(site.login("bob", &format!("cat {}", lines[0])).code, 0);
    // A port that is in use is refused before a job is submitted.
    let outcome = site.login("alice", "slurminit notebook");
    assert!(outcome.code == 1 && outcome.stderr.contains("choose another --port"), "{outcome:?}");
    // After an interrupt, and after the kill of a client, the GPUs are free, the ports are closed, and no file is left.
    container.sh("kill -INT $(cat ~alice/pid); kill -KILL $(cat ~bob/pid)");
    site.wait_until_free(Duration::from_secs(20));
    for port in [8888, 8889] {
        assert_ne!(site.get("alice", port, "").code, 0);
    }
    assert_eq!(container.sh("ls -d /tmp/slurminit-session-* 2>/dev/null; pgrep -f jupyter-la[b]; true"), "");
}

/// Archives everything but the configuration as an image. tar returns 1 if a file changes while tar reads it.
const EXPORT: &str = "tar -C / -cf /tmp/image.tar bin lib lib64 sbin usr etc/passwd etc/group etc/nsswitch.conf; [ $? -le 1 ] && chmod 644 /tmp/image.tar";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn notebook_runs_in_image() {
    let site = Site::start();
    let container = &site.container;
    site.install_jupyter_lab();
    container.sh(EXPORT);
    container.sh("rm /usr/local/bin/jupyter-lab && slurminit image import lab /tmp/image.tar && rm /tmp/image.tar");
    let token = site.notebook("alice", "--container lab");
    assert!(site.get("alice", 8888, &token).ok().contains("GPU 0"));
    assert!(site.get("alice", 8888, "").ok().contains(" 403 "));
    assert_eq!(
        container.sh("stat -c '%U %a' /tmp/slurminit-session-*/ /tmp/slurminit-session-*/token"),
        "alice 700\nalice 600"
    );
    container.sh("kill -INT $(cat ~alice/pid)");
    site.wait_until_free(Duration::from_secs(20));
    assert_eq!(container.sh("ls -d /tmp/slurminit-session-* 2>/dev/null; pgrep -u alice; true"), "");
    // If the image has no JupyterLab, the message names both ways to get it.
    container.sh(&EXPORT.replace("/tmp/image.tar bin", "/tmp/image.tar --exclude=usr/local bin"));
    container.sh("slurminit image import plain /tmp/image.tar");
    let outcome = site.login("alice", "slurminit notebook --container plain");
    assert!(outcome.code == 127 && outcome.stderr.contains("pip install jupyterlab"), "{outcome:?}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn connections_of_others_start_no_step_and_do_not_lock_owner_out() {
    let site = Site::start();
    let container = &site.container;
    site.install_jupyter_lab();
    let token = site.notebook("alice", "--port 0.0.0.0:8888");
    let assert_answers = || {
        let begin = Instant::now();
        let page = site.get("alice", 8888, &token).ok();
        assert!(page.contains(" 200 ") && begin.elapsed() < Duration::from_secs(20), "{:?} {page}", begin.elapsed());
    };
    let steps = |count: usize| format!("[ $(squeue --steps --noheader --format=%i | grep -c \"[.][0-9]\") = {count} ]");
    container.until(&steps(1));
    // 100 connections that send nothing, 100 with half a request, 2000 that are closed at once.
    let attacks = [
        "for i in $(seq 100); do exec {fd}<>/dev/tcp/127.0.0.1/8888; done; sleep 600",
        "for i in $(seq 100); do exec {fd}<>/dev/tcp/127.0.0.2/8888; printf \"GET / HTTP/1.1\\r\\n\" >&$fd; done; sleep 600",
        "for i in $(seq 2000); do (printf \"GET / HTTP/1.1\\r\\n\" >/dev/tcp/$(hostname -i)/8888) done; sleep 600",
    ];
    for attack in attacks {
        site.login("bob", &format!("(setsid bash -c '{attack}' >/dev/null 2>&1 </dev/null &)")).ok();
    }
    container.until("[ $(pgrep -u bob -x sleep | wc -l) -ge 2 ]");
    for _ in 0..5 {
        assert_answers();
    }
    container.until("[ $(pgrep -u bob -x sleep | wc -l) = 3 ]");
    assert_answers();
    container.until(&steps(1));

    // Connections from another machine, because this port is open to the network.
    let address = container.sh("hostname -i");
    let mut silent: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect((address.as_str(), 8888)).expect("a connection")).collect();
    assert_answers();
    container.until(&steps(1));
    for stream in &mut silent {
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        assert_eq!(stream.read(&mut [0]).expect("the notebook closes it"), 0);
    }
    container.sh("pkill -KILL -u bob; kill -INT $(cat ~alice/pid)");
    site.wait_until_free(Duration::from_secs(20));
}
