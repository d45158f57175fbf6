//! A daemon that hands over to a new process, as Slurm's do at `scontrol reconfigure` with `--systemd`. The dance of the
//! stand-in is Slurm's own: a grandchild, which PID 1 inherits, works before the old process tells of it and ends.

use std::os::unix::fs::PermissionsExt as _;

use super::cluster::Cluster;
use super::*;

/// HUP: hand over, in the way that the file `mode` says. USR1: send the lines of the file `forge`.
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

fn cluster(more: &str) -> Cluster {
    Cluster::new(&format!(
        "[daemon.slurmctld]\nuser = 'root'\nreadiness = 'started'\n\
         command = ['python3', '-c', '''{DAEMON}''', '--systemd', 'DIR']\n{more}"
    ))
}

struct Cast {
    cluster: Cluster,
    init: Init,
}

impl Cast {
    fn start(more: &str) -> Self {
        let cluster = cluster(more);
        let init = cluster.start_with_json_log();
        cluster.wait_until_ready();
        let cast = Self { cluster, init };
        cast.wait_for_events("start slurmctld", 1);
        cast
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.cluster.directory.join(name), text).unwrap();
    }

    fn wait_for_events(&self, what: &str, count: usize) {
        let seen = || self.cluster.events().iter().filter(|event| event.starts_with(what)).count();
        wait_for(&format!("{count} times `{what}`"), || (seen() >= count).then_some(()));
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

    /// HUP, and the new pid.
    fn hand_over(&self, mode: &str) -> i64 {
        self.write("mode", mode);
        let before = self.pid();
        self.signal(1);
        wait_for("another process", || Some(self.pid()).filter(|pid| *pid != before && *pid != 0))
    }

    fn wait_for_restart(&self, count: i64) -> i64 {
        wait_for("a restart", || {
            let unit = self.cluster.unit("slurmctld");
            (unit["restarts"] == count && unit["state"] == "ready").then(|| unit["pid"].as_i64().unwrap())
        })
    }

    /// The living processes of the stand-in, by the option that only they have.
    fn alive(&self) -> usize {
        let directory = self.cluster.directory.display().to_string();
        let of_ours = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("--systemd") && line.contains(&directory)
        };
        self.init.children().iter().filter(|pid| of_ours(pid)).count()
    }

    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.init.pid)).unwrap().count()
    }

    /// TERM; the log, and what the stand-ins saw.
    fn stop(self) -> (String, Vec<String>) {
        self.init.signal(15);
        let end = self.init.end();
        assert_eq!(end.code, 0, "{}", end.stderr);
        (end.stderr, self.cluster.events())
    }
}

#[test]
fn twenty_handovers_in_a_row_are_no_restart() {
    // Without probes slurminit starts nobody that would come and go.
    let cast = Cast::start("[supervise]\nprobe_interval = 0\n");
    let descriptors = cast.descriptors();
    for round in 0..20 {
        cast.hand_over(["", "barrier"][round % 2]);
        // The next HUP must not come before the new process listens for it.
        cast.wait_for_events("start slurmctld", round + 2);
    }
    assert_eq!((cast.restarts(), cast.alive()), (0, 1));
    let barriers: Vec<_> = cast.cluster.events().into_iter().filter(|event| event.starts_with("barrier")).collect();
    assert_eq!(barriers, vec!["barrier closed"; 10], "slurminit keeps none of the descriptors that it is sent");
    // It may be writing its status just now.
    wait_for("no descriptor more than before", || (cast.descriptors() <= descriptors).then_some(()));
    cast.signal(9);
    cast.wait_for_restart(1);
    wait_for("the only one", || (cast.alive() == 1).then_some(()));
    cast.wait_for_events("start slurmctld", 22);
    let (log, events) = cast.stop();
    assert_eq!(logged(&log, "unit-handed-over", "slurmctld"), 20, "{log}");
    assert_eq!(events.iter().filter(|event| *event == "stop slurmctld").count(), 1, "its last process is told");
}

#[test]
fn old_process_is_daemon_until_it_ends() {
    let cast = Cast::start("");
    let before = cast.pid();
    cast.write("mode", "lingers");
    cast.signal(1);
    cast.wait_for_events("lingers", 1);
    assert_eq!(cast.pid(), before);
    cast.write("go", "go\n");
    wait_for("the new one", || (![0, before].contains(&cast.pid())).then_some(()));
    assert_eq!((cast.restarts(), cast.alive()), (0, 1));
    cast.stop();
}

#[test]
fn stop_during_handover_reaches_new_process() {
    let cast = Cast::start("");
    cast.write("mode", "lingers");
    cast.signal(1);
    cast.wait_for_events("lingers", 1);
    cast.init.signal(15);
    cast.wait_for_events("stop slurmd", 1);
    cast.write("go", "go\n");
    let events = cast.cluster.directory.join("events");
    wait_for("its end", || fs::read_to_string(&events).ok().filter(|events| events.contains("stop slurmctld")));
    let end = cast.init.end();
    assert_eq!(end.code, 0, "{}", end.stderr);
}

#[test]
fn successor_that_dies_before_old_process_is_death() {
    let cast = Cast::start("");
    cast.write("mode", "fatal");
    cast.signal(1);
    cast.wait_for_restart(1);
    wait_for("the only one", || (cast.alive() == 1).then_some(()));
    let (log, _) = cast.stop();
    assert_eq!(logged(&log, "unit-died", "slurmctld"), 1, "{log}");
}

#[test]
fn silent_end_counts_as_death_and_leaves_no_process() {
    let cast = Cast::start("");
    cast.write("mode", "silent");
    cast.signal(1);
    cast.wait_for_restart(1);
    wait_for("the only one", || (cast.alive() == 1).then_some(()));
    cast.stop();
}

#[test]
fn socket_is_for_root_and_daemons_user_alone() {
    let cast = Cast::start("");
    let mode = fs::metadata(cast.cluster.directory.join("run/notify-slurmctld")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    cast.stop();
}

#[test]
fn rejects_forged_claim_of_daemon() {
    let cast = Cast::start("");
    let other = cast.cluster.unit("slurmd")["pid"].as_i64().unwrap();
    let forged = format!(
        "MAINPID=1\nMAINPID={other}\nMAINPID=4000000\nMAINPID=0\nMAINPID=-1\nMAINPID=x\nMAINPID=1\\nMAINPID={other}\n{}\n",
        "x".repeat(5000)
    );
    cast.write("forge", &forged);
    cast.signal(10);
    cast.wait_for_events("forged", 1);
    let before = cast.pid();
    cast.signal(9);
    let after = cast.wait_for_restart(1);
    assert!(![1, other, before].contains(&after), "{after}");
    assert_eq!(cast.cluster.unit("slurmd")["pid"].as_i64(), Some(other), "the other daemon is untouched");
    let (log, _) = cast.stop();
    for said in ["MAINPID=1 ".to_owned(), format!("MAINPID={other} "), "MAINPID=4000000 ".to_owned()] {
        assert!(log.contains(&said), "{said}\n{log}");
    }
    // Of the many that follow only some are named.
    let refused = log.matches("NOTIFY_SOCKET").count();
    assert!((4..20).contains(&refused), "{refused}: {log}");
}

/// Another process of the container, root's: it names itself, and slurmd, and floods, with descriptors in its messages.
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
fn flood_by_forger_changes_nothing_and_stops_nothing() {
    let cast = Cast::start(&format!(
        "[[service]]\nname = 'forger'\nrestart = 'never'\nafter = ['slurmctld']\ncommand = ['python3', '-c', '''{FORGER}''', 'DIR']\n"
    ));
    cast.wait_for_events("flooded", 1);
    // Of 15,000 that came, those of the messages that are being read are open, and on a busy machine some of a start.
    assert!(cast.descriptors() < 100, "{} descriptors", cast.descriptors());
    // The flood goes on.
    let forger = cast.cluster.unit("forger")["pid"].as_i64().unwrap();
    for round in 0..3 {
        assert_ne!(cast.hand_over("barrier"), forger);
        cast.wait_for_events("start slurmctld", round + 2);
    }
    cast.wait_for_events("barrier closed", 3);
    assert_eq!(cast.restarts(), 0);
    cast.signal(9);
    assert_ne!(cast.wait_for_restart(1), forger);
    let (log, _) = cast.stop();
    let refused = log.matches("NOTIFY_SOCKET").count();
    assert!((1..20).contains(&refused), "{refused}: {log}");
}
