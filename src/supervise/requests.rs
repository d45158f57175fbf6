//! What comes over the control socket, and the answer to it.

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tracing::warn;

use super::World;
use super::machine::{Command, Event};
use crate::control::protocol::{Reply, Request};
use crate::control::server::{self, Answer, Asked};

impl World {
    /// Opens the control socket. Without it the container works, but takes no requests; a plain init has none.
    pub(super) fn open_control(&self) -> UnboundedReceiver<Asked> {
        let (requests, incoming) = unbounded_channel();
        if !self.job.only_cmd {
            let socket = crate::control::socket(&self.job.config.paths.run);
            match server::listen(&socket) {
                Ok(listener) => drop(tokio::task::spawn_local(server::serve(listener, requests))),
                Err(error) => warn!(
                    "{}: {error}; `restart`, `stop` and `logs` will not work; make its directory writable",
                    socket.display()
                ),
            }
        }
        incoming
    }

    pub(super) fn answer(&mut self, asked: Asked) {
        let answer = match asked.request {
            Request::Ping => Reply::Done.into(),
            Request::Stop => self.command(Command::Stop, Reply::Done),
            Request::Restart { name } => match self.machine.units().iter().position(|unit| unit.name == name) {
                Some(unit) => {
                    let starts = self.machine.snapshot().units.get(unit).map_or(0, |unit| unit.starts);
                    self.command(Command::Restart(unit), Reply::Restarting { starts })
                }
                None => self.unknown(&name),
            },
            Request::Logs { name, lines } => {
                match self.logs.last_lines(&name, usize::try_from(lines).unwrap_or(usize::MAX)) {
                    Some(lines) => Answer { reply: Reply::Lines, lines },
                    None => self.unknown(&name),
                }
            }
        };
        // A client that has gone needs none.
        let _ = asked.answer.send(answer);
    }

    fn command(&mut self, command: Command, done: Reply) -> Answer {
        match self.machine.refusal(command) {
            Some(why) => Reply::Refused { why: why.to_owned() }.into(),
            None => {
                self.take(Event::Command(command));
                done.into()
            }
        }
    }

    fn unknown(&self, name: &str) -> Answer {
        let names: Vec<_> = self.machine.units().iter().map(|unit| unit.name.as_str()).collect();
        let why = format!("no daemon or service is called `{name}`; there is {}", names.join(", "));
        Reply::Refused { why }.into()
    }
}
