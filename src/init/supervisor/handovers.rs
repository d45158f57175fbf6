//! Prepares daemons for a handover to a successor process, and performs it.

use nix::unistd::Pid;

use super::{Program, RunningChild, Supervisor};
use crate::logs::{report, warn};
use crate::notify::{Notify, VARIABLE};
use machine::Child;
use model::log::Level;
use model::message;
use model::unit::{HANDOVER_OPTION, Handover};

impl Supervisor {
    /// Sets up a daemon for handovers, if it supports them. Without a socket, Slurm's `--systemd` is fatal.
    pub(super) fn prepare_handover(&self, child: Child, program: &mut Program) -> Option<Notify> {
        let spec = &self.machine.units()[child.unit()?].spec;
        // If `env` names a socket, another process listens there.
        if spec.handover == Handover::Never || spec.env.contains_key(VARIABLE) {
            return None;
        }
        let path = self.task.paths.run.join(format!("notify-{}", spec.name));
        let owner = program.user.as_ref().map(|user| (user.uid, user.gid));
        match Notify::open(&path, owner, &spec.name) {
            Ok(notify) => {
                program.env.push([VARIABLE.as_bytes(), b"=", path.as_os_str().as_encoded_bytes()].concat());
                if spec.handover == Handover::WhereItCan {
                    // Slurm accepts only one of `-D` and `--systemd`.
                    program.argv.retain(|word| word != b"-D");
                    program.argv.push(HANDOVER_OPTION.as_bytes().to_vec());
                }
                Some(notify)
            }
            Err(error) => {
                warn(&message!(
                    "no-notify-socket",
                    "cannot create {file}: {error}; {name} may stop on `scontrol reconfigure`, or at its start if its command contains --systemd. \
                     {directory} must be writable by root only, and its path must be shorter than 90 characters",
                    file = path.display(),
                    error,
                    name = spec.name,
                    directory = self.task.paths.run.display()
                ));
                None
            }
        }
    }

    /// Makes `next` the main process of a daemon whose main process has ended. Pipes, process group and state stay the
    /// same.
    pub(super) fn hand_over(&mut self, next: Pid, mut running: RunningChild) {
        let name = self.source(running.child);
        let handed_over = message!("unit-handed-over", "{name} has handed over to process {pid}", name, pid = next);
        report(Level::Info, Some(&name), &handed_over);
        running.started.pid = next;
        running.started.handle = sys::system_calls::pidfd_open(next.as_raw());
        running.outputs.iter().for_each(|output| output.handed_over());
        self.running_children.insert(next, running);
    }
}
