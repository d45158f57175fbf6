//! Ends a step whose client is gone.
//!
//! slurmstepd does not end with the srun that it serves: the tasks of a killed srun run until the time limit. So each client holds a
//! listening socket, and passes the socket's port to its step in a variable. The session's batch script keeps a connection to that socket.
//! When the client dies, even together with its container, the kernel closes the connection. No data is ever sent. The socket
//! listens only on the address at which slurmstepd reaches srun, and the batch script connects to that address. If it cannot connect, for
//! example because of a firewall, it never ends the step.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

/// The variable with the port of the client's socket.
const VARIABLE: &str = "SLURMINIT_CLIENT_PORT";
/// The timeout for connecting to a client.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The kernel probes a connection that was silent for `IDLE` seconds, every `INTERVAL` seconds. It closes the connection after `PROBES` probes
/// without a reply.
const IDLE: u32 = 15;
const INTERVAL: u32 = 5;
const PROBES: u32 = 4;

/// Prepares `srun` so that its step, on the node with this address, runs only as long as the returned socket is open. `is_inherited`: the socket
/// stays open in the program that this process executes.
pub(super) fn attach(srun: &mut Command, node: SocketAddr, is_inherited: bool) -> anyhow::Result<TcpListener> {
    let socket = TcpListener::bind(source(node).with_context(|| format!("no route to {node}"))?)?;
    if is_inherited {
        fcntl(socket.as_fd(), FcntlArg::F_SETFD(FdFlag::empty()))?;
    }
    srun.env(VARIABLE, socket.local_addr()?.port().to_string());
    Ok(socket)
}

/// The address, without a port, from which this machine's connections to `node` come. Sends nothing.
fn source(node: SocketAddr) -> std::io::Result<SocketAddr> {
    let any: IpAddr = if node.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(node)?;
    let mut address = socket.local_addr()?;
    address.set_port(0);
    Ok(address)
}

/// The connections to the clients of the job's steps; `None` if the only attempt to connect failed.
#[derive(Default)]
pub(super) struct Clients(BTreeMap<Client, Option<TcpStream>>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Client {
    step: u32,
    address: SocketAddr,
}

impl Clients {
    /// Connects to new clients. Returns the steps whose client is gone.
    pub(super) fn gone(&mut self, job: &str) -> Vec<u32> {
        let steps: Vec<Client> = processes(job, nix::unistd::getuid().as_raw())
            .iter()
            .filter_map(|(_, variables)| client(variables))
            .collect();
        self.0.retain(|client, _| steps.contains(client));
        for client in steps {
            let address = client.address;
            self.0.entry(client).or_insert_with(|| connect(address));
        }
        self.0
            .iter()
            .filter(|(_, stream)| stream.as_ref().is_some_and(is_closed))
            .map(|(client, _)| client.step)
            .collect()
    }

    /// Waits until a client ends, for at most `limit`.
    pub(super) fn wait(&self, limit: Duration) {
        let open = self.0.values().flatten().filter(|stream| !is_closed(stream));
        let mut polled: Vec<PollFd> = open.map(|stream| PollFd::new(stream.as_fd(), PollFlags::POLLIN)).collect();
        let _ = poll(&mut polled, PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX));
    }
}

fn connect(address: SocketAddr) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT).ok()?;
    stream.set_nonblocking(true).ok()?;
    setsockopt(&stream, sockopt::KeepAlive, &true).ok()?;
    setsockopt(&stream, sockopt::TcpKeepIdle, &IDLE).ok()?;
    setsockopt(&stream, sockopt::TcpKeepInterval, &INTERVAL).ok()?;
    setsockopt(&stream, sockopt::TcpKeepCount, &PROBES).ok()?;
    Some(stream)
}

fn is_closed(mut stream: &TcpStream) -> bool {
    !matches!(stream.read(&mut [0]), Err(error) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()))
}

/// The client of a step, from the variables of one of the step's processes.
fn client(variables: &[String]) -> Option<Client> {
    let value = |name: &str| variables.iter().find_map(|one| one.strip_prefix(name)?.strip_prefix('='));
    let host: IpAddr = value("SLURM_SRUN_COMM_HOST")?.parse().ok()?;
    let address = SocketAddr::new(host, value(VARIABLE)?.parse().ok()?);
    Some(Client { step: value("SLURM_STEP_ID")?.parse().ok()?, address })
}

/// The directory in /proc and the variables of each process that belongs to the job and to this user. The user is checked because any user can set
/// `SLURM_JOB_ID` to the ID of another user's job, and root can read all variables.
pub(super) fn processes(job: &str, user: u32) -> Vec<(PathBuf, Vec<String>)> {
    let own = format!("SLURM_JOB_ID={job}");
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = processes.filter(|process| process.metadata().is_ok_and(|process| process.uid() == user));
    let with_variables = |path: PathBuf| {
        let text = fs::read(path.join("environ")).unwrap_or_default();
        (path, text.split(|byte| *byte == 0).map(|one| String::from_utf8_lossy(one).into_owned()).collect::<Vec<_>>())
    };
    processes.map(|process| with_variables(process.path())).filter(|(_, all)| all.contains(&own)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_has_client_only_with_all_its_variables() {
        let variables = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let step = "SLURM_STEP_ID=3 SLURM_SRUN_COMM_HOST=172.17.0.2 SLURMINIT_CLIENT_PORT=40001";
        let address = "172.17.0.2:40001".parse().unwrap();
        assert_eq!(client(&variables(step)), Some(Client { step: 3, address }));
        assert!(step.split(' ').all(|one| client(&variables(&step.replace(one, "A=1"))).is_none()));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test is not PID 1 and waits only for its own child")]
    fn process_of_another_user_names_no_client() {
        let job = format!("4711{}", std::process::id());
        let mut process = Command::new("sleep")
            .arg("60")
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("SLURM_JOB_ID", &job)
            .spawn()
            .unwrap();
        let own = nix::unistd::getuid().as_raw();
        let found = [own, own + 1].map(|user| processes(&job, user).len());
        process.kill().unwrap();
        process.wait().unwrap();
        assert_eq!(found, [1, 0]);
    }

    #[test]
    fn only_connection_that_was_made_and_closed_is_gone() {
        let mut srun = Command::new("srun");
        let node = ([127, 0, 0, 1], 6818).into();
        let socket = attach(&mut srun, node, false).unwrap();
        let address = socket.local_addr().unwrap();
        assert_eq!(address.ip(), node.ip());
        let stream = connect(address).unwrap();
        assert!(!is_closed(&stream));
        drop(socket);
        // A child of another test holds the socket until the child executes its program.
        stream.set_nonblocking(false).unwrap();
        let _ = (&stream).read(&mut [0]);
        assert!(is_closed(&stream) && connect(address).is_none());
    }
}
