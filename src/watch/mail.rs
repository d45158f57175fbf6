//! Sends a job's mail: slurmctld runs this for `sbatch --mail-type`, as its own user.
//!
//! Subject and address are chosen by users. An error is one line, which slurmctld logs.

mod smtp;

use std::fs::OpenOptions;
use std::path::Path;

use config::{Address, Relay};

/// Records that the missing server was logged already.
const NO_MAIL: &str = "slurminit.no_mail";

/// The variables of slurmctld's environment that appear in the mail.
const SHOWN: [(&str, &str); 8] = [
    ("Job", "SLURM_JOB_ID"),
    ("Name", "SLURM_JOB_NAME"),
    ("User", "SLURM_JOB_USER"),
    ("State", "SLURM_JOB_STATE"),
    ("Exit code", "SLURM_JOB_EXIT_CODE_MAX"),
    ("Run time", "SLURM_JOB_RUN_TIME"),
    ("Directory", "SLURM_JOB_WORK_DIR"),
    ("Cluster", "SLURM_CLUSTER_NAME"),
];

/// Sends the mail from this address through this server. `state` is where the missing server is recorded.
pub fn send(server: Option<(&Relay, &Address)>, state: &Path, subject: &str, to: &str) -> anyhow::Result<()> {
    let Some((relay, from)) = server else {
        // Once is enough: users can cause as many mails as there are jobs.
        let first = OpenOptions::new().write(true).create_new(true).open(state.join(NO_MAIL));
        if first.is_err_and(|error| error.kind() == std::io::ErrorKind::AlreadyExists) {
            return Ok(());
        }
        anyhow::bail!(
            "no mail is sent for jobs with --mail-type: set relay = \"HOST:PORT\" in [mail] of slurminit.toml (said once)"
        );
    };
    let to = to.split(',').map(str::trim).map(|to| Address::try_from(to.to_owned())).collect::<Result<Vec<_>, _>>();
    let to = to.map_err(|why| anyhow::anyhow!("{why}; sbatch --mail-user has it"))?;
    let message = message(from, &to, subject, &|name| std::env::var(name).ok());
    smtp::send(relay, from, &to, &message)
}

/// Header and text, one entry per line.
fn message(from: &Address, to: &[Address], subject: &str, variable: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let to = to.iter().map(Address::to_string).collect::<Vec<_>>().join(", ");
    let mut lines = vec![
        format!("From: Slurm <{from}>"),
        format!("To: {to}"),
        format!("Subject: {}", line(subject)),
        "Auto-Submitted: auto-generated".to_owned(),
        String::new(),
        line(subject),
        String::new(),
    ];
    let shown = SHOWN.iter().filter_map(|(what, name)| Some(format!("{what}: {}", line(&variable(name)?))));
    lines.extend(shown);
    lines
}

/// A short line of plain ASCII.
fn line(text: &str) -> String {
    let plain = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    text.chars().take(200).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_subject_is_one_line() {
        let address = |text: &str| Address::try_from(text.to_owned()).unwrap();
        let evil = "Slurm Job_id=1 Name=x\r\nBcc: everybody@example.org\r\n.\r\n\u{202e}\u{1b}[2J Ended";
        let lines = message(&address("slurm@here"), &[address("a@b"), address("c")], evil, &|name| {
            (name == "SLURM_JOB_ID").then(|| "1\n2".to_owned())
        });
        assert_eq!(lines[1], "To: a@b, c");
        assert_eq!(lines[2], "Subject: Slurm Job_id=1 Name=x??Bcc: everybody@example.org??.????[2J Ended");
        assert_eq!(lines.last().unwrap(), "Job: 1?2");
        assert!(lines.iter().all(|line| line.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())));
    }
}
