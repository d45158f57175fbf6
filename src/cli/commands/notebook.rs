//! `slurminit notebook`: JupyterLab in a job, at a port of this container.
//!
//! JupyterLab listens on a Unix socket in a directory that only the job's user can enter. Each connection to the port is a step of the job
//! (`slurminit session stream`), so that no port is open on the node and each connection has its own flow control. JupyterLab must require
//! the token: slurminit checks that before it prints the URL. Connections of other users of this container, except root, are closed
//! before they start a step.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::session::{FILES, Request, Session, StepOptions, time_limit};
use crate::output::error_line;
use model::{exit_code, printable};
use sys::sockets::{OtherEnd, other_end};

const SERVER: &str = include_str!("notebook/server.sh");
/// The maximum interval at which JupyterLab looks for idle kernels, in seconds.
const CULL_INTERVAL: u64 = 60;
/// The maximum number of connections that have a step at the same time. Anyone can connect to a port that is open to the network.
const MAX_CONNECTIONS: usize = 64;
/// How long a new connection may be silent before it is closed. Browsers open connections in advance, and those must not start steps.
const FIRST_BYTE: Duration = Duration::from_secs(10);
/// The UID that the host's root has in a container with a user namespace: the kernel's overflow UID.
const OVERFLOW_USER: u32 = 65534;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    request: Request,
    /// The port for the browser; with an address that is not a loopback address, such as 0.0.0.0, it is open to the network
    #[arg(long, value_name = "[ADDRESS:]PORT", default_value = "8888")]
    port: String,
    /// End the job after this time without a kernel or any other activity, and a kernel after this time without a computation or a connected
    /// browser
    #[arg(long, value_name = "TIME", default_value = "1h")]
    idle: String,
}

struct Notebook {
    session: Session,
    /// A directory on the node that other users cannot enter.
    directory: String,
    token: String,
    address: SocketAddr,
    /// Cloned for each connection that has a step, so that its reference count is the number of connections plus one.
    connections: Arc<()>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<u8> {
    let idle = time_limit(&args.idle).context("--idle")?.minutes() * 60;
    let listener = listen(&args.port)?;
    let mut session = Session::submit(&format!("notebook-{}", std::process::id()), &args.request, Duration::ZERO)?;
    session.wait_until_running()?;
    let (token, directory) = (random()?, format!("/tmp/{FILES}{}-{}", session.job, random()?));
    let (address, connections) = (listener.local_addr()?, Arc::new(()));
    let notebook = Arc::new(Notebook { session, directory, token, address, connections });
    let step = notebook.server(args.request.container.as_deref(), idle)?;

    let is_ended = Arc::new(AtomicBool::new(false));
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let (ended, session) = (Arc::clone(&is_ended), notebook.session.clone());
    std::thread::spawn(move || {
        for _ in signals.forever() {
            ended.store(true, Ordering::Relaxed);
            let _ = session.cancel();
        }
    });
    let serving = Arc::clone(&notebook);
    std::thread::spawn(move || {
        if let Err(error) = serving.serve(&listener) {
            error_line(printable::line(&format!("slurminit: {error:#}")));
            let _ = serving.session.cancel();
        }
    });
    let status = notebook.session.run(step, true)?;
    error_line("slurminit: the notebook and its job have ended");
    Ok(if is_ended.load(Ordering::Relaxed) { exit_code::SUCCESS } else { exit_code::of(status) })
}

impl Notebook {
    fn server(&self, image: Option<&str>, idle: u64) -> anyhow::Result<Command> {
        let mut step = self.session.step(&StepOptions { image, ..StepOptions::default() });
        step.args(["sh", "-c", SERVER, "sh", &self.directory]);
        step.arg(format!("--ServerApp.shutdown_no_activity_timeout={idle}"));
        step.arg(format!("--MappingKernelManager.cull_idle_timeout={idle}"));
        step.arg(format!("--MappingKernelManager.cull_interval={}", CULL_INTERVAL.min(idle.max(1))));
        // As a protection against DNS rebinding, JupyterLab by default rejects requests whose Host header names another machine.
        step.args((!self.address.ip().is_loopback()).then_some("--ServerApp.allow_remote_access=True"));
        step.current_dir(work_directory()?);
        let (reader, writer) = nix::unistd::pipe()?;
        writeln!(File::from(writer), "{}", self.token)?;
        // Ctrl-C is for this process, not for srun.
        step.stdin(Stdio::from(reader)).process_group(0);
        Ok(step)
    }

    /// Serves connections until this process ends.
    fn serve(self: &Arc<Self>, listener: &TcpListener) -> anyhow::Result<()> {
        self.check()?;
        let port = self.address.port();
        let host = if self.address.ip().is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { self.address.ip() };
        let url = SocketAddr::new(host, port);
        let job = self.session.description()?;
        error_line(printable::line(&format!("slurminit: JupyterLab runs until Ctrl-C or the job's end: {job}")));
        super::print(&format!("http://{url}/lab?token={}\n", self.token))?;
        if std::env::var_os("SSH_CONNECTION").is_some() {
            error_line(format!(
                "On your computer, run this first, with USER@HOST and the options of this login: ssh -N -L {port}:{url} USER@HOST"
            ));
        }
        for stream in listener.incoming() {
            // The error affects only one client, or there are no descriptors left.
            let Ok(stream) = stream else {
                pause();
                continue;
            };
            if !is_admitted(&stream) {
                continue;
            }
            let notebook = Arc::clone(self);
            // If no thread can be started, the connection is closed.
            let _ = std::thread::Builder::new().spawn(move || notebook.connect(stream));
        }
        Ok(())
    }

    /// Connects a client to JupyterLab, until one of the two closes the connection.
    #[expect(clippy::disallowed_methods, reason = "this process is not PID 1 and waits only for its own children")]
    fn connect(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(FIRST_BYTE))?;
        if stream.peek(&mut [0])? == 0 {
            return Ok(());
        }
        stream.set_read_timeout(None)?;
        let counted = Arc::clone(&self.connections);
        if is_below_limit(&counted) {
            let (stdin, stdout) = (OwnedFd::from(stream.try_clone()?), OwnedFd::from(stream));
            self.stream().stdin(stdin).stdout(stdout).stderr(Stdio::null()).status()?;
        }
        Ok(())
    }

    /// `srun` for the step of one connection.
    fn stream(&self) -> Command {
        let mut step = self.session.step(&StepOptions { is_unbuffered: true, ..StepOptions::default() });
        let program = std::env::current_exe().unwrap_or_else(|_| "slurminit".into());
        step.args(["--mpi=none", "--gres=none"]).arg(program);
        step.args(["session", "stream"]).arg(format!("{}/socket", self.directory)).process_group(0);
        step
    }

    /// Waits until JupyterLab responds, and checks that it requires the token: the user's jupyter_server_config could set another token, or none.
    #[expect(clippy::disallowed_methods, reason = "this process is not PID 1 and waits only for its own children")]
    fn check(&self) -> anyhow::Result<()> {
        let mut step = self.stream();
        let mut step = step.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot execute srun")?;
        let request = |rest: &str| format!("GET /api/status HTTP/1.1\r\nHost: localhost\r\n{rest}\r\n\r\n");
        let requests =
            request("Accept: */*") + &request(&format!("Authorization: token {}\r\nConnection: close", self.token));
        let mut answer = String::new();
        step.stdin.as_mut().context("no pipe")?.write_all(requests.as_bytes())?;
        step.stdout.take().context("no pipe")?.read_to_string(&mut answer)?;
        step.wait()?;
        let codes = status_codes(&answer);
        anyhow::ensure!(!codes.is_empty(), "JupyterLab does not respond; see its output above");
        anyhow::ensure!(
            codes == ["403", "200"],
            "JupyterLab must require the token of this command, but answered {codes:?} to requests without and with the token: remove token, password and base_url from ~/.jupyter"
        );
        Ok(())
    }
}

/// Whether no more than [`MAX_CONNECTIONS`] connections are open, including the one that holds this clone of [`Notebook::connections`].
fn is_below_limit(counted: &Arc<()>) -> bool {
    Arc::strong_count(counted) <= MAX_CONNECTIONS + 1
}

/// The status codes of responses. A body does not end with a newline, so the next status line can follow it on the same line.
fn status_codes(responses: &str) -> Vec<&str> {
    responses.split("HTTP/1.1 ").skip(1).filter_map(|rest| rest.get(..3)).collect()
}

/// Whether the connection may be served. Connections of other users of this container, except root, are rejected. `ssh -L` connects as its user,
/// and `kubectl port-forward` as root.
fn is_admitted(stream: &TcpStream) -> bool {
    match other_end(stream) {
        OtherEnd::User(user) => [nix::unistd::getuid().as_raw(), 0, OVERFLOW_USER].contains(&user),
        OtherEnd::Closed => false,
        OtherEnd::Unknown => true,
    }
}

#[expect(clippy::disallowed_methods, reason = "accept fails at once again while no descriptor is left")]
fn pause() {
    std::thread::sleep(Duration::from_millis(100));
}

/// Listens on `PORT` of 127.0.0.1, or on `ADDRESS:PORT`.
fn listen(port: &str) -> anyhow::Result<TcpListener> {
    let address = match port.parse::<u16>() {
        Ok(port) => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        Err(_) => port.parse().with_context(|| {
            format!("--port={port:?} is neither a port nor an address with a port, such as 0.0.0.0:8888")
        }),
    }?;
    TcpListener::bind(address).with_context(|| format!("cannot listen on {address}; choose another --port"))
}

/// The current directory if it is below /data or the home directory, otherwise the home directory.
fn work_directory() -> anyhow::Result<PathBuf> {
    let home = PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?);
    let current = std::env::current_dir().unwrap_or_default();
    Ok(if current.starts_with("/data") || current.starts_with(&home) { current } else { home })
}

/// 128 random bits in hexadecimal digits.
fn random() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).context("cannot read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serves_limited_number_of_connections() {
        let connections = Arc::new(());
        let mut open: Vec<Arc<()>> = (0..MAX_CONNECTIONS).map(|_| Arc::clone(&connections)).collect();
        assert!(is_below_limit(&connections));
        open.push(Arc::clone(&connections));
        assert!(!is_below_limit(&connections));
    }

    #[test]
    fn listens_on_loopback_unless_address_is_given() {
        let address = |port: &str| listen(port).ok().map(|listener| listener.local_addr().unwrap().ip().to_string());
        assert_eq!(address("0").as_deref(), Some("127.0.0.1"));
        assert_eq!(address("0.0.0.0:0").as_deref(), Some("0.0.0.0"));
        assert!(["", "x", "127.0.0.1", "65536", "host:80"].iter().all(|port| address(port).is_none()));
    }

    #[test]
    fn connection_of_this_user_is_admitted() {
        let listener = listen("0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(is_admitted(&listener.accept().unwrap().0));
        drop(client);
    }

    #[test]
    fn finds_status_of_each_response() {
        let responses = "HTTP/1.1 403 Forbidden\r\n\r\n{}HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}";
        assert_eq!(status_codes(responses), ["403", "200"]);
        assert_eq!(status_codes("srun: error"), [""; 0]);
    }

    #[test]
    fn token_has_128_random_bits() {
        let [one, other] = [random().unwrap(), random().unwrap()];
        assert!(one != other && one.len() == 32 && one.bytes().all(|digit| digit.is_ascii_hexdigit()), "{one}");
    }
}
