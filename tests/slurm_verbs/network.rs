//! Verbs that depend on the container's network, in network namespaces of their own.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use config::token::Token;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{geteuid, sethostname};

use super::fake::Fake;
use super::join_command::controller;

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Another container, with a process that listens at port 7000 of 10.209.0.2.
struct OtherContainer(Child);

impl OtherContainer {
    fn start() -> Self {
        let script = "my $s = IO::Socket::INET->new(Listen => 5, LocalPort => 7000) or die; syswrite(STDOUT, qq(up\\n)); sleep 600";
        let mut command = Command::new("unshare");
        command.args(["--net", "perl", "-MIO::Socket::INET", "-e", script]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        Self(child)
    }

    fn run(&self, command: &str) {
        let network = format!("--net=/proc/{}/ns/net", self.0.id());
        let status = Command::new("nsenter").arg(network).args(command.split(' ')).status().unwrap();
        assert!(status.success(), "{command}");
    }
}

impl Drop for OtherContainer {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Moves this thread and its children to a new network with the addresses 10.209.0.1 and, in the same namespace, 10.209.0.2. Returns
/// whether this is possible, which requires root and ip(8).
fn enter_network() -> bool {
    if !geteuid().is_root() || Command::new("ip").arg("-V").stdout(Stdio::null()).status().is_err() {
        return false;
    }
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_PRIVATE | MsFlags::MS_REC, None::<&str>).unwrap();
    mount(Some("none"), "/sys", Some("sysfs"), MsFlags::empty(), None::<&str>).unwrap();
    sethostname("box").unwrap();
    ip("link set lo up");
    ip("link add host0 type veth peer name host1");
    ip("address add 10.209.0.1/24 dev host0");
    ip("link set host0 up");
    ip("link set host1 up");
    true
}

/// Lets `box` resolve to these addresses.
fn set_hosts(fake: &Fake, text: &str) {
    let file = fake.path("hosts");
    fs::write(&file, text).unwrap();
    mount(Some(&file), Path::new("/etc/hosts"), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

#[test]
fn join_command_has_address_of_route_or_of_host_name() {
    if !enter_network() {
        return;
    }
    let fake = controller("");
    set_hosts(&fake, "127.0.0.1 localhost\n127.0.1.1 box\n10.209.0.9 box\n");
    let run = || {
        let output = fake.run(&["join-command"]);
        let line = String::from_utf8(output.stdout).unwrap();
        let command = line.trim().split_once(" --join ").map(|(command, token)| {
            let contents = Token::decode(token).unwrap().contents;
            (command.contains(" --network host "), contents.address.to_string(), contents.pinned)
        });
        command.ok_or(String::from_utf8(output.stderr).unwrap())
    };
    ip("route add default dev host0");
    assert_eq!(run(), Ok((true, "10.209.0.1".to_owned(), true)));
    ip("route delete default dev host0");
    assert_eq!(run(), Ok((true, "10.209.0.9".to_owned(), true)));
    set_hosts(&fake, "127.0.0.1 localhost\n127.0.1.1 box\n");
    let error = run().unwrap_err();
    assert!(error.contains("found no IPv4 address that other machines can reach; set --address"), "{error}");
    // As in the network of an engine, which has a name.
    let other = OtherContainer::start();
    ip(&format!("link set host1 netns {}", other.0.id()));
    let error = run().unwrap_err();
    assert!(error.contains("cannot read the name of this container's network from inside"), "{error}");
}

#[test]
fn node_waits_while_another_container_has_its_name() {
    if !enter_network() {
        return;
    }
    let other = OtherContainer::start();
    ip(&format!("link set host1 netns {}", other.0.id()));
    other.run("ip address add 10.209.0.2/24 dev host1");
    other.run("ip link set host1 up");
    let record = |rest: &str| format!("NodeName=c1 CPUAlloc=0 CPUTot=4 State=IDLE+CLOUD NodeAddr=10.209.0.2 {rest}\n");
    let join = |record: &str, others: &str, port: &str| {
        let fake = Fake::new()
            .reply("scontrol --oneliner show node c1", &[record])
            .reply("scontrol --oneliner show node*", &[&(record.to_owned() + others)])
            .reply("sinfo *", &["idle root|none"])
            .reply("squeue *", &[""])
            .reply("scontrol update *", &[""]);
        let arguments =
            ["jobs", "--node", "c1", "join", "--conf", "CPUs=4", "--gpus", "", "--port", port, "--", "echo"];
        let mut child = fake.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut message = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut message).unwrap();
        if !message.is_empty() {
            child.kill().unwrap();
        }
        (child.wait().unwrap().success(), message, fake.changes())
    };
    let (_, message, changes) = join(&record(""), "", "7000");
    assert!(message.contains("the node name c1 is already in use, by a slurmd at 10.209.0.2; waiting"), "{message}");
    let reason = "scontrol update nodename=c1 reason=slurminit: another container (box) uses the name of this node; give it another node name";
    assert_eq!(changes, [reason]);
    let (_, message, changes) = join(&record("Reason=fan"), "", "7000");
    assert!(message.contains("is already in use") && changes.is_empty(), "{message} {changes:?}");

    let free = |record: &str, others: &str, port: &str| join(record, others, port) == (true, String::new(), vec![]);
    assert!(free(&record(""), "", "7001"), "nothing listens there");
    assert!(free(&record(""), "NodeName=c2 NodeAddr=10.209.0.2\n", "7000"), "the address of another node");
    assert!(free(&record("").replace("CLOUD", "CLOUD+NOT_RESPONDING"), "", "7000"), "the node of a stopped container");
    assert!(free(&record("").replace("10.209.0.2", "10.209.0.1"), "", "7000"), "the address of this machine");
}

#[test]
fn host_without_name_service_gets_address_of_its_route() {
    if !enter_network() {
        return;
    }
    let fake = Fake::new().script("getent ahosts --service=dns box", "[ -e \"$here/in-dns\" ] && exit 0; exit 1");
    set_hosts(&fake, "127.0.0.1 localhost\n");
    let inventory = concat!(env!("CARGO_MANIFEST_DIR"), "/render/inventory.json");
    let prepare = |role: &str| {
        let root = fake.path(&format!("root-{role}"));
        fs::create_dir_all(root.join("etc")).unwrap();
        let users = "[daemon.munged]\nuser = 'nobody'\n[daemon.slurmctld]\nuser = 'nobody'\n";
        fs::write(root.join("slurminit.toml"), format!("role = '{role}'\n{users}")).unwrap();
        let mut command = fake.command(&["prepare", "--inventory", inventory, "--root"]);
        let output = command.arg(&root).arg("--config").arg(root.join("slurminit.toml")).output().unwrap();
        let events = String::from_utf8(output.stdout).unwrap();
        (fs::read_to_string(root.join("etc/hosts")).unwrap_or_default(), events)
    };
    // Without a default route, other hosts cannot reach this one.
    let (hosts, events) = prepare("controller");
    assert!(hosts.is_empty() && events.contains("there is no IPv4 default route"), "{hosts} {events}");
    assert_eq!(prepare("all").0, "127.0.0.1\tbox\n127.0.0.1\tlocalhost\n");
    ip("route add default dev host0");
    assert_eq!(prepare("controller").0, "10.209.0.1\tbox\n");
    fs::remove_dir_all(fake.path("root-controller")).unwrap();
    assert_eq!(fake.calls("getent ahosts --service=dns box").len(), 2);
    fs::write(fake.path("in-dns"), "").unwrap();
    let (hosts, events) = prepare("controller");
    assert!(hosts.is_empty() && !events.contains("has no address"), "{hosts} {events}");
}
