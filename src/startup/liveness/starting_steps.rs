//! Waits for batch steps that are starting.
//!
//! For `scontrol show slurmd`, slurmd connects to the socket of each slurmstepd. If the slurmstepd of a batch job has
//! bound its socket, but does not listen yet, the connection is refused. slurmd then deletes the job's script, and the
//! job fails (24.11 to 25.11: `stepd_api.c`, `_step_connect`).

use std::time::{Duration, Instant};

use crate::step_sockets::BATCH_STEP;
use sys::proc::{self, Stat};
use sys::sockets::{self, Unix};

/// How long a check waits. A step may hang while it starts, and on a busy node there may always be a step that is starting.
const TIMEOUT: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until no batch step is starting, but at most [`TIMEOUT`]. `slurmds`: the PIDs of the slurmds that a check makes connect to steps;
/// without any, returns at once.
#[expect(clippy::disallowed_methods, reason = "the kernel has no event for another process's listening socket")]
pub(super) fn wait(slurmds: &[i32]) {
    let end = Instant::now() + TIMEOUT;
    while !slurmds.is_empty() && is_any_starting(slurmds) && Instant::now() < end {
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn is_any_starting(slurmds: &[i32]) -> bool {
    let is_candidate = |stat: &Stat| !stat.is_dead() && (stat.name == "slurmstepd" || is_launching(stat, slurmds));
    let candidates: Vec<Stat> = proc::pids().filter_map(proc::stat).filter(is_candidate).collect();
    if candidates.is_empty() {
        return false;
    }
    // If the kernel does not list Unix sockets, waiting is useless.
    let Some(sockets) = sockets::unix() else { return false };
    candidates
        .iter()
        .any(|stat| is_launching(stat, slurmds) || is_starting(proc::step_title(stat).as_deref(), &sockets))
}

/// Whether the process is a fork of slurmd, which may be about to execute slurmstepd.
fn is_launching(stat: &Stat, slurmds: &[i32]) -> bool {
    stat.name == "slurmd" && slurmds.contains(&stat.parent)
}

/// Whether a slurmstepd with this title is or may become a batch step whose socket does not listen yet. It sets its
/// title before it creates the socket.
fn is_starting(title: Option<&str>, sockets: &[Unix]) -> bool {
    match title.and_then(proc::parse::step) {
        None => title.is_some(),
        Some((job, step)) if step.starts_with("batch") => {
            let end = format!("_{job}.{BATCH_STEP}");
            // A user can create a socket of that name, too. Linux reports the owner since 5.3.
            let is_ready = |socket: &Unix| socket.is_listening && socket.uid.is_none_or(|uid| uid == 0);
            !sockets.iter().any(|socket| is_ready(socket) && socket.name.ends_with(end.as_bytes()))
        }
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    #[test]
    fn batch_step_is_starting_until_its_socket_listens() {
        let socket = |is_listening, name: &str| Unix { is_listening, name: name.into(), ..Unix::default() };
        let listening = socket(true, "/var/lib/slurm/slurmd/node1_7.4294967291");
        let bound = socket(false, "/var/lib/slurm/slurmd/node1_7.4294967291");
        let other = socket(true, "/var/lib/slurm/slurmd/node1_17.4294967291");
        let batch = Some("slurmstepd: [7.batch]");
        let forged = Unix { uid: Some(1000), ..listening.clone() };
        assert!(is_starting(batch, &[forged]), "the socket of another user");
        assert!(!is_starting(batch, &[other.clone(), listening]));
        assert!(is_starting(batch, &[other.clone(), bound]));
        assert!(is_starting(batch, &[]));
        assert!(is_starting(Some("/usr/sbin/slurmstepd"), &[]), "without a title");
        assert!(!is_starting(Some("slurmstepd: [7.0]"), &[]), "not a batch step");
        assert!(!is_starting(None, &[]), "not a process of root");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test, in which nothing else reaps")]
    fn waits_for_fork_of_slurmd_until_timeout() {
        let directory = tempfile::tempdir().unwrap();
        let slurmd = directory.path().join("slurmd");
        fs::copy(["/bin/sleep", "/usr/bin/sleep"].into_iter().find(|path| Path::new(path).exists()).unwrap(), &slurmd)
            .unwrap();
        let mut fork = std::process::Command::new(slurmd).arg("600").spawn().unwrap();
        let (pid, parent) = (i32::try_from(fork.id()).unwrap(), nix::unistd::getpid().as_raw());
        // The spawn may return before the kernel has set the name.
        let stat = loop {
            match proc::stat(pid).unwrap() {
                stat if stat.name == "slurmd" => break stat,
                _ => std::thread::yield_now(),
            }
        };
        assert!(is_launching(&stat, &[1, parent]) && !is_launching(&stat, &[pid]));
        assert!(!is_launching(&Stat { name: "slurmstepd".to_owned(), ..stat }, &[parent]));
        let begin = Instant::now();
        wait(&[parent]);
        assert!(begin.elapsed() >= TIMEOUT);
        fork.kill().and_then(|()| fork.wait()).unwrap();
    }
}
