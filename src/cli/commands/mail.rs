//! `slurminit mail`: hands a message about a job to a mail relay. slurmctld runs it through the script MailProg (`-s SUBJECT ADDRESS`), as
//! SlurmUser, with details of the job in variables.
//!
//! It uses SMTP (RFC 5321) without TLS or a password. Users choose the address and the job's name, so neither may contain a line break, which could
//! start another SMTP command.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use anyhow::Context as _;

use model::printable;

const TIMEOUT: Duration = Duration::from_secs(30);
/// The variables of slurmctld that the message lists. Those with text that users choose are left out (`SLURM_JOB_NAME` is part of the
/// subject).
const SHOWN: [&str; 9] = [
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_ID",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_JOB_USER",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_STATE",
    "SLURM_JOB_RUN_TIME",
    "SLURM_JOB_EXIT_CODE_MAX",
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Host and port of the relay
    #[arg(long, value_name = "HOST:PORT")]
    relay: String,
    /// The sender's address [default: slurm@HOSTNAME]
    #[arg(long, value_name = "ADDRESS")]
    from: Option<String>,
    /// The subject
    #[arg(short, value_name = "TEXT")]
    subject: String,
    /// The recipients, separated by commas
    addresses: String,
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    let from = args.from.unwrap_or_else(|| format!("slurm@{host}"));
    let variable = |name: &&str| Some(format!("{name}={}\n", printable::short(&std::env::var(name).ok()?, 200)));
    let job = std::env::var("SLURM_JOB_ID").unwrap_or_default();
    let body: String = SHOWN.iter().filter_map(variable).collect();
    let body = format!(
        "{body}\nslurminit report {} shows how the job used its GPUs, if it had any.\n",
        printable::short(&job, 20)
    );
    let mail = Mail { host: &host, from: &from, to: &args.addresses, subject: &args.subject, body: &body };
    send(&args.relay, &mail).with_context(|| format!("cannot send mail through {}", args.relay))
}

struct Mail<'a> {
    host: &'a str,
    from: &'a str,
    to: &'a str,
    subject: &'a str,
    body: &'a str,
}

fn send(relay: &str, mail: &Mail<'_>) -> anyhow::Result<()> {
    let to: Vec<&str> = mail.to.split(',').map(str::trim).filter(|address| !address.is_empty()).collect();
    let is_safe = |address: &&str| address.bytes().all(|byte| byte.is_ascii_graphic() && !b"<>".contains(&byte));
    if let Some(refused) = to.iter().copied().chain([mail.from]).find(|address| !is_safe(address)) {
        anyhow::bail!("{refused:?} is not a mail address");
    }
    anyhow::ensure!(!to.is_empty(), "{:?} contains no mail address", mail.to);
    let address = relay.to_socket_addrs()?.next().context("the host name of the relay has no address")?;
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut session = Session(BufReader::new(stream));
    session.answer(b'2')?;
    session.command(&format!("EHLO {}", mail.host), b'2')?;
    session.command(&format!("MAIL FROM:<{}>", mail.from), b'2')?;
    for address in &to {
        session.command(&format!("RCPT TO:<{address}>"), b'2')?;
    }
    session.command("DATA", b'3')?;
    let subject: String = printable::short(mail.subject, 200).replace(|c: char| !c.is_ascii(), "?");
    // A line that contains only a dot would end the message.
    let body = mail.body.replace("\n.", "\n..").replace('\n', "\r\n");
    let to = to.join(", ");
    session.command(&format!("From: {}\r\nTo: {to}\r\nSubject: {subject}\r\n\r\n{body}.", mail.from), b'2')?;
    // The relay has accepted the message by now.
    let _ = session.command("QUIT", b'2');
    Ok(())
}

struct Session(BufReader<TcpStream>);

impl Session {
    fn command(&mut self, text: &str, expected: u8) -> anyhow::Result<()> {
        self.0.get_mut().write_all(format!("{text}\r\n").as_bytes())?;
        self.answer(expected)
    }

    /// Reads a reply. In each of its lines except the last, a hyphen follows the code.
    fn answer(&mut self, expected: u8) -> anyhow::Result<()> {
        loop {
            let mut line = String::new();
            anyhow::ensure!(self.0.read_line(&mut line)? > 0, "the relay closed the connection");
            if line.as_bytes().get(3) != Some(&b'-') {
                anyhow::ensure!(
                    line.as_bytes().first() == Some(&expected),
                    "unexpected reply from the relay: {}",
                    line.trim()
                );
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// The commands and the lines of the message that a relay receives; it refuses the address `no@body`.
    fn dialogue(to: &str, subject: &str, body: &str) -> (anyhow::Result<()>, Vec<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = listener.local_addr().unwrap().to_string();
        let client = |mail: &Mail<'_>| send(&relay, mail);
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let (stream, _) = listener.accept().unwrap();
                let mut writer = stream.try_clone().unwrap();
                writer.write_all(b"220-hello\r\n220 relay\r\n").unwrap();
                let mut lines = Vec::new();
                let mut is_data = false;
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let answer = match line.as_str() {
                        "." => "250 queued",
                        "DATA" => "354 go on",
                        _ if is_data => "",
                        _ if line.contains("no@body") => "550 no such user",
                        _ => "250-a\r\n250 b",
                    };
                    is_data = (is_data || line == "DATA") && line != ".";
                    lines.push(line);
                    if !answer.is_empty() && writer.write_all(format!("{answer}\r\n").as_bytes()).is_err() {
                        break;
                    }
                }
                lines
            });
            let outcome = client(&Mail { host: "gpu1", from: "slurm@gpu1", to, subject, body });
            if outcome.is_err() {
                // If an address was rejected before sending, nothing has connected to the relay yet.
                let _ = TcpStream::connect(&relay);
            }
            (outcome, server.join().unwrap())
        })
    }

    #[test]
    fn relay_gets_the_message_and_no_line_of_a_user_is_a_command() {
        let (sent, lines) =
            dialogue("alice@lab.example, bob@lab.example", "Job_id=7 Name=a\r\nRCPT TO:<eve> ü", "a\n.\nb\n");
        sent.unwrap();
        let expected = [
            "EHLO gpu1",
            "MAIL FROM:<slurm@gpu1>",
            "RCPT TO:<alice@lab.example>",
            "RCPT TO:<bob@lab.example>",
            "DATA",
            "From: slurm@gpu1",
            "To: alice@lab.example, bob@lab.example",
        ];
        assert_eq!(lines[..7], expected);
        assert!(lines[7].starts_with("Subject: Job_id=7 Name=a") && lines[7].is_ascii(), "{lines:?}");
        assert_eq!(lines[8..], ["", "a", "..", "b", ".", "QUIT"]);
        let (refused, _) = dialogue("no@body", "s", "");
        assert!(refused.unwrap_err().to_string().contains("550 no such user"));
        for bad in ["", " , ", "a\r\nDATA", "a>,b", "a b"] {
            assert!(dialogue(bad, "s", "").0.is_err(), "{bad:?}");
        }
    }
}
