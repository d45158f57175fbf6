//! The socket on which a daemon says that it has handed over (sd_notify(3), `NOTIFY_SOCKET`).
//!
//! EDGE. One socket for each daemon that runs with `--systemd`, a file that only root and the daemon's user may write to.
//! A message only nominates a successor: it takes the daemon's place when the main process ends. Until then a claim costs
//! nothing, true or false; and as the main process spoke before it ended, reading what is left before its death is
//! attributed loses no claim.

use std::cell::Cell;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use nix::libc;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, setsockopt, socket, sockopt};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, User, getpid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;
use tracing::{info, warn};

use super::footprint::Activity;
use super::handover::{Claim, LONGEST, Process, Refusal, Successor, judge, main_pid, parse_stat};
use super::machine::{Child, SpawnFailure};
use super::{Living, Program, World, process, unit_of};
use crate::config::DaemonName;
use crate::exit_code::FAILURE;
use crate::watch::watch;

/// How many messages are read before others get their turn.
const BATCH: usize = 32;
/// How many are read at a death: more than the kernel lets wait (net.unix.max_dgram_qlen).
const LAST_BATCH: usize = 2048;
/// How many refusals are told: a flood must not fill the log.
const TOLD: u32 = 5;
/// What makes Slurm's daemons speak, and where.
const OPTION: &str = "--systemd";
const VARIABLE: &str = "NOTIFY_SOCKET";

/// A daemon's socket, which is closed with this value.
#[derive(Debug)]
pub(super) struct Notify {
    channel: Rc<Channel>,
    reader: AbortHandle,
}

#[derive(Debug)]
struct Channel {
    socket: AsyncFd<OwnedFd>,
    /// The daemon's name.
    name: String,
    main: Cell<i32>,
    session: Cell<i32>,
    successor: Cell<Option<Successor>>,
    /// How many messages were refused.
    refused: Cell<u32>,
    activity: Activity,
}

impl Notify {
    /// Makes the socket at `path`, for `user` to write to.
    fn open(path: &Path, user: Option<&str>, name: &str, activity: Activity) -> std::io::Result<Self> {
        let socket =
            socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
        setsockopt(&socket, sockopt::PassCred, &true)?;
        // On Linux the file gets the socket's mode: there is no moment at which others may write to it.
        nix::sys::stat::fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
        // The socket of a former process of this daemon. Who still has it open speaks to nobody.
        let (run, file) = crate::walk::socket_place(path)?;
        let _ = run.remove(&file);
        bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
        if let Some(user) = user.and_then(|user| User::from_name(user).ok().flatten()) {
            run.chown_entry(&file, (user.uid.as_raw(), user.gid.as_raw()))?;
        }
        let channel = Rc::new(Channel {
            socket: watch(socket, Interest::READABLE)?,
            name: name.to_owned(),
            main: Cell::default(),
            session: Cell::default(),
            successor: Cell::default(),
            refused: Cell::default(),
            activity,
        });
        let reader = tokio::task::spawn_local(Rc::clone(&channel).run()).abort_handle();
        Ok(Self { channel, reader })
    }

    /// The daemon runs; slurminit made this process the leader of its session.
    pub(super) fn started(&self, pid: Pid) {
        self.channel.main.set(pid.as_raw());
        self.channel.session.set(pid.as_raw());
    }

    /// The process that is to follow the main one, which has ended. Dead or alive, it is ours to reap; one that was reaped
    /// already has failed, however well the main process ended.
    pub(super) fn successor(&self) -> Option<Result<Pid, SpawnFailure>> {
        self.channel.read(LAST_BATCH);
        let Successor { pid, started } = self.channel.successor.take()?;
        if look(pid).is_some_and(|now| now.started == started && now.parent == getpid().as_raw()) {
            self.channel.main.set(pid);
            return Some(Ok(Pid::from_raw(pid)));
        }
        let message = format!("process {pid}, to which it has handed over, ended before it; its last lines say why");
        Some(Err(SpawnFailure { code: FAILURE, message, fault: None }))
    }
}

impl Drop for Notify {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Channel {
    async fn run(self: Rc<Self>) {
        while let Ok(mut guard) = self.socket.readable().await {
            if self.read(BATCH) < BATCH {
                guard.clear_ready();
            }
            self.activity.note();
            tokio::task::yield_now().await;
        }
    }

    /// Reads at most `limit` messages, and returns how many.
    fn read(&self, limit: usize) -> usize {
        let mut buffer = [0; LONGEST + 1];
        for count in 0..limit {
            let Some((length, sender)) = receive(self.socket.get_ref(), &mut buffer) else { return count };
            self.take(buffer.get(..length).unwrap_or_default(), sender);
        }
        limit
    }

    fn take(&self, message: &[u8], sender: i32) {
        let claim = |named| Claim {
            main: self.main.get(),
            session: self.session.get(),
            init: getpid().as_raw(),
            sender: (sender, look(sender)),
            named: (named, look(named)),
        };
        match main_pid(message).and_then(|named| named.map_or(Ok(None), |named| judge(&claim(named)))) {
            Ok(None) => {}
            Ok(next) => self.successor.set(next),
            Err(refusal) => self.refuse(refusal),
        }
    }

    fn refuse(&self, refusal: Refusal) {
        let before = self.refused.get();
        self.refused.set(before.saturating_add(1));
        match before {
            ..TOLD => warn!("{}: a message to its NOTIFY_SOCKET is refused: {refusal}", self.name),
            TOLD => warn!("{}: more such messages are refused, and not told", self.name),
            _ => {}
        }
    }
}

fn look(pid: i32) -> Option<Process> {
    parse_stat(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// One message and the pid of its sender, as the kernel vouches for it; `None` when no message waits.
///
/// Descriptors that come with it (Slurm 25.11 waits until the one of `BARRIER=1` is closed) find no room, and so the
/// kernel closes them: none of them ever becomes ours.
#[expect(unsafe_code, reason = "nix calls a message without room for its descriptors an error")]
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Option<(usize, i32)> {
    let size = libc::c_uint::try_from(size_of::<libc::ucred>()).ok()?;
    let mut control = [0_u64; 4];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    loop {
        // SAFETY: the pointers are to the buffers above, with their lengths; the control buffer is aligned for its header,
        // and has just the room for the sender's credentials, which are looked at only if the kernel has put them there.
        unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = &raw mut part;
            header.msg_iovlen = 1;
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = libc::CMSG_SPACE(size) as _;
            let length =
                libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC);
            let Ok(length) = usize::try_from(length) else {
                if nix::Error::last() == nix::Error::EINTR {
                    continue;
                }
                return None;
            };
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            let sender = first.as_ref().filter(|first| {
                (first.cmsg_level, first.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS)
                    && first.cmsg_len >= libc::CMSG_LEN(size) as _
            });
            let sender = sender.map_or(0, |first| libc::CMSG_DATA(first).cast::<libc::ucred>().read_unaligned().pid);
            return Some((length, sender));
        }
    }
}

impl World {
    /// Prepares a daemon for its handovers, if it is one that hands over. Without a socket Slurm's option is fatal.
    pub(super) fn expect_handover(&self, child: Child, program: &mut Program) -> Option<Notify> {
        let spec = self.machine.units().get(unit_of(child)?)?;
        let settings = self.job.config.daemons.get(&spec.daemon?);
        let own = settings.and_then(|settings| settings.command.as_ref());
        // With `--systemd` slurmctld does not become SlurmUser, so an own `user` is left to `-D`, which does.
        let own_user = settings.is_some_and(|settings| settings.user.is_some());
        let wanted = match own {
            Some(command) => command.iter().any(|word| word.contains(OPTION)),
            None => spec.daemon != Some(DaemonName::Munged) && !own_user && self.machine.hands_over(),
        };
        // Who names a socket in `env` has somebody else listen there.
        if !wanted || spec.env.contains_key(VARIABLE) {
            return None;
        }
        let path = self.job.config.paths.run.join(format!("notify-{}", spec.name));
        match Notify::open(&path, program.user.as_deref(), &spec.name, self.activity.clone()) {
            Ok(notify) => {
                program.env.push([VARIABLE.as_bytes(), b"=", path.as_os_str().as_encoded_bytes()].concat());
                if own.is_none() {
                    // In place of `-D`: Slurm takes only one of the two.
                    program.argv.retain(|word| word != b"-D");
                    program.argv.push(OPTION.as_bytes().to_vec());
                }
                Some(notify)
            }
            Err(error) => {
                let (file, directory) = (path.display(), self.job.config.paths.run.display());
                warn!(
                    "{file}: {error}; {} starts without it, and a broken slurm.conf at `scontrol reconfigure` will end it; \
                     make {directory} writable for slurminit, with a path under 90 characters",
                    spec.name
                );
                None
            }
        }
    }

    /// The main process of a daemon is gone, and `next` is in its place. Its pipes, its group and its state stay.
    pub(super) fn hand_over(&mut self, next: Pid, mut living: Living) {
        info!("{} has handed over to process {next}", self.source(living.child));
        living.started.pid = next;
        living.started.handle = process::pidfd_open(next);
        self.living.insert(next, living);
    }
}
