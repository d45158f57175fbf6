//! Sends each user the records of their own jobs, and root and Slurm's user all records: one line of JSON per record, then the line `end`.
//! The kernel reports which user is connected.
//!
//! A client sends nothing. It has [`TIMEOUT`] to read. Each user may have [`MAX_CLIENTS_PER_USER`] connections, and all users together
//! [`MAX_CLIENTS`].

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
                // For example, no file descriptor is left.
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

/// Serves a client in its own thread. A client beyond a limit is disconnected.
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
    let sees_all = uid == 0 || DaemonName::Slurmctld.user().is_some_and(|name| is_user(name, uid));
    let records = records::read(state)?;
    for record in records.iter().filter(|record| sees_all || record.job.uid == uid) {
        let mut line = serde_json::to_vec(record)?;
        line.push(b'\n');
        client.write_all(&line)?;
        anyhow::ensure!(Instant::now() < until, "timed out sending the records to the client");
    }
    // Without this line, a client has not received all records.
    Ok(client.write_all(b"end\n")?)
}

fn is_user(name: &str, uid: u32) -> bool {
    nix::unistd::User::from_name(name).is_ok_and(|user| user.is_some_and(|user| user.uid.as_raw() == uid))
}

/// Requests from the agent the records that this process's user may read.
///
/// # Errors
/// The agent is not running or does not answer in time, or its answer is incomplete or invalid.
pub fn ask(run: &Path) -> anyhow::Result<Vec<JobRecord>> {
    let path = run.join(SOCKET);
    let stream =
        UnixStream::connect(&path).with_context(|| format!("cannot connect to the agent at {}", path.display()))?;
    stream.set_read_timeout(Some(TIMEOUT * 2))?;
    let mut records = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if line == "end" {
            return Ok(records);
        }
        records.push(serde_json::from_str(&line)?);
    }
    anyhow::bail!(
        "{}: the agent closed the connection before the end of its answer, for example because of too many connections; try again",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use faults::usage::Job;

    fn state_with_records() -> tempfile::TempDir {
        let state = tempfile::tempdir().unwrap();
        let record =
            |job, uid| JobRecord { job: Job { job, uid, end: Some(job), ..Job::default() }, ..JobRecord::default() };
        records::append(state.path(), &[record(1, 1501), record(2, 1502), record(3, 1501)]).unwrap();
        state
    }

    /// The jobs in an answer, and whether it is complete.
    fn jobs(answer: &str) -> (Vec<u64>, bool) {
        let records = answer.lines().filter_map(|line| serde_json::from_str::<JobRecord>(line).ok());
        (records.map(|record| record.job.job).collect(), answer.ends_with("end\n"))
    }

    #[test]
    fn ordinary_user_sees_own_records_and_root_sees_all() {
        let state = state_with_records();
        for (uid, expected) in [(0, vec![1, 2, 3]), (1501, vec![1, 3]), (1502, vec![2]), (1503, vec![])] {
            let (client, mut reader) = UnixStream::pair().unwrap();
            answer(client, uid, state.path()).unwrap();
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            assert_eq!(jobs(&text), (expected, true), "{uid}");
        }
    }

    #[test]
    fn user_has_one_of_the_known_names() {
        for (name, uid, expected) in [("root", 0, true), ("root", 1, false), ("slurminit-nobody", 0, false)] {
            assert_eq!(is_user(name, uid), expected, "{name} {uid}");
        }
    }

    #[test]
    fn client_beyond_its_users_limit_is_disconnected() {
        let (state, own) = (state_with_records(), nix::unistd::getuid().as_raw());
        let is_answered = |busy: &[(u32, usize)]| {
            let clients: Clients = Arc::new(Mutex::new(busy.iter().copied().collect()));
            let (client, mut reader) = UnixStream::pair().unwrap();
            serve_client(client, state.path(), &clients);
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            jobs(&text).1
        };
        let other = own + 1;
        for (busy, expected) in [
            (vec![], true),
            (vec![(own, 1)], true),
            (vec![(own, 2)], false),
            (vec![(other, 2)], true),
            (vec![(own, 1), (other, 14)], true),
            (vec![(own, 1), (other, 15)], false),
        ] {
            assert_eq!(is_answered(&busy), expected, "{busy:?}");
        }
    }

    #[test]
    fn ended_connection_is_not_counted() {
        let clients: Clients = Arc::new(Mutex::new([(1501, 2), (1502, 1)].into()));
        for expected in [vec![(1501, 1), (1502, 1)], vec![(1502, 1)], vec![(1502, 1)]] {
            release(&clients, 1501);
            assert_eq!(*clients.lock().unwrap(), expected.into_iter().collect());
        }
    }
}
