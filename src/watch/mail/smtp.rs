//! Passes a message to a mail server (RFC 5321), without encryption: the server is in the same network.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use config::{Address, Relay};

/// For the whole exchange; slurmctld kills the program after 120 s.
const DEADLINE: Duration = Duration::from_secs(30);
/// The maximum length of a reply in bytes, over all its lines.
const LONGEST: u64 = 16 * 1024;

/// Sends the message, or reports which step failed and what the server said.
pub(super) fn send(relay: &Relay, from: &Address, to: &[Address], lines: &[String]) -> anyhow::Result<()> {
    let until = Instant::now() + DEADLINE;
    let mut session = Session::open(relay, until).with_context(|| format!("the mail server {relay}"))?;
    session.talk(from, to, lines).with_context(|| format!("the mail server {relay}"))
}

struct Session {
    stream: BufReader<TcpStream>,
    until: Instant,
}

impl Session {
    fn open(relay: &Relay, until: Instant) -> anyhow::Result<Self> {
        let mut last = None;
        for address in relay.to_string().to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, left(until)?) {
                Ok(stream) => return Ok(Self { stream: BufReader::new(stream), until }),
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or_else(|| anyhow::anyhow!("its name has no address"), anyhow::Error::from))
    }

    fn talk(&mut self, from: &Address, to: &[Address], lines: &[String]) -> anyhow::Result<()> {
        self.expect("its greeting", 220)?;
        self.say("EHLO slurminit")?;
        if self.reply()?.0 != 250 {
            self.ask("HELO slurminit", 250)?;
        }
        self.ask(&format!("MAIL FROM:<{from}>"), 250)?;
        for to in to {
            self.ask(&format!("RCPT TO:<{to}>"), 250)?;
        }
        self.ask("DATA", 354)?;
        let mut text = String::new();
        for line in lines {
            // A line with only a dot would end the message.
            text += if line.starts_with('.') { "." } else { "" };
            text += line;
            text += "\r\n";
        }
        self.say(&(text + "."))?;
        self.expect("the message", 250)?;
        // The server has accepted the message; its further replies do not matter.
        let _ = self.say("QUIT");
        Ok(())
    }

    fn ask(&mut self, command: &str, code: u16) -> anyhow::Result<()> {
        self.say(command)?;
        self.expect(command, code)
    }

    fn say(&mut self, text: &str) -> anyhow::Result<()> {
        let stream = self.stream.get_mut();
        stream.set_write_timeout(Some(left(self.until)?))?;
        Ok(stream.write_all(format!("{text}\r\n").as_bytes())?)
    }

    fn expect(&mut self, what: &str, code: u16) -> anyhow::Result<()> {
        let (said, text) = self.reply()?;
        anyhow::ensure!(said == code, "to {what} it says: {}", model::printable::short(&text, 300));
        Ok(())
    }

    /// `250-first` and so on, until `250 last`.
    fn reply(&mut self) -> anyhow::Result<(u16, String)> {
        let (mut text, mut room) = (String::new(), LONGEST);
        loop {
            self.stream.get_ref().set_read_timeout(Some(left(self.until)?))?;
            let mut line = Vec::new();
            let length = self.stream.by_ref().take(room).read_until(b'\n', &mut line)? as u64;
            anyhow::ensure!(line.ends_with(b"\n"), "it ends the connection, or says no end of line");
            room -= length;
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            let code = line.get(..3).and_then(|code| code.parse().ok());
            let code = code.with_context(|| format!("it is none: {}", model::printable::short(&line, 300)))?;
            let goes_on = line.as_bytes().get(3) == Some(&b'-');
            text += &line;
            if !goes_on {
                return Ok((code, text));
            }
            text.push(' ');
        }
    }
}

fn left(until: Instant) -> anyhow::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    anyhow::ensure!(!left.is_zero(), "it does not answer within {} s", DEADLINE.as_secs());
    Ok(left)
}
