//! `slurminit free-port`: a daemon's port that another process has taken.

use super::*;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;

use nix::unistd::{Uid, getsid, setfsuid};

/// A listening socket that this user has created, and its port.
fn socket_of(uid: u32) -> (TcpListener, String) {
    setfsuid(Uid::from_raw(uid));
    let socket = TcpListener::bind("0.0.0.0:0");
    setfsuid(Uid::from_raw(0));
    let socket = socket.unwrap();
    let port = socket.local_addr().unwrap().port().to_string();
    (socket, port)
}

/// A process of this user that has the socket.
fn owner(socket: &TcpListener, uid: u32) -> Child {
    let socket = OwnedFd::from(socket.try_clone().unwrap());
    Command::new("sleep").arg("600").uid(uid).stdin(socket).spawn().unwrap()
}

/// The exit code and the messages.
fn free_port(port: &str, options: &[&str]) -> (Option<i32>, String) {
    let fixed = ["free-port", "--port", port, "--unit", "slurmctld"];
    let output = Command::new(slurminit()).args(fixed).args(options).env_clear().output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap().replace(&format!("port {port}"), "port P"))
}

#[test]
fn kills_owner_of_port_before_those_to_whom_it_passed_the_socket() {
    let (socket, port) = socket_of(1501);
    let (mut receiver, mut owner) = (owner(&socket, 1505), owner(&socket, 1501));
    drop(socket);
    let killed = format!(
        "warning: port P of slurmctld was taken by process {} (sleep), with a socket of uid 1501; killed\n",
        owner.id()
    );
    assert_eq!(free_port(&port, &[]), (Some(0), killed));
    assert_eq!([&mut owner, &mut receiver].map(|child| child.wait().unwrap().signal()), [Some(9); 2]);
    assert_eq!(free_port(&port, &[]), (Some(0), String::new()));
}

#[test]
fn kills_no_process_of_root_of_another_daemon_or_without_proof() {
    let taken = |why: &str| (Some(1), format!("warning: port P of slurmctld is taken by {why}\n"));
    let (_socket, port) = socket_of(0);
    let root = format!("a process of root; find it with `ss -tanp sport = :{port}`, or set another port");
    assert_eq!(free_port(&port, &[]), taken(&root));
    // The socket of a user which only a process of root has.
    let (socket, port) = socket_of(1501);
    let outside = "uid 1501: a process outside of this container, or one to which the socket was passed; end it, or set another port";
    assert_eq!(free_port(&port, &[]), taken(outside));
    let mut owner = owner(&socket, 1501);
    let other =
        format!("another unit, process {} (sleep) of uid 1501; give one of the two units another port", owner.id());
    let session = getsid(None).unwrap().to_string();
    assert_eq!(free_port(&port, &["--spare", &session]), taken(&other));
    assert!(owner.try_wait().unwrap().is_none());
    owner.kill().and_then(|()| owner.wait()).unwrap();
}
