//! Closes the sockets of slurmstepd to users.
//!
//! slurmstepd gives its socket the mode 0777, and starts a thread as root for each connection, without a limit (Slurm 22.05 to 26.05,
//! `slurmstepd/req.c`). A slurmstepd that cannot create a thread exits, so under `--pids-limit` any user could end any job. Slurm has no
//! setting for this, and users' commands go through slurmd. So the socket gets the mode 0600 as soon as the kernel reports it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use model::message;
use sys::report;
use sys::trusted_path::{self, Dir};

/// Slurm's numbers of the steps that have names (`slurm.h`).
pub(crate) const EXTERN_STEP: u32 = 0xffff_fffc;
pub(crate) const BATCH_STEP: u32 = 0xffff_fffb;
const INTERACTIVE_STEP: u32 = 0xffff_fffa;

/// The step's name in the title of its slurmstepd.
pub(crate) fn step_name(step: u32) -> Cow<'static, str> {
    match step {
        EXTERN_STEP => "extern".into(),
        BATCH_STEP => "batch".into(),
        INTERACTIVE_STEP => "interactive".into(),
        number => number.to_string().into(),
    }
}

/// The name of a slurmstepd's socket in the spool directory: `NODE_JOB.STEP`, or `NODE_JOB.STEP.COMPONENT` in a heterogeneous job.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StepSocket<'a> {
    pub(crate) node: &'a str,
    pub(crate) job: u32,
    pub(crate) step: u32,
}

impl<'a> StepSocket<'a> {
    pub(crate) fn parse(name: &'a str) -> Option<Self> {
        let (node, numbers) = name.rsplit_once('_').filter(|(node, _)| !node.is_empty())?;
        let mut numbers = numbers.split('.').map(|number| number.parse::<u32>());
        let (job, step) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        numbers.all(|component| component.is_ok()).then_some(Self { node, job, step })
    }
}

/// The mode for sockets. Only slurmd uses them, as root.
const CLOSED: u32 = 0o600;
/// The permissions that a closed socket must not have.
const OPEN: u32 = 0o177;
/// The pause before the next attempt to watch. If watching fails, new sockets are closed at this interval.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Starts a thread that closes the sockets in slurmd's spool directories.
pub(crate) fn start(directories: Vec<PathBuf>) {
    if directories.is_empty() {
        return;
    }
    let watch = move || {
        let mut has_warned = false;
        loop {
            let Err(error) = close_all(&directories);
            if !std::mem::replace(&mut has_warned, true) {
                report::warn(message!(
                    "step-sockets-open",
                    "cannot watch slurmd's spool directory: {error}; users may be able to connect to slurmstepd's sockets, \
                     and to end other users' jobs if there is a process limit",
                    error = format!("{error:#}")
                ));
            }
            pause();
        }
    };
    if let Err(error) = std::thread::Builder::new().name("step-sockets".to_owned()).spawn(watch) {
        report::warn(message!("step-sockets-open", "cannot close slurmstepd's sockets to users: {error}", error));
    }
}

/// Closes the sockets that exist, and each new one, until an error.
fn close_all(directories: &[PathBuf]) -> anyhow::Result<Infallible> {
    let opened: Vec<Dir> = directories.iter().map(|path| open(path)).collect::<anyhow::Result<_>>()?;
    let watched = Inotify::init(InitFlags::IN_CLOEXEC).and_then(|inotify| {
        let events = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_ONLYDIR;
        let watches: nix::Result<BTreeMap<_, _>> =
            directories.iter().zip(&opened).map(|(path, dir)| Ok((inotify.add_watch(path, events)?, dir))).collect();
        Ok((inotify, watches?))
    });
    // Runs after the watches are set, so that no socket is missed, and also if they cannot be set.
    opened.iter().for_each(close_existing);
    let (inotify, watches) = watched?;
    loop {
        for event in inotify.read_events()? {
            match (watches.get(&event.wd), event.name) {
                (Some(directory), Some(name)) => close(directory, &name.to_string_lossy()),
                _ if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) => opened.iter().for_each(close_existing),
                _ if event.mask.contains(AddWatchFlags::IN_IGNORED) => anyhow::bail!("it was removed"),
                _ => {}
            }
        }
    }
}

/// Opens a spool directory. Fails if other users can write to it: they could rename another socket of root so that it looks like a step's.
fn open(path: &Path) -> anyhow::Result<Dir> {
    let directory = trusted_path::open(Path::new("/"), path)?;
    directory.require_ours()?;
    Ok(directory)
}

fn close_existing(directory: &Dir) {
    for name in directory.names().unwrap_or_default() {
        close(directory, &name.to_string_lossy());
    }
}

/// Closes a socket of slurmstepd to users. An error is ignored: if the slurmstepd has ended, its socket no longer exists.
fn close(directory: &Dir, name: &str) {
    let is_open =
        |socket: &std::fs::Metadata| socket.file_type().is_socket() && socket.uid() == 0 && is_open(socket.mode());
    if StepSocket::parse(name).is_some() && directory.metadata_of(name).is_ok_and(|socket| is_open(&socket)) {
        let _ = directory.chmod_entry(name, CLOSED);
    }
}

/// Whether a socket with this mode has to be closed. A closed socket is not changed again, because each change causes another event.
fn is_open(mode: u32) -> bool {
    mode & OPEN != 0
}

#[expect(clippy::disallowed_methods, reason = "nothing reports that a directory can be watched again")]
fn pause() {
    std::thread::sleep(RETRY_PAUSE);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn recognizes_sockets_of_steps() {
        for (name, node, job, step) in [
            ("node_1_7.4294967291", "node_1", 7, BATCH_STEP),
            ("a_7.0", "a", 7, 0),
            ("localhost_12.3.1", "localhost", 12, 3),
        ] {
            assert_eq!(StepSocket::parse(name), Some(StepSocket { node, job, step }), "{name}");
        }
        for name in
            ["sock.pmi2.7.0", "job00007", "_7.0", "node_7", "node_7.", "node_x.0", "node_7.0.x", "node_7.0.lock"]
        {
            assert_eq!(StepSocket::parse(name), None, "{name}");
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn closes_existing_and_new_sockets_of_steps_only() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let spool = tempfile::tempdir().unwrap();
        let path = |name: &str| spool.path().join(name);
        let open_socket = |name: &str| {
            let socket = UnixListener::bind(path(name)).unwrap();
            fs::set_permissions(path(name), Permissions::from_mode(0o777)).unwrap();
            socket
        };
        let _open = ["node_6.0", "other"].map(open_socket);
        fs::write(path("node_5.0"), "").unwrap();
        fs::set_permissions(path("node_5.0"), Permissions::from_mode(0o777)).unwrap();
        symlink(path("other"), path("node_4.0")).unwrap();
        start(vec![spool.path().to_owned()]);
        while mode(&path("node_6.0")) != CLOSED {
            std::thread::yield_now();
        }
        for job in 7..27 {
            let name = format!("node_{job}.4294967291");
            let _socket = open_socket(&name);
            while mode(&path(&name)) != CLOSED {
                std::thread::yield_now();
            }
        }
        assert_eq!([mode(&path("other")), mode(&path("node_5.0"))], [0o777; 2]);
    }

    #[test]
    fn closed_socket_is_not_changed_again() {
        let socket = 0o140_000;
        for (mode, expected) in
            [(0o600, false), (0o400, false), (0o000, false), (0o777, true), (0o602, true), (0o640, true), (0o700, true)]
        {
            assert_eq!(is_open(socket | mode), expected, "{mode:o}");
        }
    }
}
