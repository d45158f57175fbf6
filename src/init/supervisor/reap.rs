//! The only place in PID 1 that waits for children.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use nix::libc;
use nix::unistd::Pid;
use tokio::time::Instant;

use super::Supervisor;
use crate::logs::report;
use crate::notify::Notify;
use crate::process;
use machine::{Child, Event, Exit};
use model::log::Level;
use model::message;
use sys::{proc, system_calls};

/// A unit whose main process is dead. The other processes of its group have received SIGKILL but may still use the unit's port, so that a new process
/// could not bind it. PID 1 also reaps these processes, so each of their deaths triggers a new check.
#[derive(Debug)]
pub(super) struct DyingUnit {
    group: Pid,
    /// The deadline for the other processes: a process that is stuck in the kernel may not die.
    pub(super) until: Instant,
    event: Event,
}

/// How long the remaining processes of a group may take to die.
const GROUP_EXIT_TIMEOUT: Duration = Duration::from_millis(500);

impl Supervisor {
    /// Reaps all dead children: one SIGCHLD can be sent for several deaths.
    pub(super) fn reap(&mut self) {
        loop {
            match system_calls::find_zombie() {
                Ok(Some(zombie)) => self.reap_one(zombie),
                Ok(None) => return self.report_deaths(),
                Err(_no_children) => {
                    self.report_deaths();
                    return self.send(Event::NoChildren);
                }
            }
        }
    }

    fn reap_one(&mut self, pid: Pid) {
        let Some(running) = self.running_children.remove(&pid) else {
            let is_slurmstepd = is_slurmstepd(pid);
            let exit = collect(pid);
            if is_slurmstepd && exit != Exit::Code(0) {
                self.send(Event::SlurmstepdDied);
            }
            let reaped = message!("orphan-reaped", "reaped an orphan, process {pid}: {exit}", pid, exit);
            return report(Level::Trace, None, &reaped);
        };
        let successor = running.notify.as_ref().and_then(Notify::successor);
        if let Some(Ok(next)) = successor {
            let exit = collect(pid);
            let reaped = message!(
                "predecessor-reaped",
                "reaped a daemon's previous process after a handover, process {pid}: {exit}",
                pid,
                exit
            );
            report(Level::Trace, None, &reaped);
            return self.hand_over(next, running);
        }
        // A zombie keeps its PID and group ID reserved, so the signal reaches no other process. Processes left behind by the command or a
        // hook may be meant to keep running.
        if !matches!(running.child, Child::Cmd | Child::Hook(_)) {
            process::signal_group(&running.started, libc::SIGKILL);
        }
        let exit = collect(pid);
        for output in &running.outputs {
            output.finish();
        }
        let failure = process::exec_failure(&running.started, &running.program).or(successor.and_then(Result::err));
        let exit = failure.map_or(exit, Exit::NotStarted);
        let event = match (running.child, self.shortage(&running, &exit)) {
            (Child::Unit(unit), Some(shortage)) => Event::FailedExternally(unit, exit, shortage),
            (child, _) => Event::Exited(child, exit),
        };
        match running.child {
            Child::Unit(_) => {
                let until = Instant::now() + GROUP_EXIT_TIMEOUT;
                self.dying_units.push(DyingUnit { group: running.started.group, until, event });
            }
            _ => self.send(event),
        }
    }

    /// Reports the deaths of units whose process groups are empty, or whose remaining processes did not die in time.
    pub(super) fn report_deaths(&mut self) {
        let now = Instant::now();
        for dying in std::mem::take(&mut self.dying_units) {
            if now < dying.until && nix::sys::signal::killpg(dying.group, None).is_ok() {
                self.dying_units.push(dying);
            } else {
                self.send(dying.event);
            }
        }
    }
}

/// Whether a zombie is a slurmstepd. slurmd forks twice, so each slurmstepd is an orphan. Only root's processes qualify, because any user can give a
/// process this name.
fn is_slurmstepd(zombie: Pid) -> bool {
    let stat = proc::stat(zombie.as_raw());
    stat.is_some_and(|stat| stat.name == "slurmstepd") && proc::is_root_process(zombie.as_raw())
}

/// Reaps a zombie.
fn collect(zombie: Pid) -> Exit {
    let status = system_calls::reap(zombie);
    match status.signal() {
        Some(signal) => Exit::Signal(signal),
        None => Exit::Code(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)),
    }
}

/// Sends a signal to every remaining process: as PID 1 to the whole PID namespace, otherwise to all descendants.
pub(super) fn signal_all(signal: i32) {
    if nix::unistd::getpid().as_raw() == 1 {
        return system_calls::kill(-1, signal);
    }
    let mut signalled = BTreeSet::new();
    let mut parents = vec![nix::unistd::getpid().as_raw()];
    while let Some(parent) = parents.pop() {
        for child in proc::children(parent) {
            if signalled.insert(child) {
                parents.push(child);
                system_calls::kill(child, signal);
            }
        }
    }
}
