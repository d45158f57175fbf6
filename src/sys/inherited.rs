//! The signal mask, the ignored signals and the umask at the start of slurminit, and the exec that keeps signals pending.

use std::convert::Infallible;
use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::libc;
use nix::sys::stat::{Mode, umask};
use serde::{Deserialize, Serialize};

use crate::system_calls::{SignalAction, is_ignored, replace_signal_mask, set_action};

/// The highest signal number of Linux (`_NSIG`).
pub const MAX_SIGNAL: i32 = 64;
/// The signals that glibc reserves. It refuses a handler for them.
pub const GLIBC_SIGNALS: [i32; 2] = [32, 33];

/// The umask of slurminit and of all processes that it starts, except the container's command: users must be able to enter the directories
/// that slurminit creates.
pub const UMASK: Mode = Mode::from_bits_truncate(0o022);

static SIGPIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);
/// The signal mask at the start of the program, if the constructor has replaced it.
static MASK_AT_START: AtomicU64 = AtomicU64::new(0);
/// Whether the constructor has blocked all signals.
static IS_BLOCKED: AtomicBool = AtomicBool::new(false);

/// Rust's runtime ignores SIGPIPE before `main`, so only a constructor can read the original disposition.
///
/// The kernel drops a signal that PID 1 neither handles nor blocks, and queues a blocked one. So as PID 1 the constructor blocks all
/// signals, and they stay blocked, through every exec, until PID 1 has its handlers. Any other process stays interruptible.
pub(crate) extern "C" fn before_main() {
    SIGPIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    if nix::unistd::getpid().as_raw() == 1 {
        MASK_AT_START.store(block_all(), Ordering::Relaxed);
        IS_BLOCKED.store(true, Ordering::Relaxed);
    }
}

/// The signal mask, the ignored signals and the umask at the start of slurminit. PID 1 restores the mask and the ignored signals in its
/// children, and the umask only in the container's command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inherited {
    /// The blocked signals: bit n-1 represents signal n.
    mask: u64,
    ignored: Vec<i32>,
    umask: u32,
}

impl Inherited {
    /// Records the state at the start of this program, blocks all signals and sets [`UMASK`].
    pub fn capture() -> Self {
        let ignored = (1..=MAX_SIGNAL)
            .filter(|signal| match *signal {
                libc::SIGPIPE => SIGPIPE_WAS_IGNORED.load(Ordering::Relaxed),
                signal => is_ignored(signal),
            })
            .collect();
        let mask = block_all();
        let mask = if IS_BLOCKED.load(Ordering::Relaxed) { MASK_AT_START.load(Ordering::Relaxed) } else { mask };
        Self { mask, ignored, umask: umask(UMASK).bits() }
    }

    /// Restores the recorded state in this process, a child that is about to exec. Handlers need no reset: `execve` resets them.
    pub fn restore(&self) {
        for signal in 1..=MAX_SIGNAL {
            let action = if self.ignored.contains(&signal) { SignalAction::Ignore } else { SignalAction::Default };
            if !GLIBC_SIGNALS.contains(&signal) {
                set_action(signal, action);
            }
        }
        set_mask(self.mask);
        umask(Mode::from_bits_truncate(self.umask));
    }
}

/// Restores the signal mask of the program's start, if the constructor has blocked all signals. Called in every case except `slurminit run`.
pub fn unblock() {
    if IS_BLOCKED.swap(false, Ordering::Relaxed) {
        set_mask(MASK_AT_START.load(Ordering::Relaxed));
    }
}

/// Blocks all signals in this thread and returns the previous mask.
pub fn block_all() -> u64 {
    replace_signal_mask(u64::MAX)
}

/// Sets this thread's mask of blocked signals.
pub fn set_mask(mask: u64) {
    replace_signal_mask(mask);
}

/// The bit of a signal in a kernel signal mask.
pub const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Executes the program in this file. Returns only on failure. The signal mask is unchanged, so that blocked signals stay pending.
pub fn become_program(file: &Path, words: &[OsString], env: &[(OsString, OsString)]) -> io::Error {
    let exec = || -> io::Result<Infallible> {
        let words: Vec<CString> = words.iter().map(|word| CString::new(word.as_bytes())).collect::<Result<_, _>>()?;
        let env = env.iter().map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()));
        let env: Vec<CString> = env.collect::<Result<_, _>>()?;
        Ok(nix::unistd::execve(&CString::new(file.as_os_str().as_bytes())?, &words, &env)?)
    };
    match exec() {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

/// The option that carries [`Inherited`] when `slurminit run` re-executes itself.
const OPTION: &str = "--inherited";

/// Re-executes this program with these arguments and without these variables. Returns only on failure. `inherited`: the recorded state, only
/// for `slurminit run`, whose blocked signals stay blocked.
pub fn reexecute(words: Vec<OsString>, removed: &[&str], inherited: Option<&Inherited>) -> io::Error {
    let env: Vec<_> = std::env::vars_os().filter(|(name, _)| !removed.iter().any(|other| name == other)).collect();
    match (with_inherited(words, inherited), std::env::current_exe()) {
        (Ok(words), Ok(file)) => become_program(&file, &words, &env),
        (Err(error), _) | (_, Err(error)) => error,
    }
}

/// Inserts the option after the verb, replacing that of an earlier re-execution.
fn with_inherited(mut words: Vec<OsString>, inherited: Option<&Inherited>) -> io::Result<Vec<OsString>> {
    let Some(inherited) = inherited else { return Ok(words) };
    if let Some(at) = words.iter().take_while(|word| *word != "--").position(|word| word == OPTION) {
        words.drain(at..words.len().min(at + 2));
    }
    // `--config FILE` is also allowed before the verb.
    let is_value = |at: usize| at > 1 && words.get(at - 1).is_some_and(|word| word == "--config");
    let is_verb = |(at, word): (usize, &OsString)| at > 0 && !word.as_bytes().starts_with(b"-") && !is_value(at);
    let after_verb = words.iter().enumerate().position(is_verb).map_or(words.len(), |at| at + 1);
    words.splice(after_verb..after_verb, [OPTION.into(), serde_json::to_string(inherited)?.into()]);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_signal_mask_through_each_exec() {
        let inherited = Inherited { mask: 1 << 63, ignored: vec![13], umask: 0o077 };
        let text = serde_json::to_string(&inherited).unwrap();
        assert_eq!(serde_json::from_str::<Inherited>(&text).unwrap(), inherited);
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let first = with_inherited(words(&["slurminit", "run", "--", "--inherited", "x"]), Some(&inherited)).unwrap();
        assert_eq!(first, words(&["slurminit", "run", OPTION, &text, "--", "--inherited", "x"]));
        let config = [&first[..2], &words(&["--config", "f"]), &first[2..]].concat();
        let second = with_inherited(config, Some(&inherited)).unwrap();
        assert_eq!(second, words(&["slurminit", "run", OPTION, &text, "--config", "f", "--", "--inherited", "x"]));
        let before_verb = words(&["slurminit", "--config", "f", "run", "--", "sh"]);
        let third = with_inherited(before_verb, Some(&inherited)).unwrap();
        assert_eq!(third, words(&["slurminit", "--config", "f", "run", OPTION, &text, "--", "sh"]));
        assert_eq!(with_inherited(words(&["slurminit", "up"]), None).unwrap(), words(&["slurminit", "up"]));
    }

    #[test]
    fn reads_back_mask_with_real_time_signals() {
        // This changes the mask of this thread only.
        let before = block_all();
        let mask = bit(libc::SIGTERM) | bit(64);
        set_mask(mask);
        assert_eq!(block_all(), mask);
        set_mask(before);
    }
}
