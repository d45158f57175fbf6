//! The socket on which a daemon announces a handover (sd_notify(3), `NOTIFY_SOCKET`).
//!
//! Each daemon that runs with `--systemd` has its own socket, which only root and the daemon's user may write to. A message only nominates a
//! successor, which becomes the main process when the current one ends; until then a claim has no effect. The main process sends its message before
//! it exits. Draining the socket before the death is handled therefore loses no claim.

use std::cell::Cell;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, setsockopt, socket, sockopt};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, getpid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::AbortHandle;

use super::handover::{Claim, Kinship, MAX_MESSAGE_BYTES, NoHandover, Successor, check_claim, main_pid};
use crate::logs::warn;
use machine::SpawnFailure;
use model::exit_code::FAILURE;
use model::message;
use sys::system_calls::{async_fd, receive_with_sender};

/// How many messages are read before other tasks get their turn.
const BATCH: usize = 32;
/// How many messages are read at a death: more than the kernel queues (net.unix.max_dgram_qlen).
const LAST_BATCH: usize = 2048;
/// How many refusals are logged: a flood must not fill the log.
const REFUSALS_LOGGED: u32 = 5;
/// The variable that names the socket to which Slurm's daemons send messages.
pub(super) const VARIABLE: &str = "NOTIFY_SOCKET";

/// A daemon's notification socket. Dropping it closes the socket.
#[derive(Debug)]
pub(super) struct Notify {
    channel: Rc<Channel>,
    reader: AbortHandle,
}

#[derive(Debug)]
struct Channel {
    socket: AsyncFd<OwnedFd>,
    name: String,
    main: Cell<i32>,
    session: Cell<i32>,
    successor: Cell<Option<Successor>>,
    refusals: Cell<u32>,
}

impl Notify {
    /// Creates the socket at `path`. Only root and `owner`, a user ID and a group ID, can send to it.
    pub(super) fn open(path: &Path, owner: Option<(u32, u32)>, name: &str) -> std::io::Result<Self> {
        let socket =
            socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
        setsockopt(&socket, sockopt::PassCred, &true)?;
        // On Linux the file inherits the socket's mode, so other users can never write to it.
        nix::sys::stat::fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
        // Removes the socket of a previous process of this daemon. Messages to that socket are lost.
        let (run, file) = sys::trusted_path::socket_place(path)?;
        let _ = run.remove(&file);
        bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
        if let Some(owner) = owner {
            run.chown_entry(&file, owner)?;
        }
        let channel = Rc::new(Channel {
            socket: async_fd(socket, Interest::READABLE)?,
            name: name.to_owned(),
            main: Cell::default(),
            session: Cell::default(),
            successor: Cell::default(),
            refusals: Cell::default(),
        });
        let reader = tokio::task::spawn_local(Rc::clone(&channel).run()).abort_handle();
        Ok(Self { channel, reader })
    }

    /// Records a new main process. slurminit has made it the leader of its session.
    pub(super) fn started(&self, pid: Pid) {
        self.channel.main.set(pid.as_raw());
        self.channel.session.set(pid.as_raw());
    }

    /// The successor, after the main process has ended; `None` if no message named one. The successor must be a child of slurminit, dead
    /// or alive. If it has been reaped already, the handover has failed, even if the main process exited with 0.
    pub(super) fn successor(&self) -> Option<Result<Pid, SpawnFailure>> {
        self.channel.read(LAST_BATCH);
        let Successor { pid, started } = self.channel.successor.take()?;
        if process_info(pid).is_some_and(|process| process.started == started && process.parent == getpid().as_raw()) {
            self.channel.main.set(pid);
            return Some(Ok(Pid::from_raw(pid)));
        }
        let message = format!("the daemon's successor, process {pid}, ended before the handover; see its output above");
        Some(Err(SpawnFailure { code: FAILURE, message, shortage: None }))
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
            tokio::task::yield_now().await;
        }
    }

    /// Reads at most `limit` messages and returns their number.
    fn read(&self, limit: usize) -> usize {
        let mut buffer = [0; MAX_MESSAGE_BYTES + 1];
        for count in 0..limit {
            // Slurm 25.11 waits until the descriptor that it sends with `BARRIER=1` is closed, which this call does.
            let Ok((length, sender)) = receive_with_sender(self.socket.get_ref(), &mut buffer) else { return count };
            self.handle_message(buffer.get(..length).unwrap_or_default(), sender);
        }
        limit
    }

    fn handle_message(&self, message: &[u8], sender: i32) {
        let claim = |candidate| Claim {
            main: self.main.get(),
            session: self.session.get(),
            init: getpid().as_raw(),
            sender: (sender, process_info(sender)),
            candidate: (candidate, process_info(candidate)),
        };
        let check = |candidate: Option<i32>| candidate.map_or(Ok(None), |pid| check_claim(&claim(pid)));
        match main_pid(message).and_then(check) {
            Ok(None) => {}
            Ok(next) => self.successor.set(next),
            Err(refusal) => self.log_refusal(refusal),
        }
    }

    fn log_refusal(&self, refusal: NoHandover) {
        let before = self.refusals.get();
        self.refusals.set(before.saturating_add(1));
        match before {
            ..REFUSALS_LOGGED => warn(&message!(
                "notification-rejected",
                "rejected a message to the NOTIFY_SOCKET of {name}: {reason}",
                name = self.name,
                reason = refusal
            )),
            REFUSALS_LOGGED => warn(&message!(
                "notifications-rejected",
                "further rejected messages to the NOTIFY_SOCKET of {name} will not be logged",
                name = self.name
            )),
            _ => {}
        }
    }
}

fn process_info(pid: i32) -> Option<Kinship> {
    sys::proc::stat(pid).map(Kinship::from)
}
