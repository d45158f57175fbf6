//! Facts that only root can observe.
//!
//! Another user may be denied the GPUs, the configuration and Slurm's files, so what that user's process observes is
//! not the state of the cluster. Each read of these facts is recorded, and the result of a check that has read them is
//! reported only to root. So no entry has to distinguish users.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use model::inventory::Observations;

/// The answer to a check that needs facts which only root can observe.
pub(super) const NEEDS_ROOT: &str = "not checked: needs root";

/// The observation that contains [`NEEDS_ROOT`].
pub(super) fn not_checked() -> Observations {
    Observations::could_not_look(NEEDS_ROOT)
}

/// Why a file cannot be read.
pub(super) fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => NEEDS_ROOT.to_owned(),
        _ => error.to_string(),
    }
}

/// A fact that only root can observe.
#[derive(Debug)]
pub struct RootOnly<T> {
    fact: T,
    is_read: Rc<Cell<bool>>,
}

impl<T> RootOnly<T> {
    /// A fact that has not been read.
    pub fn new(fact: T) -> Self {
        Self { fact, is_read: Rc::default() }
    }

    /// Reads the fact, and records the read.
    pub fn read(&self) -> &T {
        self.is_read.set(true);
        &self.fact
    }

    /// A part of the fact. A read of the part is recorded as a read of the whole.
    pub(super) fn part<U: ?Sized>(&self, part: fn(&T) -> &U) -> RootOnly<&U> {
        RootOnly { fact: part(&self.fact), is_read: Rc::clone(&self.is_read) }
    }

    /// Whether the fact has been read since the last call.
    pub(super) fn take_read(&self) -> bool {
        self.is_read.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_root_needs_root_and_others_name_their_fault() {
        assert_eq!(unreadable(&io::ErrorKind::PermissionDenied.into()), "not checked: needs root");
        assert_eq!(unreadable(&io::Error::other("the disk failed")), "the disk failed");
    }
}
