//! Whether a daemon may hand over to another process.
//!
//! PURE. At `scontrol reconfigure` a daemon that runs with `--systemd` (Slurm 23.11 and later) starts its successor beside
//! itself. When that one has read the new configuration and works, the old one says `READY=1\nMAINPID=n` as in sd_notify(3)
//! and exits with 0. The successor is an orphan by then, so its parents prove nothing. Its session does: slurminit gives each
//! daemon one of its own, only a fork leads into a session, and no process can be moved into another one's.

use thiserror::Error;

/// The longest message that is read, in bytes; Slurm's has some 20.
pub const LONGEST: usize = 4096;

/// What `/proc/PID/stat` tells of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// The process that gets the news of its death.
    pub parent: i32,
    /// Its session; the number is that of the process which made it.
    pub session: i32,
    /// When it started, in clock ticks since the boot: no two processes share both this and the pid.
    pub started: u64,
}

/// A process that is to follow the main one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Successor {
    /// Its process id.
    pub pid: i32,
    /// When it started, to tell it from a later process with its number.
    pub started: u64,
}

/// One that asks for a handover, and what the kernel says about those concerned.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The daemon's main process.
    pub main: i32,
    /// The daemon's session.
    pub session: i32,
    /// slurminit itself.
    pub init: i32,
    /// Who sent the message, by the kernel's word.
    pub sender: (i32, Option<Process>),
    /// The main process to be.
    pub named: (i32, Option<Process>),
}

/// Why a message changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum Refusal {
    /// Nobody has so much to say.
    #[error("it is longer than {LONGEST} bytes")]
    TooLong,
    /// Not a number, or two different ones.
    #[error("its MAINPID is not one process id")]
    NoPid,
    /// The kernel did not say who sent it, or that process is gone or another daemon's.
    #[error("its sender, process {0}, is not of this daemon")]
    Stranger(i32),
    /// There is no such process.
    #[error("MAINPID={0} does not live")]
    Gone(i32),
    /// It was not forked by the daemon.
    #[error("MAINPID={0} does not descend from this daemon")]
    Unrelated(i32),
    /// PID 1 would not learn of its death.
    #[error("MAINPID={0} is a child of process {1}, which would get the news of its death")]
    Foreign(i32, i32),
}

/// The process that a message names as the main one. What else it says is nobody's concern here.
///
/// # Errors
/// The message is too long, or names something that is no process.
pub fn main_pid(message: &[u8]) -> Result<Option<i32>, Refusal> {
    if message.len() > LONGEST {
        return Err(Refusal::TooLong);
    }
    let mut named = None;
    for value in message.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"MAINPID=")) {
        let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let pid = digits.then(|| std::str::from_utf8(value).ok()?.parse::<i32>().ok()).flatten();
        let pid = pid.filter(|pid| *pid > 0 && named.is_none_or(|other| other == *pid)).ok_or(Refusal::NoPid)?;
        named = Some(pid);
    }
    Ok(named)
}

/// Reads `/proc/PID/stat`. The program's name in it is anything that the program likes.
pub fn parse_stat(stat: &[u8]) -> Option<Process> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let rest = std::str::from_utf8(stat.get(after_name..)?).ok()?;
    // From the third on: state, parent, group, session, ..., the 22nd is the start.
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<i32>().ok();
    Some(Process { parent: number(1)?, session: number(3)?, started: fields.get(19)?.parse().ok()? })
}

/// Who follows the main process; `None` if the message names that one itself, as a daemon does at its start.
///
/// # Errors
/// The claim is forged, or comes too late.
pub fn judge(claim: &Claim) -> Result<Option<Successor>, Refusal> {
    let of_daemon = |process: Option<Process>| process.is_some_and(|process| process.session == claim.session);
    let (sender, named) = (claim.sender, claim.named.0);
    if sender.0 != claim.main && !of_daemon(sender.1) {
        return Err(Refusal::Stranger(sender.0));
    }
    if named == claim.main {
        return Ok(None);
    }
    let process = claim.named.1.ok_or(Refusal::Gone(named))?;
    if !of_daemon(Some(process)) {
        return Err(Refusal::Unrelated(named));
    }
    // A child of the main process becomes ours when that one ends.
    if process.parent != claim.init && process.parent != claim.main {
        return Err(Refusal::Foreign(named, process.parent));
    }
    Ok(Some(Successor { pid: named, started: process.started }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slurms_message_names_the_new_process() {
        assert_eq!(main_pid(b"READY=1\nMAINPID=4711"), Ok(Some(4711)));
        assert_eq!(main_pid(b"READY=1\nMAINPID=4711\n"), Ok(Some(4711)));
        assert_eq!(main_pid(b"BARRIER=1"), Ok(None));
        assert_eq!(main_pid(b"STATUS=MAINPID=1\nX-MAINPID=2"), Ok(None));
        assert_eq!(main_pid(b"MAINPID=7\nMAINPID=7"), Ok(Some(7)));
    }

    #[test]
    fn what_is_no_process_id_is_refused() {
        let bad = ["", "0", "-1", "+7", " 7", "7 ", "x", "99999999999", "\u{662}", "7\0"];
        for value in bad {
            assert_eq!(main_pid(format!("MAINPID={value}").as_bytes()), Err(Refusal::NoPid), "{value:?}");
        }
        assert_eq!(main_pid(b"MAINPID=7\nMAINPID=8"), Err(Refusal::NoPid));
        assert_eq!(main_pid(&[b'x'; LONGEST + 1]), Err(Refusal::TooLong));
    }

    #[test]
    fn the_kernels_line_is_read_whatever_the_program_is_called() {
        let rest = "S 1 40 40 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 8674 0";
        let expected = Some(Process { parent: 1, session: 40, started: 8674 });
        for name in ["slurmctld", "a) S 9 9 9 (b", "", "\n"] {
            assert_eq!(parse_stat(format!("42 ({name}) {rest}\n").as_bytes()), expected, "{name}");
        }
        assert_eq!(parse_stat([b"42 (\xff) ".as_slice(), rest.as_bytes()].concat().as_slice()), expected);
        assert_eq!(parse_stat(b"42 (x) S 1"), None);
    }

    const MAIN: i32 = 40;
    const NEXT: Process = Process { parent: 1, session: MAIN, started: 8674 };

    fn claim(named: Option<Process>) -> Claim {
        let main = Process { parent: 1, session: MAIN, started: 1 };
        Claim { main: MAIN, session: MAIN, init: 1, sender: (MAIN, Some(main)), named: (50, named) }
    }

    #[test]
    fn a_process_of_the_daemons_session_follows() {
        let next = Ok(Some(Successor { pid: 50, started: 8674 }));
        assert_eq!(judge(&claim(Some(NEXT))), next, "an orphan, as Slurm makes it");
        assert_eq!(judge(&claim(Some(Process { parent: MAIN, ..NEXT }))), next, "still the main process's child");
        assert_eq!(judge(&Claim { sender: (50, Some(NEXT)), ..claim(Some(NEXT)) }), next, "it speaks for itself");
        let dead = Claim { sender: (MAIN, None), ..claim(Some(NEXT)) };
        assert_eq!(judge(&dead), next, "the main process has spoken its last word");
        assert_eq!(judge(&Claim { named: (MAIN, None), ..claim(None) }), Ok(None), "nothing new");
    }

    #[test]
    fn a_forged_claim_is_refused() {
        assert_eq!(judge(&claim(None)), Err(Refusal::Gone(50)));
        assert_eq!(judge(&claim(Some(Process { session: 41, ..NEXT }))), Err(Refusal::Unrelated(50)));
        assert_eq!(judge(&claim(Some(Process { parent: 45, ..NEXT }))), Err(Refusal::Foreign(50, 45)));
        for sender in [(0, None), (60, None), (60, Some(Process { session: 60, ..NEXT }))] {
            assert_eq!(judge(&Claim { sender, ..claim(Some(NEXT)) }), Err(Refusal::Stranger(sender.0)));
        }
    }

    proptest! {
        #[test]
        fn no_message_panics_and_an_accepted_pid_was_written_there(
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
        fn no_line_of_the_kernel_panics(stat in proptest::collection::vec(any::<u8>(), 0..300)) {
            parse_stat(&stat);
        }

        #[test]
        fn nothing_outside_the_session_is_ever_accepted(
            sender in (0..6_i32, proptest::option::of((0..6_i32, 0..6_i32))),
            named in (0..6_i32, proptest::option::of((0..6_i32, 0..6_i32))),
        ) {
            let known = |(parent, session)| Process { parent, session, started: 1 };
            let claim = Claim {
                main: 2,
                session: 2,
                init: 1,
                sender: (sender.0, sender.1.map(known)),
                named: (named.0, named.1.map(known)),
            };
            if let Ok(Some(next)) = judge(&claim) {
                prop_assert_eq!(next.pid, named.0);
                prop_assert_eq!(claim.named.1.map(|process| process.session), Some(2));
                prop_assert!(sender.0 == 2 || claim.sender.1.is_some_and(|process| process.session == 2));
            }
        }
    }
}
