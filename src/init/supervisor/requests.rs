//! Handles requests from the control socket.

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::Supervisor;
use crate::control::{self, FullReply, ReceivedRequest};
use crate::logs::{OWN_NAME, Record, warn};
use machine::protocol::{self, Reply, Request};
use machine::{Command, Event};
use model::daemons::DaemonName;
use model::message;
use model::message::Report;

impl Supervisor {
    /// Opens the control socket. If that fails, the container works, but accepts no requests. A plain init has no socket.
    pub(super) fn open_control(&self) -> UnboundedReceiver<ReceivedRequest> {
        let (requests, incoming) = unbounded_channel();
        if self.task.setup.has_cluster {
            let socket = protocol::socket(&self.task.paths.run);
            match control::listen(&socket) {
                Ok(listener) => drop(tokio::task::spawn_local(control::serve(listener, requests))),
                Err(error) => warn(&message!(
                    "no-control-socket",
                    "cannot open the control socket {socket}: {error}; `restart`, `reload`, `stop` and `logs` will not work; \
                     the socket's directory must be writable by root only, the socket's path shorter than 108 characters, \
                     and no other file may have this name",
                    socket = socket.display(),
                    error
                )),
            }
        }
        incoming
    }

    pub(super) fn answer(&mut self, received: ReceivedRequest) {
        let answer = match received.request {
            Request::Ping => Reply::Done.into(),
            Request::Stop => self.command(Command::Stop, Reply::Done),
            Request::Reload => {
                let asked = self.machine.snapshot().reload.asked + 1;
                self.command(Command::Reload, Reply::Reloading { asked })
            }
            Request::Restart { name } => match self.machine.units().named(&name) {
                Some(unit) => self.command(Command::Restart(unit.id), Reply::Restarting { starts: unit.starts() }),
                None => self.unknown_unit(&name, None),
            },
            Request::Logs { name, lines } => match self.logs.last_lines(&name, lines as usize) {
                Some(lines) => FullReply { reply: Reply::Lines, lines, new_lines: None },
                None => self.unknown_unit(&name, Some(OWN_NAME)),
            },
            Request::Follow { name, lines } => match self.logs.follow(&name, lines as usize) {
                Some((lines, new_lines)) => FullReply { reply: Reply::Lines, lines, new_lines: Some(new_lines) },
                None => self.unknown_unit(&name, Some(OWN_NAME)),
            },
            Request::Report { report: Report { level, message } } => {
                let slurmd = DaemonName::Slurmd.as_str();
                self.logs.write(&Record::own(level, slurmd, None, &message));
                Reply::Done.into()
            }
        };
        // The client may have disconnected.
        let _ = received.answer.send(answer);
    }

    fn command(&mut self, command: Command, done: Reply) -> FullReply {
        match self.machine.refusal(command) {
            Some(why) => Reply::Refused { why: why.to_owned() }.into(),
            None => {
                self.handle_event(Event::Command(command));
                done.into()
            }
        }
    }

    fn unknown_unit(&self, name: &str, other: Option<&str>) -> FullReply {
        let units = self.machine.units().iter().map(|unit| unit.spec.name.as_str());
        let names: Vec<_> = units.chain(other).collect();
        let why = format!("no daemon or service named `{name}`; known: {}", names.join(", "));
        Reply::Refused { why }.into()
    }
}
