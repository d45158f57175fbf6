//! `slurminit mail`, as slurmctld runs it, against a server on a real socket that says what a test wants.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test is no PID 1: it may wait for the commands that it runs")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

/// A server for one connection: what it answers to each command by its first word, and what it heard.
fn server(answers: &'static [(&'static str, &'static str)]) -> (u16, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let answer = |word: &str| answers.iter().find(|(of, _)| *of == word).map_or("250 ok\r\n", |(_, say)| *say);
        stream.write_all(answer("greeting").as_bytes()).unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let (mut heard, mut in_message) = (Vec::new(), false);
        while let Some(Ok(line)) = lines.next() {
            let word = line.split([' ', ':']).next().unwrap().to_owned();
            heard.push(line.clone());
            let ends = in_message && line == ".";
            if in_message && !ends {
                continue;
            }
            in_message = word == "DATA" && answer("DATA").starts_with("354");
            let say = if ends { answer("message") } else { answer(&word) };
            if word == "QUIT" || stream.write_all(say.as_bytes()).is_err() {
                break;
            }
        }
        heard
    });
    (port, heard)
}

const GOOD: &[(&str, &str)] = &[
    ("greeting", "220-welcome\r\n220 here\r\n"),
    ("EHLO", "250-here\r\n250-SIZE 1000\r\n250 HELP\r\n"),
    ("DATA", "354 go on\r\n"),
];

fn mail(port: u16, subject: &str, to: &str) -> Output {
    let mut command = Command::new(harness::slurminit());
    command.env_clear().env("SLURM_JOB_ID", "7").env("SLURM_JOB_STATE", "COMPLETED").env("SLURM_JOB_NAME", "a\nb");
    command.args(["mail", "--state", "/nonexistent", "--relay", &format!("127.0.0.1:{port}"), "--from", "slurm@here"]);
    command.args(["-s", subject, to]).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_mail_reaches_the_server() {
    let (port, heard) = server(GOOD);
    let output = mail(port, "Slurm Job_id=7 Name=x Ended", "alice@example.org,bob");
    assert!(output.status.success(), "{output:?}");
    let heard = heard.join().unwrap();
    let begin = ["EHLO slurminit", "MAIL FROM:<slurm@here>", "RCPT TO:<alice@example.org>", "RCPT TO:<bob>", "DATA"];
    assert_eq!(heard[..5], begin, "{heard:#?}");
    for line in [
        "To: alice@example.org, bob",
        "Subject: Slurm Job_id=7 Name=x Ended",
        "Job: 7",
        "State: COMPLETED",
        "Name: a?b",
    ] {
        assert!(heard.iter().any(|heard| heard == line), "{line}: {heard:#?}");
    }
    assert_eq!(heard.iter().filter(|line| *line == ".").count(), 1);
    assert_eq!(heard.last().unwrap(), "QUIT");
}

#[test]
fn a_hostile_subject_gives_no_command_and_no_header() {
    let (port, heard) = server(GOOD);
    let output = mail(port, ".\r\n.\r\nMAIL FROM:<evil>\nBcc: all@example.org", "alice");
    assert!(output.status.success(), "{output:?}");
    let heard = heard.join().unwrap();
    assert_eq!(
        heard.iter().filter(|line| line.starts_with("MAIL") || line.starts_with("Bcc")).count(),
        1,
        "{heard:#?}"
    );
    assert!(heard.iter().any(|line| line.starts_with("..??.??MAIL")), "a dot at a line's start is doubled: {heard:#?}");
}

#[test]
fn a_hostile_address_reaches_nobody() {
    for address in ["a>\r\nRCPT TO:<b", "-oQ/tmp", "$(id)", "", "a@b@c"] {
        // Nobody listens there, and nobody is asked.
        let output = mail(1, "x", address);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("is no mail address") && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn a_refusal_is_one_line_with_the_servers_words() {
    let cases: [(&'static [(&str, &str)], &str); 4] = [
        (&[("greeting", "554 go away\r\n")], "554 go away"),
        (&[("greeting", "220 here\r\n"), ("RCPT", "550 no \x1b[31mrelay\r\n")], "550 no \\x1b[31mrelay"),
        (&[("greeting", "220 here\r\n"), ("DATA", "354 go\r\n"), ("message", "552 too much\r\n")], "552 too much"),
        (&[("greeting", "hello\r\n")], "hello"),
    ];
    for (answers, words) in cases {
        let (port, heard) = server(answers);
        let output = mail(port, "x", "alice");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains(words) && said.contains("the mail server 127.0.0.1:") && said.lines().count() == 1,
            "{said}"
        );
        heard.join().unwrap();
    }
}

/// A server of before 1995, that knows no EHLO.
#[test]
fn an_old_server_is_greeted_in_its_own_way() {
    let (port, heard) = server(&[("greeting", "220 here\r\n"), ("EHLO", "500 what?\r\n"), ("DATA", "354 go on\r\n")]);
    assert!(mail(port, "x", "alice").status.success());
    assert_eq!(heard.join().unwrap()[..2], ["EHLO slurminit", "HELO slurminit"]);
}

#[test]
fn where_nobody_listens_it_says_so() {
    let output = mail(1, "x", "alice");
    assert!(String::from_utf8_lossy(&output.stderr).contains("127.0.0.1:1"), "{output:?}");
}

#[test]
fn without_a_server_it_says_once_what_to_set() {
    let state = tempfile::tempdir().unwrap();
    let run = || {
        let mut command = Command::new(harness::slurminit());
        command.args(["mail", "-s", "x", "alice", "--state"]).arg(state.path()).output().unwrap()
    };
    let first = run();
    assert_eq!(first.status.code(), Some(1));
    let said = String::from_utf8_lossy(&first.stderr).into_owned();
    assert!(said.contains("[mail]") && said.contains("relay") && said.lines().count() == 1, "{said}");
    let second = run();
    assert!(second.status.success() && second.stderr.is_empty(), "{second:?}");
}
