//! Gives each user the records of their own jobs: a line of JSON for each. The kernel reports which user is connected.
//!
//! A client sends nothing. It has [`TIMEOUT`] to read, and each user may have [`MAX_CLIENTS_PER_USER`] connections.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::socket::{getsockopt, sockopt};

use super::records;
use faults::usage::JobRecord;
use model::daemons::DaemonName;
use model::paths::Paths;
use sys::trusted_path;

/// The socket's name in the run directory.
const SOCKET: &str = "report.sock";
const TIMEOUT: Duration = Duration::from_secs(2);
const MAX_CLIENTS: usize = 16;
const MAX_CLIENTS_PER_USER: usize = 2;

/// The number of connections of each user.
type Clients = Arc<Mutex<BTreeMap<u32, usize>>>;

pub(super) fn serve(paths: &Paths) -> anyhow::Result<()> {
    let path = paths.run.join(SOCKET);
    let (run, name) = trusted_path::socket_place(&path)?;
    if run.metadata_of(&name).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        run.remove(&name)?;
    }
    let listener = UnixListener::bind(&path).with_context(|| path.display().to_string())?;
    run.chmod_entry(&name, 0o666)?;
    let (state, clients) = (paths.state.clone(), Clients::default());
    thread::Builder::new().name("reports".to_owned()).spawn(move || {
        for client in listener.incoming() {
            match client {
                Ok(client) => serve_client(client, &state, &clients),
                // No file descriptor is left.
                Err(_) => pause(),
            }
        }
    })?;
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "accept fails at once again while no file descriptor is left")]
fn pause() {
    thread::sleep(Duration::from_millis(100));
}

/// Serves a client in its own thread. A client beyond the limit is disconnected.
fn serve_client(client: UnixStream, state: &Path, clients: &Clients) {
    let Ok(uid) = getsockopt(&client.as_fd(), sockopt::PeerCredentials).map(|peer| peer.uid()) else { return };
    let mut counts = clients.lock().unwrap_or_else(PoisonError::into_inner);
    let own = counts.get(&uid).copied().unwrap_or_default();
    if own >= MAX_CLIENTS_PER_USER || counts.values().sum::<usize>() >= MAX_CLIENTS {
        return;
    }
    counts.insert(uid, own + 1);
    drop(counts);
    let (state, clients_of_thread): (PathBuf, Clients) = (state.to_owned(), Arc::clone(clients));
    let thread = thread::Builder::new().name("report".to_owned()).spawn(move || {
        let _ = answer(client, uid, &state);
        release(&clients_of_thread, uid);
    });
    if thread.is_err() {
        release(clients, uid);
    }
}

fn release(clients: &Clients, uid: u32) {
    let mut counts = clients.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(count) = counts.get_mut(&uid) {
        *count -= 1;
    }
    counts.retain(|_, count| *count > 0);
}

fn answer(mut client: UnixStream, uid: u32, state: &Path) -> anyhow::Result<()> {
    client.set_write_timeout(Some(TIMEOUT))?;
    let until = Instant::now() + TIMEOUT;
    let sees_all = uid == 0 || is_slurm_user(uid);
    let records = records::read(state)?;
    for record in records.iter().filter(|record| sees_all || record.job.uid == uid) {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        client.write_all(&line)?;
        anyhow::ensure!(Instant::now() < until, "the client is slow");
    }
    // A client that does not get this line has not read everything.
    Ok(client.write_all(b"end\n")?)
}

/// Whether this is the user that slurmctld runs as.
fn is_slurm_user(uid: u32) -> bool {
    let user = DaemonName::Slurmctld.user().and_then(|name| nix::unistd::User::from_name(name).ok().flatten());
    user.is_some_and(|user| user.uid.as_raw() == uid)
}

/// The records of this user's jobs, from the agent.
///
/// # Errors
/// The agent does not run, or is busy.
pub fn ask(run: &Path) -> anyhow::Result<Vec<JobRecord>> {
    let path = run.join(SOCKET);
    let stream = UnixStream::connect(&path).with_context(|| path.display().to_string())?;
    stream.set_read_timeout(Some(TIMEOUT * 2))?;
    let mut records = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if line == "end" {
            return Ok(records);
        }
        records.push(serde_json::from_str(&line)?);
    }
    anyhow::bail!("{}: too many connections; try again", path.display())
}
