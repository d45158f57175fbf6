//! Finds jobs whose slurmstepd was killed or crashed.
//!
//! A slurmstepd that dies this way reports nothing: slurmctld lists the job as running, and srun waits, until the node registers, which
//! it does every half hour (SlurmdTimeout 300, 24.11 `ping_nodes.c`). srun ends with 0 if the step is cancelled, and slurmctld keeps the
//! step's resources. So the whole job is requeued, held or cancelled.
//!
//! A slurmstepd removes its socket whenever it ends cleanly, so a socket without a process is the evidence. slurmd may remove such a
//! socket after ten minutes. So a batch job also counts as lost if it has run longer and its script has no slurmstepd.

use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::processes::{InUse, in_use};
use super::{HeldJob, Holder, JobNote, SLURM, await_running_jobs, cancel, launch_timeout, node_names, requeue};
use crate::step_sockets::{self, StepSocket};
use machine::node_report::OUR_REASON;
use slurm::config::RunningConfig;
use sys::sockets::{self, Unix};

/// slurmd removes a socket of at least this age, without a listener, when it tries to connect (24.11, `stepd_api.c`).
const STRAY_SOCKET_AGE: Duration = Duration::from_secs(600);

/// The socket of a step in the spool directory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Socket {
    path: PathBuf,
    job: String,
    step: u32,
    inode: u64,
    made: SystemTime,
}

/// Requeues, holds or cancels the jobs whose slurmstepd died.
pub(in super::super) fn run(node: &str) -> anyhow::Result<()> {
    let begin = Instant::now();
    // slurmctld may be starting, so this waits until it responds.
    await_running_jobs(begin)?;
    let (config, nodes) = (SLURM.config()?, node_names(node));
    // List the sockets before the processes: each socket then has a process in the later list, unless the process has died or is removing
    // its socket.
    let sockets: Vec<Socket> = nodes.iter().flat_map(|node| sockets(&config.spool_directory(node), node)).collect();
    let in_use = in_use();
    let dead: Vec<Socket> = match sockets::unix() {
        Some(open) => sockets.into_iter().filter(|socket| is_dead(socket, &in_use, &open)).collect(),
        None => Vec::new(),
    };
    // Reads the running jobs again: a job that ended before the sockets were read is no longer among them.
    for job in await_running_jobs(begin)? {
        let mut of_job = dead.iter().filter(|socket| socket.job == job.id);
        if of_job.any(|socket| is_of_this_start(socket, &job)) || is_lost_long_ago(&job, &in_use, &nodes, &config)? {
            end(&job)?;
        }
        // If the socket were not removed, it could be attributed to the job's next start.
        dead.iter().filter(|socket| socket.job == job.id).for_each(|socket| drop(fs::remove_file(&socket.path)));
    }
    Ok(())
}

/// The sockets of a node's steps.
fn sockets(spool: &str, node: &str) -> Vec<Socket> {
    let names =
        fs::read_dir(spool).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let of_node = |name: String| {
        let StepSocket { node: of, job, step } = StepSocket::parse(&name)?;
        let path = Path::new(spool).join(&name);
        let metadata = (of == node).then(|| socket_metadata(&path))??;
        Some(Socket { job: job.to_string(), step, inode: metadata.ino(), made: metadata.modified().ok()?, path })
    };
    names.filter_map(of_node).collect()
}

/// The metadata of a socket that belongs to root; `None` if the path is no such socket.
fn socket_metadata(path: &Path) -> Option<Metadata> {
    path.symlink_metadata().ok().filter(|found| found.file_type().is_socket() && found.uid() == 0)
}

/// Whether the socket has no slurmstepd and no listener, although it still exists after the process list was read.
fn is_dead(socket: &Socket, in_use: &InUse, open: &[Unix]) -> bool {
    let name = step_sockets::step_name(socket.step);
    let has_process = in_use.slurmstepds.iter().any(|(job, step)| {
        // The steps of a heterogeneous job's components have names such as `0+1`.
        *job == socket.job && step.split('+').next() == Some(&*name)
    });
    let is_listening =
        || open.iter().any(|other| other.is_listening && other.name == socket.path.as_os_str().as_bytes());
    let is_same = || socket_metadata(&socket.path).is_some_and(|found| found.ino() == socket.inode);
    // The extern step is ignored: neither the job nor another step depends on it.
    socket.step != step_sockets::EXTERN_STEP && !has_process && !is_listening() && is_same()
}

/// Whether the job was running when the socket was created. An earlier start of the job may have left a socket behind.
fn is_of_this_start(socket: &Socket, job: &HeldJob) -> bool {
    // Slurm's times are in whole seconds.
    socket.made.elapsed().is_ok_and(|age| age <= job.age + Duration::from_secs(1))
}

/// Whether the job's script must have started long ago on this node, but has no slurmstepd. slurmd may have removed the slurmstepd's socket.
fn is_lost_long_ago(job: &HeldJob, in_use: &InUse, nodes: &[String], config: &RunningConfig) -> anyhow::Result<bool> {
    Ok(match &job.held_by {
        Holder::Script { node } if nodes.contains(node) && !in_use.has_script(&job.id) => {
            job.age > STRAY_SOCKET_AGE.max(launch_timeout(config)?)
        }
        _ => false,
    })
}

fn end(job: &HeldJob) -> anyhow::Result<()> {
    let note = JobNote::SlurmstepdDied;
    match job.held_by {
        Holder::Script { .. } => requeue(job, note),
        Holder::Client { .. } => {
            // An error is ignored, because the client may be gone.
            let _ = SLURM.run("scontrol", &["notify", &job.name, &format!("{OUR_REASON}{}", note.text())]);
            cancel(&job.name, note)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn in_use(steps: &[&str]) -> InUse {
        let slurmstepds = steps.iter().map(|step| ("7".to_owned(), (*step).to_owned())).collect();
        InUse { slurmstepds, ..InUse::default() }
    }

    #[test]
    fn socket_without_process_and_listener_is_dead() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let spool = tempfile::tempdir().unwrap();
        let path = |name: &str| spool.path().join(name);
        let found = || sockets(spool.path().to_str().unwrap(), "node");
        drop(UnixListener::bind(path("node_7.4294967291")).unwrap());
        drop(UnixListener::bind(path("node_b_7.4294967291")).unwrap());
        drop(UnixListener::bind(path("sock.pmi2.7.0")).unwrap());
        fs::write(path("node_7.1"), "").unwrap();
        let [batch] = found().try_into().unwrap();
        assert!(is_dead(&batch, &in_use(&["0", "extern"]), &[]));
        assert!(!is_dead(&batch, &in_use(&["batch"]), &[]), "it is about to listen, or to remove the socket");
        let open = Unix { is_listening: true, name: batch.path.as_os_str().as_bytes().into(), ..Unix::default() };
        assert!(!is_dead(&batch, &in_use(&[]), &[open]));
        fs::remove_file(&batch.path).unwrap();
        assert!(!is_dead(&batch, &in_use(&[]), &[]), "its process removed it in the end");
        fs::write(path("in-place-of-the-inode"), "").unwrap();
        drop(UnixListener::bind(&batch.path).unwrap());
        assert!(!is_dead(&batch, &in_use(&[]), &[]), "the socket of a new start");
        drop(UnixListener::bind(path("node_7.4294967292")).unwrap());
        assert!(found().iter().any(|socket| socket.step == step_sockets::EXTERN_STEP));
        let extern_socket = found().into_iter().find(|socket| socket.step == step_sockets::EXTERN_STEP).unwrap();
        assert!(!is_dead(&extern_socket, &in_use(&[]), &[]));
    }

    #[test]
    fn socket_of_earlier_start_is_no_evidence() {
        let made =
            |seconds| SystemTime::UNIX_EPOCH + SystemTime::UNIX_EPOCH.elapsed().unwrap() - Duration::from_secs(seconds);
        let socket =
            |seconds| Socket { path: PathBuf::new(), job: "7".to_owned(), step: 0, inode: 1, made: made(seconds) };
        let held_by = Holder::Script { node: "node".to_owned() };
        let job =
            HeldJob { id: "7".to_owned(), name: "7".to_owned(), age: Duration::from_secs(60), restarts: 0, held_by };
        assert_eq!([59, 60, 63].map(|age| is_of_this_start(&socket(age), &job)), [true, true, false]);
    }

    #[test]
    fn job_of_unknown_fate_is_lost_only_long_after_its_start() {
        let lost = |age, node: &str, steps: &[&str]| {
            let held_by = Holder::Script { node: node.to_owned() };
            let age = Duration::from_secs(age);
            let job = HeldJob { id: "7".to_owned(), name: "7".to_owned(), age, restarts: 0, held_by };
            let config = RunningConfig::new("BatchStartTimeout = 10 sec\n".to_owned());
            is_lost_long_ago(&job, &in_use(steps), &["node".to_owned()], &config).unwrap()
        };
        assert!(lost(601, "node", &["0"]));
        assert!(!lost(600, "node", &[]) && !lost(601, "other", &[]) && !lost(601, "node", &["batch"]));
    }
}
