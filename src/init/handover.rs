//! Decides whether a daemon may hand over to a successor process.
//!
//! On `scontrol reconfigure`, a daemon running with `--systemd` starts its successor.
//! Once the successor has read the new configuration and works, the old process sends `READY=1
//! MAINPID=n` as in sd_notify(3) and exits with 0. By then the successor is an orphan, so its parent proves nothing.
//! Its session does: slurminit gives each daemon its own session, a process enters a session only by fork, and no
//! process can be moved into another session.

use thiserror::Error;

use sys::proc::parse::Stat;

/// The longest message that is read, in bytes. Slurm's messages have about 20.
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// The fields of `/proc/PID/stat` that identify a process and its relations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinship {
    /// The parent, which is notified of the process's death.
    pub parent: i32,
    /// The session ID, which is the PID of the session leader.
    pub session: i32,
    /// The start time, in clock ticks since boot. No two processes share both PID and start time.
    pub started: u64,
}

/// The process that is to become the main process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Successor {
    /// The successor's process ID.
    pub pid: i32,
    /// The start time, to detect that the PID was reused.
    pub started: u64,
}

/// A handover request, and the kernel's data about the processes involved.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The PID of the daemon's main process.
    pub main: i32,
    /// The daemon's session ID.
    pub session: i32,
    /// The PID of slurminit.
    pub init: i32,
    /// The sender of the message, as reported by the kernel.
    pub sender: (i32, Option<Kinship>),
    /// The proposed main process.
    pub candidate: (i32, Option<Kinship>),
}

/// Why a message is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum NoHandover {
    /// The message exceeds [`MAX_MESSAGE_BYTES`].
    #[error("longer than {MAX_MESSAGE_BYTES} bytes")]
    TooLong,
    /// MAINPID is not a process ID, or is given more than once with different values.
    #[error("MAINPID is not a single process ID")]
    InvalidPid,
    /// The kernel did not report a sender, or the sender is gone or is not in the daemon's session.
    #[error("the sender, process {0}, does not belong to this daemon")]
    UnknownSender(i32),
    /// The proposed process does not exist.
    #[error("MAINPID={0} does not exist")]
    NoSuchProcess(i32),
    /// The proposed process is not in the daemon's session.
    #[error("MAINPID={0} does not belong to the session of this daemon")]
    NotForkedByDaemon(i32),
    /// PID 1 would not be notified of the process's death.
    #[error("the parent of MAINPID={0} is process {1}, not slurminit")]
    ForeignParent(i32, i32),
}

/// The process that a message names as the main one; `None` if it names none. Other fields are ignored.
///
/// # Errors
/// The message is too long, or its `MAINPID` is not a single process ID.
pub fn main_pid(message: &[u8]) -> Result<Option<i32>, NoHandover> {
    if message.len() > MAX_MESSAGE_BYTES {
        return Err(NoHandover::TooLong);
    }
    let mut named = None;
    for value in message.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"MAINPID=")) {
        let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let pid = is_number.then(|| std::str::from_utf8(value).ok()?.parse::<i32>().ok()).flatten();
        let pid =
            pid.filter(|pid| *pid > 0 && named.is_none_or(|other| other == *pid)).ok_or(NoHandover::InvalidPid)?;
        named = Some(pid);
    }
    Ok(named)
}

impl From<Stat> for Kinship {
    fn from(Stat { parent, session, start, .. }: Stat) -> Self {
        Self { parent, session, started: start }
    }
}

/// Returns the successor; `None` if the message names the main process itself, as the first message of a daemon does.
///
/// # Errors
/// The sender or the proposed process does not belong to the daemon, or the proposed process does not exist, or its parent is neither slurminit nor
/// the main process.
pub fn check_claim(claim: &Claim) -> Result<Option<Successor>, NoHandover> {
    let of_daemon = |process: Option<Kinship>| process.is_some_and(|process| process.session == claim.session);
    let (sender, candidate) = (claim.sender, claim.candidate.0);
    if sender.0 != claim.main && !of_daemon(sender.1) {
        return Err(NoHandover::UnknownSender(sender.0));
    }
    if candidate == claim.main {
        return Ok(None);
    }
    let process = claim.candidate.1.ok_or(NoHandover::NoSuchProcess(candidate))?;
    if !of_daemon(Some(process)) {
        return Err(NoHandover::NotForkedByDaemon(candidate));
    }
    // A child of the main process is reparented to slurminit when the main process ends.
    if process.parent != claim.init && process.parent != claim.main {
        return Err(NoHandover::ForeignParent(candidate, process.parent));
    }
    Ok(Some(Successor { pid: candidate, started: process.started }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_main_pid_of_notify_message() {
        assert_eq!(main_pid(b"READY=1\nMAINPID=4711"), Ok(Some(4711)));
        assert_eq!(main_pid(b"READY=1\nMAINPID=4711\n"), Ok(Some(4711)));
        assert_eq!(main_pid(b"BARRIER=1"), Ok(None));
        assert_eq!(main_pid(b"STATUS=MAINPID=1\nX-MAINPID=2"), Ok(None));
        assert_eq!(main_pid(b"MAINPID=7\nMAINPID=7"), Ok(Some(7)));
    }

    #[test]
    fn rejects_invalid_process_id() {
        let bad = ["", "0", "-1", "+7", " 7", "7 ", "x", "99999999999", "\u{662}", "7\0"];
        for value in bad {
            assert_eq!(main_pid(format!("MAINPID={value}").as_bytes()), Err(NoHandover::InvalidPid), "{value:?}");
        }
        assert_eq!(main_pid(b"MAINPID=7\nMAINPID=8"), Err(NoHandover::InvalidPid));
        assert_eq!(main_pid(&[b'x'; MAX_MESSAGE_BYTES + 1]), Err(NoHandover::TooLong));
    }

    const MAIN: i32 = 40;
    const NEXT: Kinship = Kinship { parent: 1, session: MAIN, started: 8674 };

    fn claim(named: Option<Kinship>) -> Claim {
        let main = Kinship { parent: 1, session: MAIN, started: 1 };
        Claim { main: MAIN, session: MAIN, init: 1, sender: (MAIN, Some(main)), candidate: (50, named) }
    }

    #[test]
    fn accepts_successor_in_session_of_daemon() {
        let next = Ok(Some(Successor { pid: 50, started: 8674 }));
        assert_eq!(check_claim(&claim(Some(NEXT))), next, "an orphan, as Slurm creates it");
        assert_eq!(check_claim(&claim(Some(Kinship { parent: MAIN, ..NEXT }))), next, "still the main process's child");
        let by_successor = Claim { sender: (50, Some(NEXT)), ..claim(Some(NEXT)) };
        assert_eq!(check_claim(&by_successor), next, "sent by the successor");
        let dead = Claim { sender: (MAIN, None), ..claim(Some(NEXT)) };
        assert_eq!(check_claim(&dead), next, "the main process has exited");
        assert_eq!(check_claim(&Claim { candidate: (MAIN, None), ..claim(None) }), Ok(None), "main PID unchanged");
    }

    #[test]
    fn rejects_forged_claim() {
        assert_eq!(check_claim(&claim(None)), Err(NoHandover::NoSuchProcess(50)));
        assert_eq!(check_claim(&claim(Some(Kinship { session: 41, ..NEXT }))), Err(NoHandover::NotForkedByDaemon(50)));
        assert_eq!(check_claim(&claim(Some(Kinship { parent: 45, ..NEXT }))), Err(NoHandover::ForeignParent(50, 45)));
        for sender in [(0, None), (60, None), (60, Some(Kinship { session: 60, ..NEXT }))] {
            assert_eq!(check_claim(&Claim { sender, ..claim(Some(NEXT)) }), Err(NoHandover::UnknownSender(sender.0)));
        }
    }

    proptest! {
        #[test]
        fn no_message_panics_and_accepted_pid_is_from_message(
            message in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..5000),
                "((MAINPID|READY|BARRIER|X)(=|)[0-9+-]{0,12}\n?){0,8}".prop_map(String::into_bytes),
            ],
        ) {
            if let Ok(Some(pid)) = main_pid(&message) {
                let text = String::from_utf8_lossy(&message);
                prop_assert!(pid > 0 && text.contains("MAINPID=") && text.contains(&pid.to_string()), "{pid}: {text}");
            }
        }

        #[test]
        fn accepts_only_processes_in_session(
            sender in (0..6_i32, proptest::option::of((0..6_i32, 0..6_i32))),
            named in (0..6_i32, proptest::option::of((0..6_i32, 0..6_i32))),
        ) {
            let process = |(parent, session)| Kinship { parent, session, started: 1 };
            let claim = Claim {
                main: 2,
                session: 2,
                init: 1,
                sender: (sender.0, sender.1.map(process)),
                candidate: (named.0, named.1.map(process)),
            };
            if let Ok(Some(next)) = check_claim(&claim) {
                prop_assert_eq!(next.pid, named.0);
                prop_assert_eq!(claim.candidate.1.map(|process| process.session), Some(2));
                prop_assert!(sender.0 == 2 || claim.sender.1.is_some_and(|process| process.session == 2));
            }
        }
    }
}
