//! A daemon that hands over to a new process, as Slurm's daemons do at `scontrol reconfigure` with `--systemd`. The
//! stand-in follows Slurm's sequence: a grandchild, which PID 1 inherits, runs before the old process reports its PID
//! and exits.

use std::os::unix::fs::PermissionsExt as _;

use super::cluster::Cluster;
use super::*;

/// HUP: hand over in the mode given in the file `mode`. USR1: send each line of the file `forge` as a notification.
const DAEMON: &str = r"
import os, select, signal, socket, sys, time
directory = sys.argv[-1]
def read(name):
    try:
        with open(directory + '/' + name) as file: return file.read().strip()
    except FileNotFoundError: return ''
def say(text):
    with open(directory + '/events', 'a') as file: file.write(text + '\n')
def send(text, *descriptors):
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.connect(os.environ['NOTIFY_SOCKET'])
    socket.send_fds(notify, [text.encode()], descriptors)
def successor():
    argv = open('/proc/self/cmdline').read().split('\0')[:-1]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os.set_inheritable(writing, True)
            os.environ['PARENT'] = str(writing)
            os.execvp(argv[0], argv)
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    return int(os.read(reading, 20))
def barrier():
    reading, writing = os.pipe()
    send('BARRIER=1', writing, writing, writing)
    os.close(writing)
    poll = select.poll()
    poll.register(reading, 0)
    say('barrier closed' if poll.poll(10000) else 'barrier open')
signals = {signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
parent = os.environ.pop('PARENT', None)
if parent:
    os.write(int(parent), str(os.getpid()).encode())
    os.close(int(parent))
else:
    send('READY=1\nMAINPID=%d' % os.getpid())
say('start slurmctld %d' % os.getpid())
while True:
    got, mode = signal.sigwait(signals), read('mode')
    if got == signal.SIGTERM:
        say('stop slurmctld')
        sys.exit(0)
    if got == signal.SIGUSR1:
        for line in read('forge').splitlines(): send(line.replace('\\n', '\n'))
        say('forged')
        continue
    following = successor()
    if mode != 'silent': send('READY=1\nMAINPID=%d' % following)
    if mode == 'barrier': barrier()
    if mode == 'fatal':
        os.kill(following, signal.SIGKILL)
        while os.path.exists('/proc/%d' % following): time.sleep(0.002)
    if mode == 'lingers':
        say('lingers')
        while not read('go'): time.sleep(0.002)
    os._exit(0)
";

fn cluster(extra: &str) -> Cluster {
    Cluster::new(&format!(
        "[daemon.slurmctld]\nuser = 'root'\nreadiness = 'started'\n\
         command = ['python3', '-c', '''{DAEMON}''', '--systemd', 'DIR']\n{extra}"
    ))
}

struct Fixture {
    cluster: Cluster,
    init: Init,
}

impl Fixture {
    fn start(extra: &str) -> Self {
        let cluster = cluster(extra);
        let init = cluster.start_with_json_log();
        cluster.wait_until_ready();
        let fixture = Self { cluster, init };
        fixture.wait_for_events("start slurmctld", 1);
        fixture
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.cluster.directory.join(name), text).unwrap();
    }

    fn wait_for_events(&self, event: &str, count: usize) {
        let logged = || self.cluster.events().iter().filter(|line| line.starts_with(event)).count();
        wait_for(&format!("{count} times `{event}`"), || (logged() >= count).then_some(()));
    }

    fn pid(&self) -> i64 {
        self.cluster.unit("slurmctld")["pid"].as_i64().unwrap_or_default()
    }

    fn restarts(&self) -> i64 {
        self.cluster.unit("slurmctld")["restarts"].as_i64().unwrap()
    }

    fn signal(&self, signal: i32) {
        kill(self.cluster.pid_of(&self.init, "slurmctld"), signal);
    }

    /// Sends HUP and returns the PID of the new process.
    fn hand_over(&self, mode: &str) -> i64 {
        self.write("mode", mode);
        let before = self.pid();
        self.signal(1);
        wait_for("the new process", || Some(self.pid()).filter(|pid| *pid != before && *pid != 0))
    }

    fn wait_for_restart(&self, count: i64) -> i64 {
        wait_for("a restart", || {
            let unit = self.cluster.unit("slurmctld");
            (unit["restarts"] == count && unit["state"] == "ready").then(|| unit["pid"].as_i64().unwrap())
        })
    }

    /// The number of processes of the stand-in, identified by their command line.
    fn process_count(&self) -> usize {
        let directory = self.cluster.directory.display().to_string();
        let is_stand_in = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("--systemd") && line.contains(&directory)
        };
        self.init.children().iter().filter(|pid| is_stand_in(pid)).count()
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.init.pid)).unwrap().count()
    }

    /// Sends TERM and returns the log and the events of the stand-ins.
    fn stop(self) -> (String, Vec<String>) {
        self.init.signal(15);
        let end = self.init.end();
        assert_eq!(end.code, 0, "{}", end.stderr);
        (end.stderr, self.cluster.events())
    }
}

#[test]
fn twenty_handovers_count_as_no_restart() {
    // Probe processes would change the descriptor count.
    let fixture = Fixture::start("[supervise]\nprobe_interval = 0\n");
    let descriptors = fixture.descriptors();
    for round in 0..20 {
        fixture.hand_over(["", "barrier"][round % 2]);
        // The next HUP must not arrive before the new process handles it.
        fixture.wait_for_events("start slurmctld", round + 2);
    }
    assert_eq!((fixture.restarts(), fixture.process_count()), (0, 1));
    let barriers: Vec<_> = fixture.cluster.events().into_iter().filter(|event| event.starts_with("barrier")).collect();
    assert_eq!(barriers, vec!["barrier closed"; 10], "slurminit kept a descriptor that it received");
    // slurminit may have the status file open at the moment.
    wait_for("the initial descriptor count", || (fixture.descriptors() <= descriptors).then_some(()));
    fixture.signal(9);
    fixture.wait_for_restart(1);
    wait_for("a single process", || (fixture.process_count() == 1).then_some(()));
    fixture.wait_for_events("start slurmctld", 22);
    let (log, events) = fixture.stop();
    assert_eq!(logged(&log, "unit-handed-over", "slurmctld"), 20, "{log}");
    assert_eq!(events.iter().filter(|event| *event == "stop slurmctld").count(), 1, "stand-ins that received TERM");
}

#[test]
fn old_process_stays_main_process_until_it_exits() {
    let fixture = Fixture::start("");
    let before = fixture.pid();
    fixture.write("mode", "lingers");
    fixture.signal(1);
    fixture.wait_for_events("lingers", 1);
    assert_eq!(fixture.pid(), before);
    fixture.write("go", "go\n");
    wait_for("the new process", || (![0, before].contains(&fixture.pid())).then_some(()));
    assert_eq!((fixture.restarts(), fixture.process_count()), (0, 1));
    fixture.stop();
}

#[test]
fn stop_during_handover_reaches_new_process() {
    let fixture = Fixture::start("");
    fixture.write("mode", "lingers");
    fixture.signal(1);
    fixture.wait_for_events("lingers", 1);
    fixture.init.signal(15);
    fixture.wait_for_events("stop slurmd", 1);
    fixture.write("go", "go\n");
    let events = fixture.cluster.directory.join("events");
    wait_for("slurmctld stop", || fs::read_to_string(&events).ok().filter(|events| events.contains("stop slurmctld")));
    let end = fixture.init.end();
    assert_eq!(end.code, 0, "{}", end.stderr);
}

#[test]
fn death_of_successor_before_old_process_counts_as_crash() {
    let fixture = Fixture::start("");
    fixture.write("mode", "fatal");
    fixture.signal(1);
    fixture.wait_for_restart(1);
    wait_for("a single process", || (fixture.process_count() == 1).then_some(()));
    let (log, _) = fixture.stop();
    assert_eq!(logged(&log, "unit-died", "slurmctld"), 1, "{log}");
}

#[test]
fn exit_without_notification_causes_restart_and_no_orphan() {
    let fixture = Fixture::start("");
    fixture.write("mode", "silent");
    fixture.signal(1);
    fixture.wait_for_restart(1);
    wait_for("a single process", || (fixture.process_count() == 1).then_some(()));
    fixture.stop();
}

#[test]
fn notify_socket_has_mode_0600() {
    let fixture = Fixture::start("");
    let mode = fs::metadata(fixture.cluster.directory.join("run/notify-slurmctld")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    fixture.stop();
}

#[test]
fn rejects_foreign_main_pids_sent_by_daemon() {
    let fixture = Fixture::start("");
    let other = fixture.cluster.unit("slurmd")["pid"].as_i64().unwrap();
    let forged = format!(
        "MAINPID=1\nMAINPID={other}\nMAINPID=4000000\nMAINPID=0\nMAINPID=-1\nMAINPID=x\nMAINPID=1\\nMAINPID={other}\n{}\n",
        "x".repeat(5000)
    );
    fixture.write("forge", &forged);
    fixture.signal(10);
    fixture.wait_for_events("forged", 1);
    let before = fixture.pid();
    fixture.signal(9);
    let after = fixture.wait_for_restart(1);
    assert!(![1, other, before].contains(&after), "{after}");
    assert_eq!(fixture.cluster.unit("slurmd")["pid"].as_i64(), Some(other), "slurmd was restarted");
    let (log, _) = fixture.stop();
    for claim in ["MAINPID=1 ".to_owned(), format!("MAINPID={other} "), "MAINPID=4000000 ".to_owned()] {
        assert!(log.contains(&claim), "{claim}\n{log}");
    }
    // Only some of the further rejections are logged.
    let refused = log.matches("NOTIFY_SOCKET").count();
    assert!((4..20).contains(&refused), "{refused}: {log}");
}

/// Another root process in the container, which claims to be the daemon and floods the socket with messages that carry descriptors.
const FORGER: &str = r"
import os, socket, sys
directory = sys.argv[-1]
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.connect(directory + '/run/notify-slurmctld')
sent = 0
while not os.path.exists(directory + '/enough'):
    text = ['MAINPID=%d' % os.getpid(), 'READY=1', 'BARRIER=1', '\0\xff', 'x' * 9000][sent % 5]
    socket.send_fds(notify, [text.encode()], [0, 1, 2])
    sent += 1
    if sent == 5000:
        with open(directory + '/events', 'a') as file: file.write('flooded\n')
";

#[test]
fn flood_of_forged_messages_does_not_affect_handovers() {
    let fixture = Fixture::start(&format!(
        "[[service]]\nname = 'forger'\nrestart = 'never'\nafter = ['slurmctld']\ncommand = ['python3', '-c', '''{FORGER}''', 'DIR']\n"
    ));
    fixture.wait_for_events("flooded", 1);
    // 15,000 descriptors were sent. Only those of messages being read are still open; under load a start opens some more.
    assert!(fixture.descriptors() < 100, "{} descriptors", fixture.descriptors());
    // The flood continues during the handovers.
    let forger = fixture.cluster.unit("forger")["pid"].as_i64().unwrap();
    for round in 0..3 {
        assert_ne!(fixture.hand_over("barrier"), forger);
        fixture.wait_for_events("start slurmctld", round + 2);
    }
    fixture.wait_for_events("barrier closed", 3);
    assert_eq!(fixture.restarts(), 0);
    fixture.signal(9);
    assert_ne!(fixture.wait_for_restart(1), forger);
    let (log, _) = fixture.stop();
    let refused = log.matches("NOTIFY_SOCKET").count();
    assert!((1..20).contains(&refused), "{refused}: {log}");
}
