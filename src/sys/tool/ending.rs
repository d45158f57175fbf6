//! Ends a child of this process and its descendants, and reaps it.
//!
//! The child stays in the process group of this process, so that PID 1 can end both at once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::libc;

use crate::proc;
use crate::system_calls::{pidfd_open, pidfd_send_signal};

/// How long a killed child may take to die. One in uninterruptible sleep takes longer, and is reaped later.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// A process can fork until it has stopped; this many passes over the tree find its children.
const STOP_PASSES: u32 = 3;

/// Killed children that have not been reaped yet.
static DYING: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// Kills the child and its descendants, and waits at most a second for its death.
pub fn end(mut child: Child) {
    if !matches!(child.try_wait(), Ok(None)) {
        return reap();
    }
    let pid = i32::try_from(child.id()).unwrap_or_default();
    // Each process is stopped first: a running process could fork, and the children of a parent that dies first would leave
    // the tree.
    let mut tree = BTreeMap::new();
    for _ in 0..STOP_PASSES {
        stop_tree(pid, &mut tree);
    }
    for handle in tree.values() {
        pidfd_send_signal(handle, libc::SIGKILL);
    }
    // Before Linux 5.3 there are no handles.
    let _ = child.kill();
    if let Some(handle) = tree.get(&pid) {
        let _ = super::wait_for([handle].into_iter(), Instant::now() + KILL_TIMEOUT);
    }
    if matches!(child.try_wait(), Ok(None)) {
        DYING.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    }
    reap();
}

/// Reaps killed children that have died since.
pub(super) fn reap() {
    DYING.lock().unwrap_or_else(PoisonError::into_inner).retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

fn stop_tree(root: i32, tree: &mut BTreeMap<i32, OwnedFd>) {
    let mut waiting = vec![(root, None)];
    while let Some((pid, parent)) = waiting.pop() {
        if let Entry::Vacant(entry) = tree.entry(pid) {
            let Some(handle) = pidfd_open(pid) else { continue };
            // The PID may have been reused.
            if parent.is_some() && proc::stat(pid).map(|stat| stat.parent) != parent {
                continue;
            }
            pidfd_send_signal(&handle, libc::SIGSTOP);
            entry.insert(handle);
        }
        waiting.extend(proc::children(pid).into_iter().map(|child| (child, Some(pid))));
    }
}
