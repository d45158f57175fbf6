//! Text from users is displayed without affecting the terminal or the log.

use model::printable::is_active;

use crate::docker::{Image, PLAIN};

/// A terminal title, a C1 control, a direction mark, a line that resembles a log line, and invalid UTF-8.
const HOSTILE: &str =
    "printf 'x\\033]0;pwn\\007\\302\\233\\342\\200\\256\\n2026-01-01T00:00:00Z error slurmctld: forged\\233'";

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn users_text_does_not_affect_terminal() {
    for format in ["text", "json"] {
        let log_format = format!("SLURMINIT_LOG_FORMAT={format}");
        let container = Image::new(PLAIN).with(["--hostname", "node1", "--env", &log_format]).serve();
        // Slurm writes job names and reasons into the daemons' logs. Only an operator can set a node's reason.
        let submit = format!(
            "t=$({HOSTILE}); setpriv --reuid=65534 --regid=65534 --clear-groups sbatch --chdir=/tmp --output=/dev/null \
             --job-name=\"$t\" --comment=\"$t\" --wrap true; setpriv --reuid=65534 --regid=65534 --clear-groups \
             srun --partition=\"$t\" true; scontrol update nodename=$(sinfo -ho %N) state=drain reason=\"$t\"; true"
        );
        container.sh(&submit);
        container.sh("until sinfo -ho %T | grep -q drained; do sleep 0.1; done; kill -HUP 1; sleep 1");
        // A log can contain invalid bytes, which become U+FFFD here.
        let logs = [
            container.log(),
            container.exec(&["slurminit", "logs", "slurmctld"]).stdout,
            container.exec(&["slurminit", "logs", "slurminit"]).stdout,
        ];
        assert!(format == "json" || !logs.concat().contains('\u{fffd}'), "{logs:?}");
        let outputs = [
            container.exec(&["slurminit", "status"]).stdout,
            container.exec(&["slurminit", "status", "--json"]).stdout,
            container.exec(&["slurminit", "doctor"]).stdout,
            container.exec(&["slurminit", "doctor", "--json"]).stdout,
        ];
        for text in outputs.into_iter().chain(logs) {
            let active: Vec<char> = text.chars().filter(|c| *c != '\n' && is_active(*c)).collect();
            assert!(active.is_empty(), "{active:?} in:\n{text}");
            assert!(
                !text.lines().any(|line| line.starts_with("2026-01-01T00:00:00Z error")),
                "a forged line in:\n{text}"
            );
        }
        let doctor = container.exec(&["slurminit", "doctor"]).stdout;
        assert!(doctor.contains("\\x1b]0;pwn\\x07"), "the escaped reason is missing in:\n{doctor}");
    }
}

/// Daemon messages that a user writes after a newline. `jobs account` would parse the last two.
const FORGED: [&str; 3] = [
    "slurmctld: error: forged",
    "slurmctld: sched: Allocate JobId=77_1(78) NodeList=forged",
    "slurmd: Launching batch job 78 for UID forged",
];

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn users_newline_does_not_begin_a_daemon_message() {
    let container = Image::new(PLAIN).with(["--hostname", "node1"]).serve();
    let forged = FORGED.join("\\n");
    // `$long` exceeds the size of an atomic write.
    let submit = format!(
        "t=$(printf 'x\\n{forged}\\nx'); long=$(printf '%04000d\\n{forged}' 0); u='setpriv --reuid=65534 --regid=65534 --clear-groups'; \
         for text in \"$t\" \"$long\"; do \
             id=$($u sbatch --parsable --hold --chdir=/tmp --wrap true); $u scontrol update jobid=$id comment=\"$text\" name=\"$text\"; \
             $u sbatch --chdir=\"/tmp/$text\" --output=\"/tmp/none/$text\" --error=\"/proc/$text\" --wrap true; \
         done; $u srun --chdir=\"/tmp/$t\" true; $u srun \"/tmp/$t\"; true"
    );
    container.sh(&submit);
    container.sh("until squeue --noheader --states=all | grep -qE ' (F|CD) '; do sleep 0.1; done; srun true");
    let log = container.log();
    assert!(log.contains("forged"), "the text is missing in:\n{log}");
    for (line, message) in log.lines().filter_map(|line| Some((line, line.splitn(4, ' ').nth(3)?.trim_start()))) {
        let is_forged = FORGED.iter().any(|forged| {
            let (_, text) = forged.split_once(": ").unwrap_or_default();
            message.contains("forged")
                && (message.starts_with(forged) || message.starts_with(text.trim_start_matches("error: ")))
        });
        assert!(!is_forged, "{line}\nin:\n{log}");
    }
}
